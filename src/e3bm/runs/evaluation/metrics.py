"""Accuracy with its confidence interval, calibration, paired differences, and the list of what else is measured.

A new metric is one function from scores and labels to a number per task, in `METRICS`; `report/tables.py` has the
columns in which metrics are shown.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from e3bm.runs.result import Bins

BINS = 15
Z95 = 1.96


def mean_and_interval(values: Float[Tensor, " N"]) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval: 1.96 population standard deviations over sqrt(n)."""
    return float(values.mean()), float(Z95 * values.std(correction=0) / len(values) ** 0.5)


def paired_difference(values: Float[Tensor, " N"], others: Float[Tensor, " N"]) -> tuple[float, float]:
    """Mean difference over the same episodes, and its 95 % interval."""
    return mean_and_interval(values - others)


def accuracies(scores: Float[Tensor, "*B Q W"], labels: Int[Tensor, "*B Q"]) -> Float[Tensor, "*B"]:
    """Share of right answers, in percent."""
    return 100.0 * (scores.argmax(-1) == labels).double().mean(-1)


def negative_log_likelihoods(scores: Float[Tensor, "T Q W"], labels: Int[Tensor, "T Q"]) -> Float[Tensor, " T"]:
    """Mean -log p(right class) per task."""
    return -scores.double().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1).mean(-1)


Metric = Callable[[Tensor, Tensor], Tensor]
METRICS: dict[str, Metric] = {"nll": negative_log_likelihoods}
"""What is measured in every episode beside the accuracy, by the name that a result has for it."""


@dataclass(frozen=True)
class Reliability:
    """How often predictions of some confidence are right, in bins of equal width."""

    confidence: Float[Tensor, " B"]  # summed
    correct: Float[Tensor, " B"]
    count: Float[Tensor, " B"]

    @classmethod
    def empty(cls) -> "Reliability":
        """Of no predictions."""
        return cls(*torch.zeros(3, BINS, dtype=torch.double))

    @classmethod
    def of(cls, scores: Float[Tensor, "T Q W"], labels: Int[Tensor, "T Q"]) -> "Reliability":
        confidence, predicted = scores.double().softmax(-1).flatten(0, 1).max(-1)
        right = (predicted == labels.flatten()).double()
        place = (confidence * BINS).long().clamp(max=BINS - 1)
        total = lambda values: torch.zeros(BINS, dtype=torch.double).index_add(0, place, values)
        return cls(total(confidence), total(right), total(torch.ones_like(right)))

    def __add__(self, other: "Reliability") -> "Reliability":
        return Reliability(self.confidence + other.confidence, self.correct + other.correct, self.count + other.count)

    def sums(self) -> Float[Tensor, "3 B"]:
        """Confidence, correct and count, one below the other."""
        return torch.stack([self.confidence, self.correct, self.count])

    def expected_calibration_error(self) -> float:
        """Mean gap between confidence and accuracy, weighted by how often a bin is used, in percent."""
        return float(100.0 * (self.confidence - self.correct).abs().sum() / self.count.sum())

    def bins(self) -> Bins:
        """Means instead of sums, as a result holds them."""
        used = self.count.clamp(min=1)
        return Bins(
            confidence=tuple((self.confidence / used).tolist()),
            accuracy=tuple((self.correct / used).tolist()),
            count=tuple(self.count.tolist()),
        )
