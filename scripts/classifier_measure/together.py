"""Queries used together: what it changes, and the same by MAP, which needs no training."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import softmax

from classifier_measure.compare import fitted, our_prior
from classifier_measure.episodes import Episode, episodes
from classifier_measure.rivals import unit
from classifier_measure.tables import Table
from classifier_measure.trust import means_of
from e3bm.fewshot.fitted_head import is_one_sided
from e3bm.runs.evaluation.metrics import BINS, Z95

SOME = 40  # queries of an uneven batch
MAP_ROUNDS, MAP_RATE, MAP_SCALE = 20, 0.2, 10.0
MAP_TEMPERATURES = {"map": 0.62, "map_unit_again": 1.3}
"""By likelihood on the even and uneven batches of both tuning halves."""


def batches(table: Table, ways: int, shots: int, count: int) -> dict[str, Any]:
    """What using queries together changes: all of them, some of a few preferred classes, those of one class alone."""
    found: dict[str, list[float]] = {}
    prior = our_prior(table)
    for number, episode in enumerate(episodes(table, ways, shots, count)):
        model = fitted(prior, table, episode)
        for kind, places in _kinds(episode, number, ways, SOME):
            rows, truth = table.features[episode.query[places]], episode.query_labels[places]
            for how, answers in (("alone", model.predict(rows)), ("together", model.predict_together(rows, prior))):
                found.setdefault(f"accuracy_{kind}_{how}", []).append(100 * float((answers.labels == truth).mean()))
                found.setdefault(f"nll_{kind}_{how}", []).append(_nll(answers.probabilities, truth))
    return means_of(found)


def against_map(table: Table, ways: int, shots: int, count: int) -> dict[str, Any]:
    """Our way of using queries together and MAP's on the same batches, both behind the same guard.

    An uneven batch has at most half of the queries, so that it is uneven with two ways too. ``minus_ours`` is a mean
    difference of accuracies, with its interval.
    """
    prior, found = our_prior(table), dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]]()
    for number, episode in enumerate(episodes(table, ways, shots, count)):
        model, support = fitted(prior, table, episode), table.features[episode.support]
        for kind, places in _kinds(episode, number, ways, min(SOME, len(episode.query) // 2)):
            rows, truth = table.features[episode.query[places]], episode.query_labels[places]
            alone = model.predict(rows)
            answers = {"alone": alone.probabilities, "ours": model.predict_together(rows, prior).probabilities}
            for name, temperature in MAP_TEMPERATURES.items():
                scores = map_scores(support, episode.support_labels, rows, again=name == "map_unit_again")
                one_sided = is_one_sided(alone.labels, ways)
                answers[name] = alone.probabilities if one_sided else softmax(scores / temperature, axis=1)
            for name, probabilities in answers.items():
                found.setdefault((kind, name), []).append((probabilities, truth))
    accuracy = {
        key: np.array([100 * float((each.argmax(1) == truth).mean()) for each, truth in some])
        for key, some in found.items()
    }
    result: dict[str, Any] = {}
    for (kind, name), some in found.items():
        difference = accuracy[kind, name] - accuracy[kind, "ours"]
        interval = Z95 * difference.std() / count**0.5
        result.setdefault(kind, {})[name] = {
            "accuracy": round(float(accuracy[kind, name].mean()), 3),
            "minus_ours": [round(float(difference.mean()), 3), round(float(interval), 3)],
            "nll": round(float(np.mean([_nll(*each) for each in some])), 4),
            "ece": round(_ece(np.concatenate([each.max(1) for each, _ in some]),
                              np.concatenate([each.argmax(1) == truth for each, truth in some])), 3),
        }  # fmt: skip
    return result


def map_scores(support: np.ndarray, labels: np.ndarray, query: np.ndarray, *, again: bool) -> np.ndarray:
    """MAP with a softmax: unit features centred on the task (to unit length ``again``), prototypes moved in rounds."""
    support, query = unit(support), unit(query)
    centre = np.concatenate([support, query]).mean(0)
    support, query = support - centre, query - centre
    if again:
        support, query = unit(support), unit(query)
    own = np.eye(labels.max() + 1)[labels].T
    sums, counts = own @ support, own.sum(1, keepdims=True)
    prototypes = sums / counts
    for _ in range(MAP_ROUNDS):
        shares = softmax(_closeness(query, prototypes), axis=1).T
        target = (sums + shares @ query) / (counts + shares.sum(1, keepdims=True))
        prototypes = prototypes + MAP_RATE * (target - prototypes)
    return _closeness(query, prototypes)


def _closeness(query: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    # The square of a query's length is the same for all prototypes.
    found: np.ndarray = -MAP_SCALE * (np.square(prototypes).sum(1) - 2 * query @ prototypes.T)
    return found


def _kinds(episode: Episode, number: int, ways: int, some: int) -> Iterator[tuple[str, np.ndarray]]:
    """Places of queries: all, ``some`` of a few preferred classes, those of one class."""
    random, queries = np.random.default_rng([11, number]), len(episode.query)
    preference = random.dirichlet(np.ones(ways))[episode.query_labels] + 1e-6
    yield "even", np.arange(queries)
    yield "uneven", random.choice(queries, min(some, queries), replace=False, p=preference / preference.sum())
    yield "one_class", np.flatnonzero(episode.query_labels == number % ways)


def _nll(probabilities: np.ndarray, truth: np.ndarray) -> float:
    return float(-np.log(np.maximum(probabilities[np.arange(len(truth)), truth], 1e-12)).mean())


def _ece(sure: np.ndarray, right: np.ndarray) -> float:
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, sure, BINS) - np.bincount(place, right, BINS)
    return float(100 * np.abs(gaps).sum() / len(sure))
