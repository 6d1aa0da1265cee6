"""What else a classifier says: unknown examples, prediction sets, doubtful labels, queries used together."""

from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from classifier_measure.compare import fitted
from classifier_measure.episodes import Episode, episodes
from classifier_measure.rivals import logistic_regression
from classifier_measure.tables import Table
from e3bm.fewshot.prior.file import load_prior

COVERAGES = (0.8, 0.9, 0.95)
RECALL = 0.95
FEWEST_FOR_DOUBT = 3
SOME = 40  # queries of an uneven batch


def unknown(table: Table, shots: int, count: int) -> dict[str, Any]:
    """Half of the classes are fitted, examples of the others should be called unknown."""
    ways = min(table.ways, len(np.unique(table.labels)) // 2)
    found: dict[str, list[float]] = {}
    for episode in episodes(table, shots, count, ways=ways):
        model = fitted(load_prior(), table, episode)
        known, other = (model.predict(table.features[rows]) for rows in (episode.query, episode.others))
        truth = np.r_[np.ones(len(known.labels)), np.zeros(len(other.labels))]
        scores = np.r_[known.known_scores, other.known_scores]
        sure = np.r_[known.probabilities.max(1), other.probabilities.max(1)]
        rival = logistic_regression(
            table.features[episode.support],
            episode.support_labels,
            table.features[np.r_[episode.query, episode.others]],
        )["logistic regression, C by likelihood"].max(1)
        level = np.quantile(known.known_scores, 1 - RECALL)
        for name, value in {
            "auroc": 100 * roc_auc_score(truth, scores),
            "auroc_of_largest_probability": 100 * roc_auc_score(truth, sure),
            "auroc_of_logistic_regressions_largest_probability": 100 * roc_auc_score(truth, rival),
            "recall_of_known": 100 * float((~known.unknown).mean()),
            "rejected_unknown": 100 * float(other.unknown.mean()),
            "rejected_unknown_at_exactly_95_recall": 100 * float((other.known_scores < level).mean()),
        }.items():
            found.setdefault(name, []).append(value)
    return {"ways": ways, "shots": shots, "episodes": count, **_means(found)}


def sets(table: Table, shots: int, count: int) -> dict[str, Any]:
    """How often prediction sets hold the right class, and how large they are."""
    found: dict[str, list[float]] = {}
    for episode in episodes(table, shots, count):
        model = fitted(load_prior(), table, episode)
        for coverage in COVERAGES:
            inside = model.sets(table.features[episode.query], coverage)
            name = f"{100 * coverage:.0f}"
            right = inside[np.arange(len(inside)), episode.query_labels]
            found.setdefault(f"coverage_at_{name}", []).append(100 * float(right.mean()))
            found.setdefault(f"size_at_{name}", []).append(float(inside.sum(1).mean()))
    return {"ways": table.ways, "shots": shots, "episodes": count, **_means(found)}


def doubtful(table: Table, shots: int, count: int) -> dict[str, Any]:
    """One support label of each episode is made wrong: how often it is pointed out, and how often right ones are."""
    found: dict[str, list[float]] = {}
    for number, episode in enumerate(episodes(table, shots, count)):
        random = np.random.default_rng([7, number])
        labels = episode.support_labels.copy()
        place = int(random.integers(len(labels)))
        labels[place] = (labels[place] + random.integers(1, table.ways)) % table.ways
        planted = Episode(episode.support, labels, episode.query, episode.query_labels, episode.others)
        model = fitted(load_prior(), table, planted)
        named = [one.position for one in model.suspicions]
        found.setdefault("found_wrong_label", []).append(100.0 * (place in named))
        found.setdefault("named_first", []).append(100.0 * (named[:1] == [place]))
        found.setdefault("right_labels_pointed_out", []).append(100 * len(set(named) - {place}) / (len(labels) - 1))
    return {"ways": table.ways, "shots": shots, "episodes": count, **_means(found)}


def batches(table: Table, shots: int, count: int) -> dict[str, Any]:
    """What using queries together changes: all of them, some of a few preferred classes, those of one class alone."""
    found: dict[str, list[float]] = {}
    prior = load_prior()
    for number, episode in enumerate(episodes(table, shots, count)):
        random = np.random.default_rng([11, number])
        model, queries = fitted(prior, table, episode), len(episode.query)
        preference = random.dirichlet(np.ones(table.ways))[episode.query_labels] + 1e-6
        for kind, places in {
            "even": np.arange(queries),
            "uneven": random.choice(queries, SOME, replace=False, p=preference / preference.sum()),
            "one_class": np.flatnonzero(episode.query_labels == number % table.ways),
        }.items():
            rows, truth = table.features[episode.query[places]], episode.query_labels[places]
            for how, answers in (("alone", model.predict(rows)), ("together", model.predict_together(rows, prior))):
                likely = np.maximum(answers.probabilities[np.arange(len(truth)), truth], 1e-12)
                found.setdefault(f"accuracy_{kind}_{how}", []).append(100 * float((answers.labels == truth).mean()))
                found.setdefault(f"nll_{kind}_{how}", []).append(float(-np.log(likely).mean()))
    return {"ways": table.ways, "shots": shots, "episodes": count, "uneven_queries": SOME, **_means(found)}


def trust(name: str, table: Table, count: int) -> dict[str, Any]:
    """Everything, for few and for more shots."""
    return {
        "data": name,
        "unknown": [unknown(table, shots, count) for shots in (1, 5)],
        "prediction_sets": [sets(table, shots, count) for shots in (2, 5, 10)],
        "doubtful_labels": [doubtful(table, shots, count) for shots in (5, 10) if shots >= FEWEST_FOR_DOUBT],
        "used_together": [batches(table, shots, count) for shots in (1, 5)],
    }


def _means(values: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(float(np.mean(each)), 4) for name, each in values.items()}
