"""What else a classifier says: unknown examples, prediction sets, doubtful labels."""

from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from classifier_measure.compare import OURS, fitted, measure, our_prior, rows_of
from classifier_measure.episodes import episodes
from classifier_measure.limits import placed
from classifier_measure.tables import Table
from e3bm.fewshot.prior.file import FewShotPrior, load_prior
from e3bm.fewshot.text.encoder import MINILM, WORDLLAMA
from e3bm.fewshot.trust import TrustPrior, suspicious_labels
from e3bm.runs.evaluation.metrics import Z95

COVERAGES = (0.8, 0.9, 0.95)
CLAIMS = ("accuracy", "ci", "says", "ece", "gap", "gap_ci", "nll", "episodes_hash")


def unknown(table: Table, ways: int, shots: int, count: int, prior: FewShotPrior | None = None) -> dict[str, Any]:
    """Examples of other classes should be called unknown, those of the fitted ones not."""
    found: dict[str, list[float]] = {}
    for episode in episodes(table, ways, shots, count):
        model = fitted(prior or our_prior(table), table, episode)
        known = model.predict(table.features[episode.query])
        found.setdefault("kept_known", []).append(100 * float((~known.unknown).mean()))
        if len(episode.others):
            other = model.predict(table.features[episode.others])
            truth = np.r_[np.ones(len(known.labels)), np.zeros(len(other.labels))]
            sure = np.r_[known.probabilities.max(1), other.probabilities.max(1)]
            for name, value in {
                "auroc": 100 * roc_auc_score(truth, np.r_[known.known_scores, other.known_scores]),
                "auroc_of_largest_probability": 100 * roc_auc_score(truth, sure),
                "rejected_unknown": 100 * float(other.unknown.mean()),
            }.items():
                found.setdefault(name, []).append(value)
    return means_of(found, "kept_known")


def sets(table: Table, ways: int, shots: int, count: int, prior: FewShotPrior | None = None) -> dict[str, Any]:
    """How often prediction sets hold the right class, and how large they are."""
    found: dict[str, list[float]] = {}
    for episode in episodes(table, ways, shots, count):
        model = fitted(prior or our_prior(table), table, episode)
        for coverage in COVERAGES:
            inside = model.sets(table.features[episode.query], coverage)
            name = f"{100 * coverage:.0f}"
            right = inside[np.arange(len(inside)), episode.query_labels]
            found.setdefault(f"coverage_at_{name}", []).append(100 * float(right.mean()))
            found.setdefault(f"size_at_{name}", []).append(float(inside.sum(1).mean()))
    return means_of(found)


def doubtful(table: Table, ways: int, shots: int, count: int, trust: TrustPrior) -> dict[str, Any]:
    """One support label of each episode is made wrong: how often it is pointed out, and how often right ones are.

    No head is fitted: doubts depend on features and labels alone.
    """
    found: dict[str, list[float]] = {}
    for number, episode in enumerate(episodes(table, ways, shots, count)):
        planted, place = episode.with_wrong_label(number)
        named = [one.position for one in suspicious_labels(*placed(table, planted), ways, trust)]
        found.setdefault("found_wrong_label", []).append(100.0 * (place in named))
        found.setdefault("named_first", []).append(100.0 * (named[:1] == [place]))
        right = len(planted.support_labels) - 1
        found.setdefault("right_labels_pointed_out", []).append(100 * len(set(named) - {place}) / right)
    return means_of(found, "found_wrong_label")


def claims(table: Table, ways: int, shots: int, count: int, prior: FewShotPrior | None = None) -> dict[str, Any]:
    """What our classifier claims and what is true, and the difference with its interval over support sets."""
    answer = lambda table, episode: {
        OURS: fitted(prior or our_prior(table), table, episode).probabilities(table.features[episode.query])
    }
    (row,) = rows_of("", table, ways, shots, count, measure(table, ways, shots, count, [answer]))
    return {name: row[name] for name in CLAIMS}


def text_trust(table: Table, ways: int, shots: int, count: int) -> dict[str, Any]:
    """The same fits with the numbers of trust of photos, and with those of the encoder, which TextClassifier has."""
    found: dict[str, Any] = {}
    own = load_prior(None, WORDLLAMA if "WordLlama" in table.about else MINILM)
    for kind, prior in (("photos", load_prior()), ("sentences", own)):
        row = claims(table, ways, shots, count, prior)
        inside = sets(table, ways, shots, count, prior)
        found["episodes_hash"] = row.pop("episodes_hash")
        found[kind] = {
            **row,
            **unknown(table, ways, shots, count, prior),
            **{name: inside[name] for name in ("coverage_at_90", "size_at_90")},
        }
    return found


def means_of(values: dict[str, list[float]], with_interval: str = "") -> dict[str, float]:
    """Means over support sets; of one of them also the interval, as NAME_ci."""
    found = {name: round(float(np.mean(each)), 3) for name, each in values.items()}
    if with_interval:
        each = values[with_interval]
        found[f"{with_interval}_ci"] = round(float(Z95 * np.std(each) / len(each) ** 0.5), 3)
    return found
