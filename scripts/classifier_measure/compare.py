"""Accuracy, likelihood and calibration of classifiers on the same episodes; what each did is kept."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from classifier_measure import kept
from classifier_measure.episodes import Episode, episodes, hash_of
from classifier_measure.rivals import RIVALS, Answers
from classifier_measure.tables import Table
from e3bm.fewshot.fitted_head import FitOptions, FittedHead, fit_head
from e3bm.fewshot.prior.file import FewShotPrior, load_prior
from e3bm.runs.evaluation.metrics import BINS, Z95

OURS, TOGETHER, LAST = "E3BMClassifier", "E3BMClassifier, queries used together", "last epoch alone"
SHOTS = (1, 2, 3, 5, 10)


def fitted(prior: FewShotPrior, table: Table, episode: Episode) -> FittedHead:
    """Our classifier of an episode."""
    ways = int(episode.support_labels.max()) + 1
    return fit_head(prior, table.features[episode.support], episode.support_labels, ways, FitOptions())


def our_answers(table: Table, episode: Episode) -> Answers:
    """Alone, and with the queries used together."""
    prior = load_prior()
    model, query = fitted(prior, table, episode), table.features[episode.query]
    together = model.predict_together(query, prior)
    return {OURS: model.probabilities(query), TOGETHER: together.probabilities}


def last_answers(prior: Path) -> Callable[[Table, Episode], Answers]:
    """The same learner, trained in the same way with only its last epoch voting."""
    loaded = load_prior(prior)
    return lambda table, episode: {LAST: fitted(loaded, table, episode).probabilities(table.features[episode.query])}


def rival_answers(table: Table, episode: Episode) -> Answers:
    """Everybody else."""
    found: Answers = {}
    for rival in RIVALS:
        support, query = table.features[episode.support], table.features[episode.query]
        found |= rival(support, episode.support_labels, query)
    return found


def measure(
    table: Table,
    shots: int,
    count: int,
    answer: Callable[[Table, Episode], Answers],
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """For every classifier: right answers and mean -log p of each episode, and sums for its calibration."""
    kept: dict[str, dict[str, Any]] = {}
    began = time.process_time()
    for number, episode in enumerate(episodes(table, shots, count)):
        for name, probabilities in answer(table, episode).items():
            own = found.setdefault(name, {"right": [], "nll": [], "bins": np.zeros((3, BINS))})
            truth = episode.query_labels
            chosen = probabilities.argmax(1)
            own["right"].append(int((chosen == truth).sum()))
            likely = np.maximum(probabilities[np.arange(len(truth)), truth], 1e-12)
            own["nll"].append(round(float(-np.log(likely).mean()), 6))
            sure = probabilities.max(1)
            place = np.minimum((sure * BINS).astype(int), BINS - 1)
            for row, values in enumerate((sure, chosen == truth, np.ones(len(truth)))):
                np.add.at(own["bins"][row], place, values)
        if number % 10 == 9:
            say(f"{shots} shots: {number + 1}/{count} episodes, {time.process_time() - began:.0f} s of a core")
    for own in kept.values():
        own["bins"] = np.round(own["bins"], 4).tolist()
    return kept


def rows_of(name: str, table: Table, shots: int, count: int, kept: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A result row for each classifier, with the difference of ours from it on the same episodes."""
    queries = [len(episode.query) for episode in episodes(table, shots, count)]
    percent = {each: 100 * np.array(own["right"]) / queries for each, own in kept.items()}
    rows = []
    for each, own in kept.items():
        sure, right, number = np.array(own["bins"])
        row = {
            "data": name,
            "about": table.about,
            "method": each,
            "setting": "transductive" if each == TOGETHER else "inductive",
            "ways": table.ways,
            "shots": shots,
            "queries": queries[0] // table.ways,
            "episodes": count,
            "episodes_hash": hash_of(table, shots, count),
            **_with_interval("accuracy", "ci", percent[each]),
            **_with_interval("nll", "nll_ci", np.array(own["nll"])),
            "ece": float(100 * np.abs(sure - right).sum() / number.sum()),
        }
        if OURS in kept and each != OURS:
            difference = np.array(kept[OURS]["nll"]) - np.array(own["nll"])
            row |= {
                "ours_minus_this": {
                    **_with_interval("accuracy", "ci", percent[OURS] - percent[each]),
                    **_with_interval("nll", "nll_ci", difference),
                }
            }
        rows.append(row)
    return rows


def _with_interval(name: str, interval: str, values: np.ndarray) -> dict[str, float]:
    return {name: float(values.mean()), interval: float(Z95 * values.std() / len(values) ** 0.5)}


def run(
    name: str, table: Table, out: Path, count: int, shots: Sequence[int], who: Sequence[str], last: Path | None
) -> None:
    """Measure who is asked for and write what all did so far: episodes, and the rows made from them."""
    torch.set_num_threads(1)
    kinds: dict[str, Callable[[Table, Episode], Answers]] = {"ours": our_answers, "rivals": rival_answers}
    if last is not None:
        kinds["last"] = last_answers(last)
    found = kept.read(out).get(name, {}).get("episodes", {})
    for each in shots:
        for kind in who:
            own = found.setdefault(f"{each} shots, {count} episodes", {})
            own |= measure(
                table, each, count, kinds[kind], lambda text, kind=kind: print(f"{name} {kind} {text}", flush=True)
            )
            kept.change(out, name, episodes=found)
    rows = []
    for key, own in found.items():
        each, number = (int(part.split()[0]) for part in key.split(", "))
        rows += rows_of(name, table, each, number, own)
    kept.change(out, name, rows=rows)
