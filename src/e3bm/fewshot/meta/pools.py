"""Tables of features with class labels, and random tasks drawn from them: what a prior is meta-trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from e3bm.core.episode import TaskBatch
from e3bm.errors import DataError

EVEN_SHARE = 0.5  # share of batches with the same number of queries of every class
CONCENTRATIONS = (0.5, 2.0, 10.0)  # of the Dirichlet distribution from which uneven queries are drawn


@dataclass(frozen=True, eq=False)
class FeaturePool:
    """Features of the classes of one split of one data set, by one encoder."""

    name: str
    features: Float[np.ndarray, "N D"]
    labels: Int64[np.ndarray, " N"]
    members: list[Int64[np.ndarray, " _"]] = field(init=False)

    def __post_init__(self) -> None:
        members = [np.flatnonzero(self.labels == label) for label in np.unique(self.labels)]
        if len(members) < 2 or min(map(len, members)) < 2:
            raise DataError(f"The features '{self.name}' need two or more classes with two or more examples each.")
        object.__setattr__(self, "members", members)


@dataclass(frozen=True)
class TaskShapes:
    """The range of tasks: numbers are drawn anew for every batch, small ones more often than large ones."""

    most_ways: int = 30
    most_shots: int = 15
    queries: int = 80
    uneven: float = 0.4
    projected: float = 0.25

    def ways(self, random: np.random.Generator, classes: int) -> int:
        return _log_uniform(random, 2, min(self.most_ways, classes))

    def shots(self, random: np.random.Generator, examples: int) -> int:
        return _log_uniform(random, 1, min(self.most_shots, examples - 1))


def draw_tasks(pools: Sequence[FeaturePool], shapes: TaskShapes, tasks: int, random: np.random.Generator) -> TaskBatch:
    """Tasks of one pool and one number of ways; where shots are uneven every class has its own number."""
    pool = pools[int(random.integers(len(pools)))]
    ways = shapes.ways(random, len(pool.members))
    fewest = min(map(len, pool.members))
    shots = shapes.shots(random, fewest)
    uneven = random.random() < shapes.uneven
    # Large tasks have fewer queries of each class, so that batches cost about the same.
    queries = int(np.clip(shapes.queries // ways, 2, fewest - shots))
    batch = task_batch(pool, tasks, ways, shots, queries, random, uneven=uneven)
    return _projected(batch, random) if random.random() < shapes.projected else batch


def task_batch(
    pool: FeaturePool,
    tasks: int,
    ways: int,
    shots: int,
    queries: int,
    random: np.random.Generator,
    *,
    uneven: bool = False,
) -> TaskBatch:
    """Tasks of a given shape from one pool."""
    support = np.empty((tasks, ways, shots), np.int64)
    query = np.empty((tasks, ways, queries), np.int64)
    mask = np.ones((tasks, ways, shots), bool)
    for task in range(tasks):
        for way, label in enumerate(random.choice(len(pool.members), ways, replace=False)):
            drawn = random.permutation(pool.members[label])[: shots + queries]
            support[task, way], query[task, way] = drawn[:shots], drawn[shots:]
    if uneven:
        mask = np.arange(shots) < random.integers(1, shots + 1, (tasks, ways, 1))
    rows = lambda places: torch.from_numpy(pool.features[places.reshape(tasks, -1)]).float()
    labels = lambda count: torch.arange(ways).repeat_interleave(count).expand(tasks, -1).contiguous()
    return TaskBatch(
        rows(support), labels(shots), rows(query), labels(queries), ways, torch.from_numpy(mask.reshape(tasks, -1))
    )


def _projected(batch: TaskBatch, random: np.random.Generator) -> TaskBatch:
    """The same tasks seen through a random matrix: features of another size, with less in them."""
    features = batch.support.shape[-1]
    size = int(np.exp(random.uniform(np.log(8), np.log(max(9, features)))))
    matrix = torch.from_numpy(random.standard_normal((features, size)) / size**0.5).float()
    project = lambda values: values @ matrix
    return TaskBatch(
        project(batch.support),
        batch.support_labels,
        project(batch.query),
        batch.query_labels,
        batch.ways,
        batch.support_mask,
    )


def _log_uniform(random: np.random.Generator, low: int, high: int) -> int:
    return min(high, int(np.exp(random.uniform(np.log(low), np.log(high + 1)))))


def query_labels(batch: TaskBatch) -> Tensor:
    """The query labels, which drawn tasks always have."""
    assert batch.query_labels is not None
    return batch.query_labels


def draw_batches(
    pools: Sequence[FeaturePool], shapes: TaskShapes, tasks: int, random: np.random.Generator
) -> TaskBatch:
    """Tasks for learning from unlabelled examples: many or few queries, and not the same number of every class."""
    batch = draw_tasks(pools, shapes, tasks, random)
    return batch if random.random() < EVEN_SHARE else uneven_queries(batch, random)


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
