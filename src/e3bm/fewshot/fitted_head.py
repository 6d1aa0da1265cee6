"""A head fitted to features: the ensemble, its temperature and threshold, and what the support set says of itself.

Prediction is NumPy alone; torch is imported by a fit, and where examples are used together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from e3bm.array_types import Bool, Float, Int64
from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.prior.canonical import canonical_array
from e3bm.fewshot.prior.head_arrays import HeadArrays, log_sum_exp, softmax
from e3bm.progress import Progress

if TYPE_CHECKING:
    from e3bm.fewshot.prior.file import FewShotPrior

ROWS_AT_ONCE = 4096
MOST_TOGETHER = 2000
ERROR_POWER = 1.25
"""How fast errors fall with examples: of 0.8 to 1.5 it fits digits and miniImageNet's validation classes best."""
FEWEST_SEEN = 0.6  # share of the classes that examples used together should seem to be spread over
TINY = 1e-12  # keeps logarithms of shares finite
LEVELS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Shares of examples of the classes that score below a threshold."""
LEAST_RECALL, STRANGEST = 0.5, 1 - LEVELS[0]
"""The least recall that can be set, and the largest unknown score: a larger recall does what this one does."""


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
        check_recall(self.recall)


@dataclass(frozen=True, eq=False)
class PredictionArrays:
    """What a head finds for N examples; ``Prediction`` is the record of one of them."""

    probabilities: Float[np.ndarray, "N W"]
    labels: Int64[np.ndarray, " N"]
    unknown: Bool[np.ndarray, " N"]
    known_scores: Float[np.ndarray, " N"]
    disagreement: Float[np.ndarray, " N"]
    unknown_scores: Float[np.ndarray, " N"]
    """The share of examples of the classes that look less strange, from 0.02 to 0.995."""
    sets: Bool[np.ndarray, "N W"] | None = None
    """Which classes are in each example's prediction set; None where no coverage was asked for."""


@dataclass(frozen=True)
class Suspicion:
    """A support example that looks like another class: its position, both classes, the odds against its label."""

    position: int
    label: int
    looks_like: int
    odds: float


@dataclass(frozen=True, eq=False)
class FittedHead:
    """Predicts features; a plain record that can be saved, compared and shared between threads."""

    ensemble: HeadArrays
    trust: Mapping[str, Any]
    """What the prior says about confidence, as ``TrustPrior.as_json`` gives it and a model file keeps it."""
    temperature: float
    """What scores are divided by before they become probabilities."""
    levels: Float[np.ndarray, " L"]
    """The known score below which each share of ``LEVELS`` of the examples of the classes should lie."""
    misfits: Float[np.ndarray, " L"]
    """1 - probability of the right class, for every left-out example."""
    left_out_accuracy: float | None
    """Share of left-out examples that were predicted right by fits with one example of their class less; None without
    any. ``expected_accuracy`` is about new examples."""
    suspicions: tuple[Suspicion, ...]
    """Doubtful labels; positions are those of the examples as they were given."""
    options: FitOptions
    counts: tuple[int, ...]
    """The number of examples of every class."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "misfits", canonical_array(self.misfits, np.float64))
        object.__setattr__(self, "levels", canonical_array(self.levels, np.float64))

    @property
    def threshold(self) -> float:
        """The known score below which an example is called unknown."""
        return float(np.interp(1 - self.options.recall, LEVELS, self.levels))

    def score_levels(self) -> Float[np.ndarray, " L"]:
        """The levels with flat stretches stretched by a hair, so that every score has one share."""
        found: np.ndarray = self.levels + 1e-9 * np.arange(len(LEVELS))
        return found

    def with_recall(self, recall: float | None) -> "FittedHead":
        """The same head with another threshold for unknown examples; None leaves it as it is."""
        return self if recall is None else replace(self, options=replace(self.options, recall=recall))

    def reordered(self, order: Sequence[int]) -> "FittedHead":
        """The same head with its classes, and the examples with them, in another order: the place of each before."""
        counts = tuple(self.counts[place] for place in order)
        before, after = np.cumsum((0, *self.counts)).tolist(), np.cumsum((0, *counts)).tolist()
        now = {place: new for new, place in enumerate(order)}
        suspicions = tuple(
            replace(
                one,
                position=one.position - before[one.label] + after[now[one.label]],
                label=now[one.label],
                looks_like=now[one.looks_like],
            )
            for one in self.suspicions
        )
        return replace(self, ensemble=self.ensemble.reordered(order), suspicions=suspicions, counts=counts)

    def why_all_classes(self, coverage: float, noun: str = "photo") -> str | None:
        """Why prediction sets of this coverage hold every class; None where they need not. ``noun`` is one example."""
        if set_threshold(self.misfits, coverage) < 1:
            return None
        needed, tested = math.ceil(coverage / (1 - coverage) - 1e-9), len(self.misfits)
        outcome = f"so a set of {100 * coverage:g} % contains every class"
        if not self.options.calibrated:
            return f"Without calibration predictions are not tested, {outcome}; fit with calibrate=True."
        needs = f"at least {needed:,} {noun}s in classes of two or more are needed, or a lower coverage."
        if max(self.counts) == 1:
            return f"With one {noun} per class there is nothing to test predictions on, {outcome}; {needs}"
        return f"Predictions can be tested on only {tested:,} {noun}{'s' * (tested != 1)}, {outcome}; {needs}"

    def why_separate(self, features: Float[np.ndarray, "N D"], noun: str = "photo") -> str | None:
        """Why examples that are to be used together are answered separately; None where they are not."""
        if not is_one_sided(self.scores(features).argmax(-1), len(self.counts)):
            return None
        return (
            f"The {noun}s seem to show only one or a few of the {len(self.counts)} classes, so they were answered "
            "separately: used together, they would be spread over all classes."
        )

    @property
    def expected_accuracy(self) -> float | None:
        """The accuracy to expect on new examples: left-out accuracy, corrected for the example that was missing.

        With n examples of a class errors are about ((n - 1) / n)^ERROR_POWER of what they are with one less;
        docs/classifier_tables.md has how near that comes. None where a class has one example: nothing is known of it.
        """
        if self.left_out_accuracy is None or min(self.counts) < 2:
            return None
        counts = np.array(self.counts)
        ratio = float(np.average((1 - 1 / counts) ** ERROR_POWER, weights=counts))
        return 1 - (1 - self.left_out_accuracy) * ratio

    def predict(self, features: Float[np.ndarray, "N D"], coverage: float | None = None) -> PredictionArrays:
        """Everything that can be said of examples; prediction sets only where their ``coverage`` is given."""
        with np.errstate(all="ignore"):  # whoever asks sees what is not finite
            parts = [self._predict_rows(features[start : start + ROWS_AT_ONCE]) for start in _starts(len(features))]
        found = PredictionArrays(*[np.concatenate(part) for part in zip(*parts, strict=True)])
        if coverage is None:
            return found
        return replace(found, sets=prediction_sets(found.probabilities, self.misfits, coverage))

    def predict_together(self, features: Float[np.ndarray, "N D"], prior: "FewShotPrior") -> PredictionArrays:
        """The same for examples that are used together (SIB+E3BM): each prediction depends on the other examples.

        More than MOST_TOGETHER are used in parts of about the same size. Whether an example is unknown and how far
        the epochs disagree does not depend on the others. Where most of the examples seem to be of a few of the
        classes they are answered alone: using them together would spread them over all classes.
        """
        import torch

        from e3bm.fewshot.prior.ensemble_head import EnsembleHead
        from e3bm.fewshot.prior.together import scores_together

        alone, head = self.predict(features), EnsembleHead.of(self.ensemble)
        if is_one_sided(alone.labels, len(self.counts)):
            return alone
        learner = prior.learner_together(head.centre.dtype)
        parts = []
        for rows in np.array_split(features, max(1, -(-len(features) // MOST_TOGETHER))):
            if len(rows):
                scores = scores_together(learner, head, head.space(torch.from_numpy(rows)))
                parts.append((scores / self.temperature).softmax(-1).numpy())
        found = np.concatenate(parts) if parts else alone.probabilities
        return replace(alone, probabilities=found, labels=found.argmax(-1))

    def scores(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N W"]:
        """Calibrated scores, whose softmax is the probabilities: one matrix product."""
        parts = []
        for start in _starts(len(features)):
            placed = self.ensemble.space(features[start : start + ROWS_AT_ONCE])
            parts.append(self.ensemble.scores(placed) / self.temperature)
        return np.concatenate(parts)

    def probabilities(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N W"]:
        """Calibrated probabilities."""
        return softmax(self.scores(features))

    def sets(self, features: Float[np.ndarray, "N D"], coverage: float) -> Bool[np.ndarray, "N W"]:
        """Prediction sets that should hold the right class in this share of cases."""
        return prediction_sets(self.probabilities(features), self.misfits, coverage)

    def _predict_rows(self, features: Float[np.ndarray, "N D"]) -> tuple[np.ndarray, ...]:
        """The arrays of PredictionArrays, in their order, for rows that fit into memory together."""
        head = self.ensemble
        placed = head.space(features)
        scores = head.scores(placed) / self.temperature
        known = known_scores(log_sum_exp(scores), head.distances(placed), head.facts, self.trust["known"])
        disagreement = epoch_disagreement(head.epoch_scores(placed), head.votes, self.temperature)
        found = softmax(scores)
        # The share of known examples that look less strange.
        unknown = 1 - np.interp(known, self.score_levels(), LEVELS)
        return found, found.argmax(-1), known < self.threshold, known, disagreement, unknown


def known_scores(
    energy: Float[np.ndarray, " N"],
    distances: Float[np.ndarray, " N"],
    facts: Float[np.ndarray, " F"],
    weights: Sequence[float],
) -> Float[np.ndarray, " N"]:
    """How much examples look like any of the classes: ``TrustPrior.known_score`` in NumPy."""
    both = np.stack([energy, distances], -1)
    products = (both[:, :, None] * facts).reshape(len(both), 2 * len(facts))
    design = np.concatenate([np.ones_like(both[:, :1]), both, np.tile(facts, (len(both), 1)), products], -1)
    found: np.ndarray = design @ np.asarray(weights, dtype=energy.dtype)
    return found


def fit_head(
    prior: "FewShotPrior",
    features: Float[np.ndarray, "S D"],
    labels: Int64[np.ndarray, " S"],
    ways: int,
    options: FitOptions,
    progress: Progress | None = None,
    weights: Float[np.ndarray, " S"] | None = None,
) -> FittedHead:
    """Adapt a prior to a support set. The order of the examples does not matter, to the last bit.

    An example of weight 2 counts as two equal ones, and is left out as one.
    """
    import torch

    from e3bm.fewshot import trust as judged
    from e3bm.fewshot.forking import survive_forks
    from e3bm.fewshot.prior.ensemble_head import fit_ensemble_head, working_precision
    from e3bm.fewshot.prior.leave_one_out import leave_one_out

    survive_forks()
    _check_support(features, labels, ways)
    order = _canonical_order(features, labels)
    amounts = None if weights is None else torch.from_numpy(weights[order])
    support = working_precision(torch.from_numpy(np.ascontiguousarray(features[order])))
    targets = torch.from_numpy(labels[order])
    learner, trust = prior.learner(support.dtype), prior.trust
    ensemble = fit_ensemble_head(learner, support, targets, ways, unit_length=options.unit_length, weights=amounts)
    held_out = (
        leave_one_out(
            learner, support, targets, ways, unit_length=options.unit_length, progress=progress, weights=amounts
        )
        if options.calibrated
        else None
    )
    counts = np.bincount(labels, minlength=ways)
    present = np.bincount(labels, weights, minlength=ways).astype(np.float64)
    margin = judged.support_margin(ensemble.scores(ensemble.space(support)), targets)
    shots, facts = judged.mean_shots(present), judged.temperature_facts(ensemble, margin, present, held_out)
    temperature = judged.choose_temperature(facts, trust)
    known = judged.known_facts(facts, ensemble, temperature, shots, held_out, trust)
    levels = judged.known_levels(known, ways, shots, trust)
    misfits, accuracy = np.empty(0), None
    if held_out is not None:
        found = (held_out.scores / temperature).softmax(-1).double()
        misfits = np.sort(1 - found.gather(-1, held_out.labels.unsqueeze(-1)).squeeze(-1).numpy())
        accuracy = float((found.argmax(-1) == held_out.labels).double().mean())
    doubtful = (
        judged.suspicious_labels(ensemble.space(support), targets, ways, trust, amounts) if options.calibrated else []
    )
    suspicions = [Suspicion(int(order[one.position]), one.label, one.looks_like, one.odds) for one in doubtful]
    return FittedHead(
        ensemble=HeadArrays.of(ensemble),
        trust=trust.as_json(),
        temperature=temperature,
        levels=levels,
        misfits=misfits,
        left_out_accuracy=accuracy,
        suspicions=tuple(suspicions),
        options=options,
        counts=tuple(int(count) for count in counts),
    )


def check_recall(recall: float) -> None:
    """Refuse a share of known examples that no threshold can be set for."""
    if not LEAST_RECALL <= recall < 1:
        hint = f"; write {recall / 100:g} for {recall:g} %" if 50 <= recall < 100 else ""
        raise SettingsError(
            f"The recall of known examples is at least {LEAST_RECALL} and less than 1, found {recall:g}{hint}."
        )


def check_coverage(coverage: float) -> None:
    """Refuse a coverage that no prediction set can have."""
    if not 0 < coverage < 1:
        hint = f"; write {coverage / 100:g} for {coverage:g} %" if 1 < coverage < 100 else ""
        raise SettingsError(f"The coverage of prediction sets lies between 0 and 1, found {coverage:g}{hint}.")


def set_threshold(misfits: Float[np.ndarray, " N"], coverage: float) -> float:
    """The largest misfit (1 - probability) that a class in a prediction set may have.

    With n exchangeable examples the rank ceil((n + 1) coverage) keeps the promise; without enough left-out examples
    every class is in the set. Left-out examples are predicted by fits that miss them, which should make the sets a
    little larger than needed.
    """
    check_coverage(coverage)
    rank = math.ceil((len(misfits) + 1) * coverage)
    return float(np.sort(misfits)[rank - 1]) if 1 <= rank <= len(misfits) else 1.0


def prediction_sets(
    probabilities: Float[np.ndarray, "N W"], misfits: Float[np.ndarray, " L"], coverage: float
) -> Bool[np.ndarray, "N W"]:
    """Which classes are in the set of each example; the most probable one always is."""
    inside = 1 - probabilities <= set_threshold(misfits, coverage)
    inside[np.arange(len(inside)), probabilities.argmax(1)] = True
    return inside


def is_one_sided(labels: Int64[np.ndarray, " N"], ways: int) -> bool:
    """Whether predicted labels are spread over much fewer classes than there could be among them."""
    if len(labels) < 2:
        return False
    shares = np.bincount(labels, minlength=ways) / len(labels)
    seen = np.exp(-(shares * np.log(np.maximum(shares, TINY))).sum())
    return bool(seen < FEWEST_SEEN * min(ways, len(labels)))


def epoch_disagreement(
    epoch_scores: Float[np.ndarray, "M N W"], votes: Float[np.ndarray, " M"], temperature: float
) -> Float[np.ndarray, " N"]:
    """How much the epochs of an ensemble differ, in units of log W: 0 where they agree, 1 is the most possible.

    It is the mean divergence of the epochs' predictions from their mean. Epochs count by the size of their votes, and
    each one's scores are stretched as the sum is.
    """
    share = np.abs(votes) / (np.abs(votes).sum() + TINY)
    stretched = epoch_scores * (float(votes.sum()) / temperature)
    logs = stretched - log_sum_exp(stretched)[..., None]
    shares = np.exp(logs)
    mean = (share[:, None, None] * shares).sum(0)
    divergences = (shares * (logs - np.log(mean + TINY))).sum(-1)
    found: np.ndarray = np.maximum(share @ divergences, 0) / math.log(epoch_scores.shape[-1])
    return found


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
