"""Tasks whose queries come as they come: many or few, and not the same number of every class."""

from collections.abc import Sequence

import numpy as np
import torch

from e3bm.episode import TaskBatch
from e3bm.fewshot.feature_pools import FeaturePool, TaskShapes, draw_tasks, query_labels

WHOLE = 0.5  # share of batches with the same number of queries of every class
CONCENTRATIONS = (0.5, 2.0, 10.0)


def draw_batches(
    pools: Sequence[FeaturePool], shapes: TaskShapes, tasks: int, random: np.random.Generator
) -> TaskBatch:
    """Tasks for learning from unlabelled examples."""
    batch = draw_tasks(pools, shapes, tasks, random)
    return batch if random.random() < WHOLE else uneven_queries(batch, random)


def uneven_queries(batch: TaskBatch, random: np.random.Generator, count: int | None = None) -> TaskBatch:
    """Some of the queries, drawn with another preference for each class and task; ``count`` unset: any number."""
    labels = query_labels(batch)
    tasks, queries = labels.shape
    if count is None:
        count = min(queries, int(np.exp(random.uniform(0, np.log(queries + 1)))))
    kept = []
    for own in labels.numpy():
        preference = random.dirichlet(np.full(batch.ways, random.choice(CONCENTRATIONS)))[own] + 1e-6
        kept.append(random.choice(queries, count, replace=False, p=preference / preference.sum()))
    places = torch.from_numpy(np.stack(kept))
    rows = torch.arange(tasks).unsqueeze(-1)
    return TaskBatch(
        batch.support,
        batch.support_labels,
        batch.query[rows, places],
        labels[rows, places],
        batch.ways,
        batch.support_mask,
    )
