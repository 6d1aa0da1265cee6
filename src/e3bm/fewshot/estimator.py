"""E3BMClassifier: the few-shot classifier of features as a scikit-learn estimator."""

from pathlib import Path
from typing import Any, Self

import numpy as np

from e3bm.errors import install_command

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(f"E3BMClassifier needs scikit-learn; run: {install_command('sklearn')}") from error

from e3bm.fewshot.fitted_head import FitOptions, FittedHead, fit_head
from e3bm.fewshot.prediction import column_arrays
from e3bm.fewshot.prior.file import kinds_with_trust, load_prior
from e3bm.fewshot.prior.shipped import ANY, PHOTOS


class E3BMClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn carries no types
    """A classifier for few labels: an ensemble of epochs whose rates and votes a meta-trained hyperprior sets.

    Any number of classes, with any number of examples each; all classes count equally. There is nothing random in it
    and nothing to tune. Threads may share one: a new fit replaces the old one in a single step, and a prediction uses
    the fit that it began with.

    Parameters
    ----------
    unit_length : bool, default=True
        Use only the direction of each row, as suits embeddings. Set it off where the size of features matters and
        standardise them instead.
    recall : float, default=0.95
        Share of examples of the classes that ``unknown`` should not flag.
    calibrate : bool, default=True
        Leave the examples out one by one to find temperature, threshold and doubtful labels; else the prior alone
        decides.
    prior : str, path or None, default=None
        A prior of ``e3bm train-prior``; None is the one that comes with the package.
    kind : str or None, default=None
        What rows are: features of "photos", "pixels" of small drawings that were cut out, "sentences", the name of a
        network of photos or an encoder of sentences, or "any". The shipped prior has temperatures and thresholds for
        each; those of "any" suit all kinds, and none of them as well as its own. None is "photos" for rows without
        negative numbers, as most networks for photos give them, and "any" for others.

    Attributes
    ----------
    classes_ : array of the class labels
    n_features_in_ : number of columns seen in fit
    temperature_ : what scores are divided by before they are called probabilities
    rates_, votes_ : alpha_m and v_m of every epoch
    suspicious_ : positions of training rows whose labels the others contradict, the most doubtful first
    """

    def __init__(
        self,
        *,
        unit_length: bool = True,
        recall: float = 0.95,
        calibrate: bool = True,
        prior: str | Path | None = None,
        kind: str | None = None,
    ) -> None:
        self.unit_length = unit_length
        self.recall = recall
        self.calibrate = calibrate
        self.prior = prior
        self.kind = kind

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "E3BMClassifier":
        """Adapt the prior to labelled rows; a row of weight 2 counts as two equal ones, of weight 0 as none."""
        # Built aside and swapped in one step: another thread may be predicting.
        fresh = self._sharing(dict(self.__dict__))
        fresh._fit(X, y, sample_weight)
        self.__dict__ = fresh.__dict__
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        rows, weights = _weighted_rows(X, y, _check_sample_weight(sample_weight, X, ensure_non_negative=True))
        X, y = X[rows], y[rows]
        if not len(y):
            raise ValueError("Every row has weight 0; at least two classes need rows that count.")
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"E3BMClassifier needs at least 2 classes, found 1 class: {self.classes_[0]}.")
        options = FitOptions(unit_length=self.unit_length, recall=self.recall, calibrated=self.calibrate)
        if self.kind is not None and self.kind not in (known := kinds_with_trust()):
            raise ValueError(f"There is no kind {self.kind!r} of features; there are {', '.join(map(repr, known))}.")
        kind = self.kind or (ANY if (X < 0).any() else PHOTOS)
        prior = load_prior(None if self.prior is None else Path(self.prior), kind)
        fitted = fit_head(prior, X, labels.astype(np.int64), len(self.classes_), options, weights=weights)
        self.head_: FittedHead = fitted
        self.temperature_ = fitted.temperature
        self.rates_, self.votes_ = fitted.ensemble.rates, fitted.ensemble.votes
        self.suspicious_ = rows[np.array([one.position for one in fitted.suspicions], dtype=np.int64)]

    def decision_function(self, X: Any) -> np.ndarray:
        """Calibrated scores; for two classes their difference, as scikit-learn has it."""
        now, rows = self._now(X)
        scores = now.head_.scores(rows)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, a column for each of ``classes_``."""
        now, rows = self._now(X)
        return now.head_.probabilities(rows)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row."""
        now, rows = self._now(X)
        chosen: np.ndarray = now.classes_[now.head_.scores(rows).argmax(1)]
        return chosen

    def details(self, X: Any, coverage: float | None = None, recall: float | None = None) -> dict[str, np.ndarray]:
        """Everything that is predicted about rows, an array for each field of ``e3bm.Prediction``.

        With a ``coverage`` there is also ``prediction_set``: the classes in each row's set by number, the most probable
        first, then -1. ``recall`` replaces that of the fit: rows whose ``unknown_score`` is above it are unknown.
        """
        now, rows = self._now(X)
        found = column_arrays(now.head_.with_recall(recall).predict(rows, coverage))
        return {**found, "label": now.classes_[found["label"]]}

    def transform(self, X: Any) -> np.ndarray:
        """The calibrated probabilities as features for another step; ``set_output`` makes them a frame."""
        return self.predict_proba(X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the columns of ``transform``: p(class)."""
        check_is_fitted(self)
        return np.array([f"p({name})" for name in self.classes_.tolist()], dtype=object)

    def plot_reliability(self, X: Any, y: Any, ax: Any = None) -> Any:
        """Share of right answers against confidence on labelled rows; returns a plot with ``ax_`` and ``figure_``."""
        from e3bm.fewshot.learning.evaluation import reliability_bins
        from e3bm.fewshot.learning.evaluation_page import reliability_points
        from e3bm.report.result_figures import plot_reliability

        found = self.predict_proba(X)
        right = self.classes_[found.argmax(1)] == np.asarray(y)
        return plot_reliability(reliability_points(reliability_bins(found.max(1), right)), ax)

    def plot_votes(self, ax: Any = None) -> Any:
        """The vote and the rate of every epoch of the ensemble; returns a plot with ``ax_`` and ``figure_``."""
        from e3bm.report.result_figures import plot_votes

        check_is_fitted(self)
        return plot_votes(self.votes_.tolist(), self.rates_.tolist(), ax)

    def unknown(self, X: Any, recall: float | None = None) -> np.ndarray:
        """True where a row looks like none of the classes; ``recall`` replaces that of the fit."""
        return self.details(X, recall=recall)["unknown"]

    def unknown_score(self, X: Any) -> np.ndarray:
        """The share of examples of the classes that should look less strange than each row, from 0 to 1."""
        return self.details(X)["unknown_score"]

    def disagreement(self, X: Any) -> np.ndarray:
        """How much the epochs disagree, from 0 to 1."""
        return self.details(X)["disagreement"]

    def prediction_sets(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Which classes (columns) each row's set holds, so that the right one is inside in this share of cases."""
        now, rows = self._now(X)
        return now.head_.sets(rows, coverage)

    def why_all_classes(self, coverage: float = 0.9) -> str | None:
        """Why prediction sets of this coverage hold every class; None where they need not."""
        check_is_fitted(self)
        return self.head_.why_all_classes(coverage, "row")

    def _now(self, X: Any) -> tuple[Self, np.ndarray]:
        """The estimator as it is at this moment, whatever is fitted meanwhile, and the rows as it takes them."""
        now = self._sharing(self.__dict__)
        check_is_fitted(now)
        rows: np.ndarray = validate_data(now, X, dtype=np.float64, reset=False)
        return now, rows

    def _sharing(self, attributes: dict[str, Any]) -> Self:
        """An estimator of this kind with these attributes, which it does not copy."""
        other = object.__new__(type(self))
        other.__dict__ = attributes
        return other


def _weighted_rows(X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The positions of rows that count, and their weights; None where each counts once.

    Equal rows with equal labels become one with the sum of their weights: left out alone, it would be given away.
    """
    first: dict[tuple[bytes, Any], int] = {}
    sums: dict[int, float] = {}
    for row, (values, label, weight) in enumerate(zip(X, y.tolist(), weights.tolist(), strict=True)):
        if weight > 0:
            place = first.setdefault((values.tobytes(), label), row)
            sums[place] = sums.get(place, 0.0) + weight
    found = np.array(list(sums.values()), dtype=np.float64)
    return np.array(list(sums), dtype=np.int64), None if (found == 1).all() else found
