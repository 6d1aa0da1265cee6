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
from e3bm.runs.evaluation.metrics import Reliability, accuracies, mean_and_interval, negative_log_likelihoods


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
    """What a model did on N episodes, in the order of their numbers."""

    accuracy: Float[Tensor, " N"]
    nll: Float[Tensor, " N"]
    reliability: Reliability
    rates: Float[Tensor, " M"]  # M is 0 for a learner without an inner loop
    weights: Float[Tensor, " M"]
    epoch_accuracy: Float[Tensor, " M"] | None
    seconds: float

    def summary(self) -> dict[str, float]:
        """Mean accuracy, its interval, mean NLL and calibration error."""
        mean, interval = mean_and_interval(self.accuracy)
        return {
            "accuracy": mean,
            "ci": interval,
            "nll": float(self.nll.mean()),
            "ece": self.reliability.expected_calibration_error(),
        }


def evaluate(
    learner: Learner,
    tasks: TaskSource,
    episodes: int,
    *,
    batch: int = 16,
    engine: Engine | None = None,
    every_epoch: bool = False,
    epochs: int | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Adapt to episodes 0..n-1 and predict; the share of each process is its own, the result is the same for all."""
    engine = engine or Engine()
    numbers = engine.mine(range(episodes))
    was_training, started = learner.training, time.perf_counter()
    learner.eval()
    columns: list[Tensor] = []
    reliability, inner_epochs = Reliability.empty(), 0
    with torch.no_grad():
        for start in range(0, len(numbers), batch):
            part = tasks.load(numbers[start : start + batch])
            trace: Trace = learner(engine.place(part), every_epoch=every_epoch, epochs=epochs)
            assert part.query_labels is not None
            scores = trace.scores.cpu()
            reliability += Reliability.of(scores, part.query_labels)
            columns.append(_columns(trace, scores, part.query_labels))
            inner_epochs = trace.rates.shape[1] if isinstance(trace, AdaptationTrace) else 0
            advance(min((start + batch) * engine.world, episodes))
    learner.train(was_training)
    # A process without episodes does not know how many numbers the others have for each; the leader always does.
    inner_epochs = engine.agree(inner_epochs)
    mine = torch.cat(columns) if columns else torch.zeros(0, 2 + inner_epochs * (3 if every_epoch else 2)).double()
    rows = engine.gather(mine, episodes)
    means = rows[:, 2:].mean(0)
    return Evaluation(
        accuracy=rows[:, 0],
        nll=rows[:, 1],
        reliability=Reliability(*engine.gather(reliability.sums().unsqueeze(0), engine.world).sum(0)),
        rates=means[:inner_epochs],
        weights=means[inner_epochs : 2 * inner_epochs],
        epoch_accuracy=means[2 * inner_epochs :] if every_epoch else None,
        seconds=time.perf_counter() - started,
    )


def _columns(trace: Trace, scores: Tensor, labels: Tensor) -> Float[Tensor, "T columns"]:
    parts = [accuracies(scores, labels).unsqueeze(1), negative_log_likelihoods(scores, labels).unsqueeze(1)]
    if not isinstance(trace, AdaptationTrace):
        return torch.cat(parts, 1)
    parts += [trace.rates.cpu().double(), trace.weights.cpu().double()]
    if trace.epoch_scores is not None:
        spread = labels.unsqueeze(1).expand(-1, trace.epoch_scores.shape[1], -1)
        parts.append(accuracies(trace.epoch_scores.cpu(), spread))
    return torch.cat(parts, 1)
