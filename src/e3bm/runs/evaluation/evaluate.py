"""A model on a list of episodes: everything that is reported about it comes from here."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import Learner
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.metrics import (
    METRICS,
    Reliability,
    accuracies,
    mean_and_interval,
    negative_log_likelihoods,
)

CALIBRATED = "calibrated_nll"  # the name of the NLL with a fitted factor on the scores


@runtime_checkable
class TaskSource(Protocol):
    """Tasks by number."""

    @property
    def prefetch(self) -> int:
        """How many batches are worth making ahead."""
        ...

    def load(self, numbers: Sequence[int]) -> TaskBatch:
        """The tasks with these numbers."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """What a model did on N episodes, in the order of their numbers; without an inner loop there is no M."""

    accuracy: Float[Tensor, " N"]
    metrics: dict[str, Float[Tensor, " N"]]
    """Every metric of `METRICS`, by name."""
    reliability: Reliability
    rates: Float[Tensor, " M"] | None
    weights: Float[Tensor, " M"] | None
    epoch_accuracy: Float[Tensor, " M"] | None
    seconds: float
    factor: float | None = None
    """Factor on the scores that was fitted elsewhere; with it the metric calibrated_nll is there, and the next."""
    calibrated: Reliability | None = None

    def summary(self) -> dict[str, float]:
        """Mean accuracy with its interval, the mean of every other metric, and the calibration error."""
        mean, interval = mean_and_interval(self.accuracy)
        others = {name: float(values.mean()) for name, values in self.metrics.items()}
        if self.factor is not None and self.calibrated is not None:
            others |= {"calibrated_ece": self.calibrated.expected_calibration_error(), "score_factor": self.factor}
        return {"accuracy": mean, "ci": interval, **others, "ece": self.reliability.expected_calibration_error()}


def evaluate(
    learner: Learner,
    tasks: TaskSource,
    episodes: int,
    *,
    batch: int = 16,
    engine: Engine | None = None,
    every_epoch: bool = False,
    epochs: int | None = None,
    factor: float | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Adapt to episodes 0..n-1 and predict; the share of each process is its own, the result is the same for all.

    With a ``factor`` NLL and reliability are also measured with scores times that factor.
    """
    engine = engine or Engine()
    numbers = engine.mine(range(episodes))
    was_training, started = learner.training, time.perf_counter()
    learner.eval()
    columns: list[Tensor] = []
    reliability, calibrated, inner_epochs = Reliability.empty(), Reliability.empty(), 0
    with torch.no_grad():
        for start in range(0, len(numbers), batch):
            part = tasks.load(numbers[start : start + batch])
            trace: Trace = learner(engine.place(part), every_epoch=every_epoch, epochs=epochs)
            assert part.query_labels is not None
            scores = trace.scores.cpu()
            reliability += Reliability.of(scores, part.query_labels)
            if factor is not None:
                calibrated += Reliability.of(factor * scores.double(), part.query_labels)
            columns.append(_columns(trace, scores, part.query_labels, factor))
            inner_epochs = trace.rates.shape[1] if isinstance(trace, AdaptationTrace) else 0
            advance(min((start + batch) * engine.world, episodes))
    learner.train(was_training)
    # A process without episodes does not know how many numbers the others have for each; the leader always does.
    inner_epochs = engine.agree(inner_epochs)
    measured = [*METRICS] if factor is None else [*METRICS, CALIBRATED]
    first, curves = 1 + len(measured), 3 if every_epoch else 2
    mine = torch.cat(columns) if columns else torch.zeros(0, first + inner_epochs * curves).double()
    rows = engine.gather(mine, episodes)
    means = list(rows[:, first:].mean(0).split(inner_epochs)) if inner_epochs else [None, None, None]
    return Evaluation(
        accuracy=rows[:, 0],
        metrics={name: rows[:, 1 + place] for place, name in enumerate(measured)},
        reliability=_of_all(reliability, engine),
        rates=means[0],
        weights=means[1],
        epoch_accuracy=means[2] if every_epoch else None,
        seconds=time.perf_counter() - started,
        factor=factor,
        calibrated=None if factor is None else _of_all(calibrated, engine),
    )


def _of_all(mine: Reliability, engine: Engine) -> Reliability:
    """The answers of all processes together."""
    return Reliability(*engine.gather(mine.sums().unsqueeze(0), engine.world).sum(0))


def _columns(trace: Trace, scores: Tensor, labels: Tensor, factor: float | None) -> Float[Tensor, "T columns"]:
    """Per task: accuracy, every metric and, where there is an inner loop, rates, weights and each epoch's accuracy."""
    parts = [accuracies(scores, labels), *(metric(scores, labels) for metric in METRICS.values())]
    if factor is not None:
        parts.append(negative_log_likelihoods(factor * scores.double(), labels))
    columns = [torch.stack([part.double() for part in parts], 1)]
    if isinstance(trace, AdaptationTrace):
        columns += [trace.rates.cpu().double(), trace.weights.cpu().double()]
        if trace.epoch_scores is not None:
            spread = labels.unsqueeze(1).expand(-1, trace.epoch_scores.shape[1], -1)
            columns.append(accuracies(trace.epoch_scores.cpu(), spread))
    return torch.cat(columns, 1)
