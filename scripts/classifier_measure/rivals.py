"""What E3BMClassifier is measured against: classifiers of few labels, each tuned inside the support set.

Coefficients with an L2 penalty lie in the span of the examples, so every linear rival works in an orthonormal basis of
it: the same solution, many times faster. With one shot nothing can be left out; the values used then were the best on
average on validation classes of the data that the prior was trained on (`one_shot.py` finds them).
"""

import warnings
from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import LinearSVC

Answers = dict[str, np.ndarray]
"""Probabilities of the queries by the name of the classifier."""
Rival = Callable[[np.ndarray, np.ndarray, np.ndarray], Answers]
"""Support features, support labels 0..W-1 and query features to answers."""

SCALINGS = ("unit length", "standardised")
STRENGTHS = tuple(10.0**power for power in range(-2, 5))
TEMPERATURES = np.geomspace(0.01, 10, 61)
NEIGHBOURS = (1, 3, 5, 7)
PRIOR_VOTES = (0.01, 0.03, 0.1, 0.3, 1.0)
FOLDS = 5
SVM_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
TOLERANCE = 1e-5
"""Of tuned logistic regression; with 1e-3, fits with a large C stop early and are less accurate."""
ONE_SHOT = {
    "logistic": ("unit length", 100.0),
    "svm": ("unit length", 1.0, 0.22),
    "mean": {"cosine": 0.126, "centred cosine": 0.28, "euclidean": 3.2},
    "neighbours": 0.3,
}


def unit(features: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def placed(kind: str, support: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both scaled by what the support set says, in a basis of its span."""
    if kind == "unit length":
        support, query = unit(support), unit(query)
    mean = support.mean(0)
    support, query = support - mean, query - mean
    if kind == "standardised":
        spread = support.std(0)
        spread[spread < 1e-9] = 1
        # As long as rows of length 1, so that the same values of C make sense.
        spread = spread * support.shape[1] ** 0.5
        support, query = support / spread, query / spread
    axes, inside = np.linalg.qr(support.T)
    return inside.T, query @ axes


def folds_of(labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """As many folds as the smallest class has examples, five at most."""
    count = min(FOLDS, int(np.bincount(labels).min()))
    return list(StratifiedKFold(count, shuffle=True, random_state=0).split(labels, labels))


def likelihood(logs: np.ndarray, labels: np.ndarray) -> float:
    """Mean -log p of the right class."""
    return float(-logs[np.arange(len(labels)), labels].mean())


def logistic_regression(support: np.ndarray, labels: np.ndarray, query: np.ndarray) -> Answers:
    """Scaling and C by cross-validated log-likelihood, and by accuracy."""
    chosen = dict.fromkeys(("likelihood", "accuracy"), ONE_SHOT["logistic"])
    if np.bincount(labels).min() > 1:
        by_loss, by_accuracy = {}, {}
        order = np.concatenate([test for _, test in folds_of(labels)])
        for scaling in SCALINGS:
            logs: dict[float, list[np.ndarray]] = {}
            for train, test in folds_of(labels):
                inside, outside = placed(scaling, support[train], support[test])
                for c, model in _path(inside, labels[train]):
                    logs.setdefault(c, []).append(_log_probabilities(model, outside))
            for c, parts in logs.items():
                joined = np.concatenate(parts)
                by_loss[scaling, c] = likelihood(joined, labels[order])
                by_accuracy[scaling, c] = (float((joined.argmax(1) != labels[order]).mean()), by_loss[scaling, c])
        chosen = {
            "likelihood": min(by_loss, key=by_loss.__getitem__),
            "accuracy": min(by_accuracy, key=by_accuracy.__getitem__),
        }
    found = {}
    for by, (scaling, strength) in chosen.items():
        inside, outside = placed(scaling, support, query)
        model = _logistic(inside, labels, strength)
        found[f"logistic regression, C by {by}"] = np.exp(_log_probabilities(model, outside))
    return found


def _path(inside: np.ndarray, labels: np.ndarray) -> list[tuple[float, tuple[np.ndarray, np.ndarray]]]:
    found, start = [], None
    for strength in STRENGTHS:
        start = _logistic(inside, labels, strength, start)
        found.append((strength, start))
    return found


def _logistic(inside: np.ndarray, labels: np.ndarray, strength: float, start=None) -> tuple[np.ndarray, np.ndarray]:
    model = LogisticRegression(C=strength, max_iter=1000, tol=TOLERANCE, warm_start=True)
    if start is not None:
        model.coef_, model.intercept_ = (part.copy() for part in start)
        model.classes_ = np.unique(labels)
    return _fitted(model, inside, labels)


def _fitted(model: LogisticRegression, inside: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(inside, labels)
    return model.coef_, model.intercept_


def _log_probabilities(model: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> np.ndarray:
    scores = rows @ model[0].T + model[1]
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], 1)
    return log_softmax(scores, 1)


def plain_logistic_regression(support: np.ndarray, labels: np.ndarray, query: np.ndarray) -> Answers:
    """scikit-learn's LogisticRegression() on the features as they are, as most people would begin."""
    inside, outside = placed("as they are", support, query)
    model = _fitted(LogisticRegression(), inside, labels)
    return {"LogisticRegression()": np.exp(_log_probabilities(model, outside))}


def linear_svm(support: np.ndarray, labels: np.ndarray, query: np.ndarray) -> Answers:
    """Scaling and C by cross-validated accuracy; probabilities are the softmax of margins over a temperature.

    The temperature is the likeliest for the left-out margins.
    """
    kind, strength, heat = ONE_SHOT["svm"]
    if np.bincount(labels).min() > 1:
        found = {}
        order = np.concatenate([test for _, test in folds_of(labels)])
        for scaling in SCALINGS:
            cut = [(placed(scaling, support[train], support[test]), labels[train]) for train, test in folds_of(labels)]
            for c in SVM_STRENGTHS:
                margins = np.concatenate([_margins(inside, own, outside, c) for (inside, outside), own in cut])
                loss, warmth = best_temperature(margins, labels[order])
                found[scaling, c, warmth] = (float((margins.argmax(1) != labels[order]).mean()), loss)
        kind, strength, heat = min(found, key=found.__getitem__)
    inside, outside = placed(kind, support, query)
    return {"linear SVM": softmax(_margins(inside, labels, outside, strength) / heat, 1)}


def _margins(inside: np.ndarray, labels: np.ndarray, outside: np.ndarray, strength: float) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        margins = LinearSVC(C=strength, random_state=0).fit(inside, labels).decision_function(outside)
    return np.stack([-margins, margins], 1) if margins.ndim == 1 else margins


def best_temperature(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The smallest loss and its temperature."""
    return min((likelihood(log_softmax(scores / heat, 1), labels), heat) for heat in TEMPERATURES)


def nearest_mean(support: np.ndarray, labels: np.ndarray, query: np.ndarray) -> Answers:
    """Softmax of similarities to the class means, for three of them; temperatures by leaving out."""
    found = {}
    for kind, usual in ONE_SHOT["mean"].items():
        heat = usual
        if np.bincount(labels).min() > 1:
            cut = folds_of(labels)
            held = [_similarities(kind, support[train], labels[train], support[test]) for train, test in cut]
            _, heat = best_temperature(np.concatenate(held), labels[np.concatenate([test for _, test in cut])])
        found[f"nearest mean, {kind}"] = softmax(_similarities(kind, support, labels, query) / heat, 1)
    return found


def _similarities(kind: str, support: np.ndarray, labels: np.ndarray, query: np.ndarray) -> np.ndarray:
    if kind == "euclidean":
        support, query = placed("standardised", support, query)
        factor = 1 / np.square(support).sum(1).mean()
        means = np.stack([support[labels == label].mean(0) for label in range(labels.max() + 1)])
        return -factor * np.square(query[:, None] - means).sum(-1)
    support, query = unit(support), unit(query)
    if kind == "centred cosine":
        mean = support.mean(0)
        support, query = unit(support - mean), unit(query - mean)
    means = np.stack([support[labels == label].mean(0) for label in range(labels.max() + 1)])
    return query @ unit(means).T


def nearest_neighbours(support: np.ndarray, labels: np.ndarray, query: np.ndarray) -> Answers:
    """Votes of the most similar examples; how many, and how many votes every class has before, by leaving out."""
    support, query = unit(support), unit(query)
    ways, count, before = int(labels.max()) + 1, 1, ONE_SHOT["neighbours"]
    if np.bincount(labels).min() > 1:
        own = support @ support.T
        np.fill_diagonal(own, -np.inf)
        found = {}
        for k in NEIGHBOURS:
            votes = _votes(own, labels, min(k, len(labels) - 1), ways)
            for start in PRIOR_VOTES:
                loss = likelihood(np.log((votes + start) / (votes + start).sum(1, keepdims=True)), labels)
                found[k, start] = (float((votes.argmax(1) != labels).mean()), loss)
        count, before = min(found, key=found.__getitem__)
    votes = _votes(query @ support.T, labels, min(count, len(labels)), ways) + before
    return {"nearest neighbours": votes / votes.sum(1, keepdims=True)}


def _votes(similarities: np.ndarray, labels: np.ndarray, count: int, ways: int) -> np.ndarray:
    nearest = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
    votes = np.zeros((len(similarities), ways))
    for place in range(count):
        # A hair for the nearer ones, so that they decide ties.
        np.add.at(votes, (np.arange(len(votes)), labels[nearest[:, place]]), 1 + 1e-6 * (count - place))
    return votes


RIVALS: tuple[Rival, ...] = (
    plain_logistic_regression,
    logistic_regression,
    linear_svm,
    nearest_mean,
    nearest_neighbours,
)
