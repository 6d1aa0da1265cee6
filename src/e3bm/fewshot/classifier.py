"""A fitted classifier of features: head, temperature, threshold and what the support set said of itself."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from e3bm.core.context import TINY
from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.prior.adapted import AdaptedHead, adapt_to, working_precision
from e3bm.fewshot.prior.file import FewShotPrior
from e3bm.fewshot.prior.together import scores_together
from e3bm.fewshot.trust import (
    Suspicion,
    TrustPrior,
    known_scores,
    known_threshold,
    leave_one_out,
    suspicious_labels,
    temperature,
)

# Prediction sets: as many classes as it takes to hold the right one in a wanted share of cases.


def set_threshold(misfits: Float[np.ndarray, " N"], coverage: float) -> float:
    """The largest misfit (1 - probability) a class may have; without enough left-out examples every class may.

    With n exchangeable examples the rank ceil((n + 1) coverage) keeps the promise. Left-out examples are predicted by
    fits that miss them, which should make the sets a little larger than needed.
    """
    if not 0 < coverage < 1:
        raise SettingsError(f"The coverage of prediction sets lies between 0 and 1, found {coverage}.")
    rank = math.ceil((len(misfits) + 1) * coverage)
    return float(np.sort(misfits)[rank - 1]) if 1 <= rank <= len(misfits) else 1.0


def prediction_sets(
    probabilities: Float[np.ndarray, "N W"], misfits: Float[np.ndarray, " L"], coverage: float
) -> Bool[np.ndarray, "N W"]:
    """Which classes are in the set of each example; the most probable one always is."""
    inside = 1 - probabilities <= set_threshold(misfits, coverage)
    inside[np.arange(len(inside)), probabilities.argmax(1)] = True
    return inside


# How far the epochs of an ensemble are from saying the same.


def epoch_disagreement(
    epoch_scores: Float[Tensor, "M N W"], votes: Float[Tensor, " M"], temperature: float
) -> Float[Tensor, " N"]:
    """Mean divergence of the epochs' predictions from their mean, in units of log W: 0 they agree, 1 they cannot less.

    Epochs count by the size of their votes; each one's scores are stretched as the sum is.
    """
    share = votes.abs() / (votes.abs().sum() + TINY)
    stretch = float(votes.sum()) / temperature
    logs = (epoch_scores * stretch).log_softmax(-1)
    mean = (share.view(-1, 1, 1) * logs.exp()).sum(0)
    divergences = (logs.exp() * (logs - (mean + TINY).log())).sum(-1)
    return (share @ divergences).clamp_min(0) / math.log(epoch_scores.shape[-1])


ROWS_AT_ONCE = 4096
MOST_TOGETHER = 2000


@dataclass(frozen=True)
class FitOptions:
    """How a classifier is fitted."""

    unit_length: bool = True
    """Whether only the direction of features counts, as is right for most embeddings."""
    recall: float = 0.95
    """The share of examples of the classes that should not be called unknown."""
    calibrated: bool = True
    """Whether the support set is left out example by example for temperature, threshold and doubtful labels."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.recall < 1:
            raise SettingsError(f"The recall of known examples lies from 0.5 to 1, found {self.recall}.")


@dataclass(frozen=True, eq=False)
class Predictions:
    """What is said of N examples."""

    probabilities: Float[np.ndarray, "N W"]
    labels: Int64[np.ndarray, " N"]
    unknown: Bool[np.ndarray, " N"]
    known_scores: Float[np.ndarray, " N"]
    disagreement: Float[np.ndarray, " N"]


@dataclass(frozen=True, eq=False)
class FittedClassifier:
    """Predicts features; a plain record that can be saved, compared and shared between threads."""

    head: AdaptedHead
    trust: TrustPrior
    temperature: float
    threshold: float
    misfits: Float[np.ndarray, " L"]
    """1 - probability of the right class, for every left-out example."""
    left_out_accuracy: float | None
    """Share of left-out examples that were predicted right, None without any."""
    suspicions: tuple[Suspicion, ...]
    options: FitOptions
    counts: tuple[int, ...]

    def predict(self, features: Float[np.ndarray, "N D"]) -> Predictions:
        """Everything at once."""
        parts = [self._predict(features[start : start + ROWS_AT_ONCE]) for start in _starts(len(features))]
        joined = [np.concatenate(part) for part in zip(*parts, strict=True)]
        return Predictions(*joined)

    def predict_together(self, features: Float[np.ndarray, "N D"], prior: FewShotPrior) -> Predictions:
        """Everything at once, with the examples telling of one another: a prediction depends on its neighbours here.

        More than MOST_TOGETHER are used in parts of about the same size. Whether an example is unknown and how far
        epochs disagree is told of each alone.
        """
        alone = self.predict(features)
        learner = prior.learner_together(self.head.centre.dtype)
        parts = []
        for rows in np.array_split(features, max(1, -(-len(features) // MOST_TOGETHER))):
            if len(rows):
                scores = scores_together(learner, self.head, self.head.space(torch.from_numpy(rows)))
                parts.append((scores / self.temperature).softmax(-1).numpy())
        found = np.concatenate(parts) if parts else alone.probabilities
        return replace(alone, probabilities=found, labels=found.argmax(-1))

    def scores(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N W"]:
        """Calibrated scores: their softmax is the probabilities. One product with the collapsed head."""
        parts = []
        for start in _starts(len(features)):
            placed = self.head.space(torch.from_numpy(features[start : start + ROWS_AT_ONCE]))
            parts.append((self.head.scores(placed) / self.temperature).numpy())
        return np.concatenate(parts)

    def probabilities(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N W"]:
        """Calibrated probabilities."""
        return torch.from_numpy(self.scores(features)).softmax(-1).numpy()

    def sets(self, features: Float[np.ndarray, "N D"], coverage: float) -> Bool[np.ndarray, "N W"]:
        """Prediction sets that should hold the right class in this share of cases."""
        return prediction_sets(self.probabilities(features), self.misfits, coverage)

    def _predict(self, features: Float[np.ndarray, "N D"]) -> tuple[np.ndarray, ...]:
        head = self.head
        placed = head.space(torch.from_numpy(features))
        scores = head.scores(placed)
        known = known_scores(scores, head.distances(placed), self.temperature, head.facts.unsqueeze(0), self.trust)
        disagreement = epoch_disagreement(head.epoch_scores(placed), head.votes, self.temperature)
        found = (scores / self.temperature).softmax(-1).numpy()
        return found, found.argmax(-1), (known < self.threshold).numpy(), known.numpy(), disagreement.numpy()


def fit_classifier(
    prior: FewShotPrior,
    features: Float[np.ndarray, "S D"],
    labels: Int64[np.ndarray, " S"],
    ways: int,
    options: FitOptions,
) -> FittedClassifier:
    """Adapt a prior to a support set. The order of the examples does not matter, to the last bit."""
    check_support(features, labels, ways)
    order = canonical_order(features, labels)
    support = working_precision(torch.from_numpy(np.ascontiguousarray(features[order])))
    targets = torch.from_numpy(labels[order])
    learner, trust = prior.learner(support.dtype), prior.trust
    head = adapt_to(learner, support, targets, ways, unit_length=options.unit_length)
    held_out = (
        leave_one_out(learner, support, targets, ways, unit_length=options.unit_length) if options.calibrated else None
    )
    counts = np.bincount(labels, minlength=ways)
    shots = float(np.exp(np.log(counts).mean()))
    heat = temperature(held_out, shots, trust)
    misfits, right = np.empty(0), None
    if held_out is not None:
        found = (held_out.scores / heat).softmax(-1).double()
        misfits = np.sort(1 - found.gather(-1, held_out.labels.unsqueeze(-1)).squeeze(-1).numpy())
        right = float((found.argmax(-1) == held_out.labels).double().mean())
    suspicions = [
        Suspicion(int(order[one.position]), one.label, one.looks_like, one.odds)
        for one in suspicious_labels(held_out, heat, trust)
    ]
    return FittedClassifier(
        head=head,
        trust=trust,
        temperature=heat,
        threshold=known_threshold(held_out, heat, head.facts, shots, trust, options.recall),
        misfits=misfits,
        left_out_accuracy=right,
        suspicions=tuple(suspicions),
        options=options,
        counts=tuple(int(count) for count in counts),
    )


def canonical_order(features: Float[np.ndarray, "S D"], labels: Int64[np.ndarray, " S"]) -> Int64[np.ndarray, " S"]:
    """Examples class by class, and inside a class by their content: sums are then rounded the same way every time."""
    keys = [(int(label), sha256(row.tobytes()).digest()) for row, label in zip(features, labels, strict=True)]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def check_support(features: Float[np.ndarray, "S D"], labels: Int64[np.ndarray, " S"], ways: int) -> None:
    """Refuse what cannot be learned from."""
    if features.ndim != 2 or len(features) != len(labels):
        raise DataError(
            f"Features must be a table with a row for each of the {len(labels)} labels; found shape {features.shape}."
        )
    if ways < 2:
        raise DataError(f"A classifier needs at least 2 classes, found {ways}; add examples of another class.")
    if not np.isfinite(features).all():
        raise DataError("The features hold NaN or infinite numbers; they must be finite.")
    empty = np.flatnonzero(np.bincount(labels, minlength=ways) == 0)
    if len(empty):
        raise DataError(f"Class {int(empty[0])} has no example; every class needs one or more.")


def class_numbers(names: Sequence[str]) -> tuple[tuple[str, ...], Int64[np.ndarray, " S"]]:
    """The distinct names in order, and each example's number among them."""
    classes = tuple(sorted(set(names)))
    numbers = {name: number for number, name in enumerate(classes)}
    return classes, np.array([numbers[name] for name in names], dtype=np.int64)


def _starts(count: int) -> range:
    return range(0, max(count, 1), ROWS_AT_ONCE)
