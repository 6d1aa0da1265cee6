"""Accuracy, likelihood and calibration of classifiers on the same episodes, cell by cell of ways and shots."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn

from classifier_measure.episodes import Episode, episodes, hash_of
from classifier_measure.rivals import RIVALS, Answers
from classifier_measure.tables import Table
from e3bm.fewshot.fitted_head import FitOptions, FittedHead, fit_head
from e3bm.fewshot.prior.file import FewShotPrior, load_prior
from e3bm.fewshot.trust import TrustPrior
from e3bm.runs.evaluation.metrics import BINS, Z95

OURS, TOGETHER, LAST = "E3BMClassifier", "E3BMClassifier, queries used together", "last epoch alone"
ONE_VIEW = "one view"
Answer = Callable[[Table, Episode], Answers]
MOST_FITS = 200
_FITS: dict[tuple[str, TrustPrior, int, bytes, bytes], FittedHead] = {}


def fitted(prior: FewShotPrior, table: Table, episode: Episode) -> FittedHead:
    """Our classifier of an episode; several questions about a cell need the same fits."""
    key = (prior.digest, prior.trust, id(table), episode.support.tobytes(), episode.support_labels.tobytes())
    if key not in _FITS:
        if len(_FITS) >= MOST_FITS:
            _FITS.clear()
        ways = int(episode.support_labels.max()) + 1
        _FITS[key] = fit_head(prior, table.features[episode.support], episode.support_labels, ways, FitOptions())
    return _FITS[key]


def our_prior(table: Table) -> FewShotPrior:
    """The one of E3BMClassifier for its kind of rows."""
    return load_prior(None, *table.kinds)


def our_answers(table: Table, episode: Episode) -> Answers:
    """Alone, and with the queries used together."""
    prior = our_prior(table)
    model, query = fitted(prior, table, episode), table.features[episode.query]
    return {
        OURS: model.probabilities(query),
        TOGETHER: model.predict_together(query, prior).probabilities,
    }


def last_answers(prior: Path) -> Answer:
    """The same learner, trained in the same way with only its last epoch voting."""
    loaded = load_prior(prior)
    return lambda table, episode: {LAST: fitted(loaded, table, episode).probabilities(table.features[episode.query])}


def rival_answers(table: Table, episode: Episode) -> Answers:
    """Everybody else."""
    support, query = table.features[episode.support], table.features[episode.query]
    # Checking the same settings at each of thousands of small fits takes longer than most of the fits.
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        return {
            name: found for rival in RIVALS for name, found in rival(support, episode.support_labels, query).items()
        }


def measure(table: Table, ways: int, shots: int, count: int, answers: list[Answer]) -> dict[str, dict[str, Any]]:
    """For every classifier: right answers, what it claims and mean -log p of each episode, and sums for calibration."""
    found: dict[str, dict[str, Any]] = {}
    for episode in episodes(table, ways, shots, count):
        truth = episode.query_labels
        for name, probabilities in (item for answer in answers for item in answer(table, episode).items()):
            own = found.setdefault(name, {"right": [], "claims": [], "nll": [], "bins": np.zeros((3, BINS))})
            chosen = probabilities.argmax(1)
            own["right"].append(int((chosen == truth).sum()))
            likely = np.maximum(probabilities[np.arange(len(truth)), truth], 1e-12)
            own["nll"].append(float(-np.log(likely).mean()))
            sure = probabilities.max(1)
            own["claims"].append(100 * float(sure.mean()))
            place = np.minimum((sure * BINS).astype(int), BINS - 1)
            for row, values in enumerate((sure, chosen == truth, np.ones(len(truth)))):
                np.add.at(own["bins"][row], place, values)
    return found


def two_views(table: Table, mirrored: Table, ways: int, shots: int, count: int) -> dict[str, Any]:
    """Our accuracy and calibration with photos as they are; and how much more accurate it is, and how calibrated, where
    features are averaged with the mirror image's: those of the support only, or those of the queries too.
    """
    averaged = replace(table, features=(table.features + mirrored.features) / 2)
    seen = {ONE_VIEW: (table, table), "support": (averaged, table), "both": (averaged, averaged)}
    found: dict[str, dict[str, Any]] = {}
    for kind, (support, query) in seen.items():
        answer = partial(_answer_of_views, kind, support, query)
        own = measure(table, ways, shots, count, [answer])[kind]
        percent = 100 * np.array(own["right"]) / [len(one.query) for one in episodes(table, ways, shots, count)]
        found[kind] = {**own, "percent": percent}
    parts = {}
    for kind, own in found.items():
        sure, right, number = own["bins"]
        more = own["percent"] - (0 if kind == ONE_VIEW else found[ONE_VIEW]["percent"])
        likelihood = np.array(own["nll"]) - (0 if kind == ONE_VIEW else found[ONE_VIEW]["nll"])
        parts[kind] = {
            **_with_interval("accuracy", "ci", more),
            **_with_interval("nll", "nll_ci", likelihood),
            "ece": round(float(100 * np.abs(sure - right).sum() / number.sum()), 3),
        }
    return parts


def _answer_of_views(kind: str, support: Table, query: Table, _: Table, episode: Episode) -> Answers:
    return {kind: fitted(load_prior(), support, episode).probabilities(query.features[episode.query])}


def rows_of(
    name: str, table: Table, ways: int, shots: int, count: int, found: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """A result row for each classifier, with the difference of ours from it on the same episodes."""
    queries = [len(episode.query) for episode in episodes(table, ways, shots, count)]
    percent = {each: 100 * np.array(own["right"]) / queries for each, own in found.items()}
    rows = []
    for each, own in found.items():
        sure, right, number = own["bins"]
        row = {
            "data": name,
            "method": each,
            "setting": "transductive" if each == TOGETHER else "inductive",
            "ways": ways,
            "shots": shots,
            "queries": queries[0] // ways,
            "episodes": count,
            "episodes_hash": hash_of(table, ways, shots, count),
            **_with_interval("accuracy", "ci", percent[each]),
            **_with_interval("nll", "nll_ci", np.array(own["nll"])),
            "says": round(float(100 * sure.sum() / number.sum()), 3),
            "ece": round(float(100 * np.abs(sure - right).sum() / number.sum()), 3),
            **_with_interval("gap", "gap_ci", np.array(own["claims"]) - percent[each]),
        }
        if OURS in found and each != OURS:
            difference = np.array(found[OURS]["nll"]) - np.array(own["nll"])
            row |= {
                "ours_minus_this": {
                    **_with_interval("accuracy", "ci", percent[OURS] - percent[each]),
                    **_with_interval("nll", "nll_ci", difference),
                }
            }
        rows.append(row)
    return rows


def _with_interval(name: str, interval: str, values: np.ndarray) -> dict[str, float]:
    return {name: round(float(values.mean()), 4), interval: round(float(Z95 * values.std() / len(values) ** 0.5), 4)}
