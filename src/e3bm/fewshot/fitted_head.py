"""A head fitted to features: the ensemble, its temperature and threshold, and what the support set says of itself."""

import math
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from e3bm.core.context import TINY
from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.forking import survive_forks
from e3bm.fewshot.prior.canonical import canonical_array
from e3bm.fewshot.prior.ensemble_head import EnsembleHead, fit_ensemble_head, working_precision
from e3bm.fewshot.prior.file import FewShotPrior
from e3bm.fewshot.prior.leave_one_out import leave_one_out
from e3bm.fewshot.prior.together import scores_together
from e3bm.fewshot.trust import (
    Suspicion,
    TrustPrior,
    choose_temperature,
    known_scores,
    known_threshold,
    suspicious_labels,
)
from e3bm.progress import Progress

survive_forks()
ROWS_AT_ONCE = 4096
MOST_TOGETHER = 2000


@dataclass(frozen=True)
class FitOptions:
    """How a head is fitted."""

    unit_length: bool = True
    """Whether only the direction of features counts, as is right for most embeddings."""
    recall: float = 0.95
    """The share of examples of the classes that should not be called unknown."""
    calibrated: bool = True
    """Whether the support set is left out example by example for temperature, threshold and doubtful labels."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.recall < 1:
            raise SettingsError(f"The recall of known examples must be between 0.5 and 1, found {self.recall}.")


@dataclass(frozen=True, eq=False)
class PredictionArrays:
    """What a head finds for N examples; ``Prediction`` is the record of one of them."""

    probabilities: Float[np.ndarray, "N W"]
    labels: Int64[np.ndarray, " N"]
    unknown: Bool[np.ndarray, " N"]
    known_scores: Float[np.ndarray, " N"]
    disagreement: Float[np.ndarray, " N"]
    sets: Bool[np.ndarray, "N W"] | None = None
    """Which classes are in each example's prediction set; None where no coverage was asked for."""


@dataclass(frozen=True, eq=False)
class FittedHead:
    """Predicts features; a plain record that can be saved, compared and shared between threads."""

    ensemble: EnsembleHead
    trust: TrustPrior
    temperature: float
    """What scores are divided by before they become probabilities."""
    threshold: float
    """The known score below which an example is called unknown."""
    misfits: Float[np.ndarray, " L"]
    """1 - probability of the right class, for every left-out example."""
    left_out_accuracy: float | None
    """Share of left-out examples that were predicted right, None without any."""
    suspicions: tuple[Suspicion, ...]
    """Doubtful labels; positions are those of the examples as they were given."""
    options: FitOptions
    counts: tuple[int, ...]
    """The number of examples of every class."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "misfits", canonical_array(self.misfits, np.float64))

    def predict(self, features: Float[np.ndarray, "N D"], coverage: float | None = None) -> PredictionArrays:
        """Everything that can be said of examples; prediction sets only where their ``coverage`` is given."""
        parts = [self._predict_rows(features[start : start + ROWS_AT_ONCE]) for start in _starts(len(features))]
        found = PredictionArrays(*[np.concatenate(part) for part in zip(*parts, strict=True)])
        if coverage is None:
            return found
        return replace(found, sets=prediction_sets(found.probabilities, self.misfits, coverage))

    def predict_together(self, features: Float[np.ndarray, "N D"], prior: FewShotPrior) -> PredictionArrays:
        """The same for examples that are used together (SIB+E3BM): each prediction depends on the other examples.

        More than MOST_TOGETHER are used in parts of about the same size. Whether an example is unknown and how far
        the epochs disagree does not depend on the others.
        """
        alone = self.predict(features)
        learner = prior.learner_together(self.ensemble.centre.dtype)
        parts = []
        for rows in np.array_split(features, max(1, -(-len(features) // MOST_TOGETHER))):
            if len(rows):
                scores = scores_together(learner, self.ensemble, self.ensemble.space(torch.from_numpy(rows)))
                parts.append((scores / self.temperature).softmax(-1).numpy())
        found = np.concatenate(parts) if parts else alone.probabilities
        return replace(alone, probabilities=found, labels=found.argmax(-1))

    def scores(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N W"]:
        """Calibrated scores, whose softmax is the probabilities: one matrix product."""
        parts = []
        for start in _starts(len(features)):
            placed = self.ensemble.space(torch.from_numpy(features[start : start + ROWS_AT_ONCE]))
            parts.append((self.ensemble.scores(placed) / self.temperature).numpy())
        return np.concatenate(parts)

    def probabilities(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N W"]:
        """Calibrated probabilities."""
        return torch.from_numpy(self.scores(features)).softmax(-1).numpy()

    def sets(self, features: Float[np.ndarray, "N D"], coverage: float) -> Bool[np.ndarray, "N W"]:
        """Prediction sets that should hold the right class in this share of cases."""
        return prediction_sets(self.probabilities(features), self.misfits, coverage)

    def _predict_rows(self, features: Float[np.ndarray, "N D"]) -> tuple[np.ndarray, ...]:
        """The arrays of PredictionArrays, in their order, for rows that fit into memory together."""
        head = self.ensemble
        placed = head.space(torch.from_numpy(features))
        scores = head.scores(placed)
        known = known_scores(scores, head.distances(placed), self.temperature, head.facts.unsqueeze(0), self.trust)
        disagreement = epoch_disagreement(head.epoch_scores(placed), head.votes, self.temperature)
        found = (scores / self.temperature).softmax(-1).numpy()
        return found, found.argmax(-1), (known < self.threshold).numpy(), known.numpy(), disagreement.numpy()


def fit_head(
    prior: FewShotPrior,
    features: Float[np.ndarray, "S D"],
    labels: Int64[np.ndarray, " S"],
    ways: int,
    options: FitOptions,
    progress: Progress | None = None,
) -> FittedHead:
    """Adapt a prior to a support set. The order of the examples does not matter, to the last bit."""
    _check_support(features, labels, ways)
    order = _canonical_order(features, labels)
    support = working_precision(torch.from_numpy(np.ascontiguousarray(features[order])))
    targets = torch.from_numpy(labels[order])
    learner, trust = prior.learner(support.dtype), prior.trust
    ensemble = fit_ensemble_head(learner, support, targets, ways, unit_length=options.unit_length)
    held_out = (
        leave_one_out(learner, support, targets, ways, unit_length=options.unit_length, progress=progress)
        if options.calibrated
        else None
    )
    counts = np.bincount(labels, minlength=ways)
    shots = float(np.exp(np.log(counts).mean()))
    temperature = choose_temperature(held_out, shots, trust)
    misfits, accuracy = np.empty(0), None
    if held_out is not None:
        found = (held_out.scores / temperature).softmax(-1).double()
        misfits = np.sort(1 - found.gather(-1, held_out.labels.unsqueeze(-1)).squeeze(-1).numpy())
        accuracy = float((found.argmax(-1) == held_out.labels).double().mean())
    suspicions = [
        Suspicion(int(order[one.position]), one.label, one.looks_like, one.odds)
        for one in suspicious_labels(held_out, temperature, trust)
    ]
    return FittedHead(
        ensemble=ensemble,
        trust=trust,
        temperature=temperature,
        threshold=known_threshold(held_out, temperature, ensemble.facts, shots, trust, options.recall),
        misfits=misfits,
        left_out_accuracy=accuracy,
        suspicions=tuple(suspicions),
        options=options,
        counts=tuple(int(count) for count in counts),
    )


def set_threshold(misfits: Float[np.ndarray, " N"], coverage: float) -> float:
    """The largest misfit (1 - probability) that a class in a prediction set may have.

    With n exchangeable examples the rank ceil((n + 1) coverage) keeps the promise; without enough left-out examples
    every class is in the set. Left-out examples are predicted by fits that miss them, which should make the sets a
    little larger than needed.
    """
    if not 0 < coverage < 1:
        raise SettingsError(f"The coverage of prediction sets must be between 0 and 1, found {coverage}.")
    rank = math.ceil((len(misfits) + 1) * coverage)
    return float(np.sort(misfits)[rank - 1]) if 1 <= rank <= len(misfits) else 1.0


def prediction_sets(
    probabilities: Float[np.ndarray, "N W"], misfits: Float[np.ndarray, " L"], coverage: float
) -> Bool[np.ndarray, "N W"]:
    """Which classes are in the set of each example; the most probable one always is."""
    inside = 1 - probabilities <= set_threshold(misfits, coverage)
    inside[np.arange(len(inside)), probabilities.argmax(1)] = True
    return inside


def epoch_disagreement(
    epoch_scores: Float[Tensor, "M N W"], votes: Float[Tensor, " M"], temperature: float
) -> Float[Tensor, " N"]:
    """How much the epochs of an ensemble differ, in units of log W: 0 where they agree, 1 is the most possible.

    It is the mean divergence of the epochs' predictions from their mean. Epochs count by the size of their votes, and
    each one's scores are stretched as the sum is.
    """
    share = votes.abs() / (votes.abs().sum() + TINY)
    stretch = float(votes.sum()) / temperature
    logs = (epoch_scores * stretch).log_softmax(-1)
    mean = (share.view(-1, 1, 1) * logs.exp()).sum(0)
    divergences = (logs.exp() * (logs - (mean + TINY).log())).sum(-1)
    return (share @ divergences).clamp_min(0) / math.log(epoch_scores.shape[-1])


def _canonical_order(features: Float[np.ndarray, "S D"], labels: Int64[np.ndarray, " S"]) -> Int64[np.ndarray, " S"]:
    """Examples class by class, and inside a class by their content: sums are then rounded the same way every time."""
    keys = [(int(label), sha256(row.tobytes()).digest()) for row, label in zip(features, labels, strict=True)]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def _check_support(features: Float[np.ndarray, "S D"], labels: Int64[np.ndarray, " S"], ways: int) -> None:
    """Refuse a support set that nothing can be learned from."""
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


def _starts(count: int) -> range:
    return range(0, max(count, 1), ROWS_AT_ONCE)
