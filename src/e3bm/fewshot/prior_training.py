"""Meta-training of a prior on tasks of every shape: the loss is the likelihood of the queries, in units of log W."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from e3bm.core.learner import MetaLearner
from e3bm.core.losses import meta_loss
from e3bm.core.trace import AdaptationTrace
from e3bm.episode import TaskBatch
from e3bm.errors import DivergenceError
from e3bm.evaluation.metrics import accuracies, negative_log_likelihoods
from e3bm.fewshot.feature_pools import FeaturePool, TaskShapes, draw_tasks, query_labels, task_batch
from e3bm.settings import OptimiserSettings
from e3bm.training.optimisers import build_optimiser, schedule_factor

GROUPS = 4  # shapes in a meta-batch: one alone would pull the prior its way
CLIP = 0.5
WARM_UP = 50
VALIDATION_SHAPES = ((5, 1), (10, 2), (10, 5), (15, 10))
VALIDATION_TASKS = 20

Record = Callable[[dict[str, Any]], None]


def train_prior(
    learner: MetaLearner,
    pools: Sequence[FeaturePool],
    validation: Sequence[FeaturePool],
    settings: OptimiserSettings,
    *,
    seed: int,
    shapes: TaskShapes,
    record: Record,
    every: int = 250,
    advance: Callable[[int], None] = lambda step: None,
    draw: Callable[[np.random.Generator], TaskBatch] | None = None,
) -> None:
    """Train to the last step; the records hold training loss and, for each validation pool, accuracy and likelihood."""
    random = np.random.default_rng(seed)
    optimiser = build_optimiser(learner, settings)
    draw = draw or (lambda source: draw_tasks(pools, shapes, settings.tasks, source))
    recent: list[float] = []
    for step in range(1, settings.steps + 1):
        factor = schedule_factor(settings, step - 1) * min(1.0, step / WARM_UP)
        for group in optimiser.param_groups:
            group["lr"] = group["base_lr"] * factor
        optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(GROUPS):
            batch = draw(random)
            loss = relative_loss(learner(batch), batch) / GROUPS
            loss.backward()
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(learner.parameters(), CLIP))
        if not math.isfinite(norm):
            raise DivergenceError(f"The gradient of the prior is not finite at step {step}; lower the learning rates.")
        optimiser.step()
        recent.append(total)
        advance(step)
        if step % every == 0 or step == settings.steps:
            record({"step": step, "split": "train", "loss": sum(recent) / len(recent)})
            for line in validate(learner, validation):
                record({"step": step, "split": "val", **line})
            recent = []


def relative_loss(trace: AdaptationTrace, batch: TaskBatch) -> Tensor:
    """Mean cross-entropy over log W: 1 is a guess, whatever the number of ways."""
    return meta_loss(trace.scores, query_labels(batch)) / math.log(batch.ways)


@torch.no_grad()
def validate(learner: MetaLearner, pools: Sequence[FeaturePool], seed: int = 12345) -> list[dict[str, Any]]:
    """Accuracy and likelihood on fixed tasks of every validation pool and shape."""
    lines = []
    for pool in pools:
        for most, shots in VALIDATION_SHAPES:
            ways = min(most, len(pool.members))
            queries = min(10, min(map(len, pool.members)) - shots)
            batch = task_batch(pool, VALIDATION_TASKS, ways, shots, queries, np.random.default_rng(seed))
            scores, labels = learner(batch).scores, query_labels(batch)
            lines.append(
                {
                    "pool": pool.name,
                    "ways": ways,
                    "shots": shots,
                    "accuracy": float(accuracies(scores, labels).mean()),
                    "nll": float(negative_log_likelihoods(scores, labels).mean()),
                }
            )
    return lines
