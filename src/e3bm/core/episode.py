"""The records that travel: what an episode is asked to be, which images it holds, and its tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from e3bm.errors import DataError, SettingsError


@dataclass(frozen=True)
class EpisodeSpec:
    """How many classes, labelled examples and queries an episode has.

    ``shots`` is a number, or a range ``(low, high)`` from which every class draws its own (uneven shots).
    ``query_shares`` is the a of the Dirichlet(a) distribution by which the classes of an episode share its queries, the
    larger the more evenly; None: every class has the same number.
    """

    ways: int = 5
    shots: int | tuple[int, int] = 1
    queries: int = 15
    query_shares: int | None = None

    def __post_init__(self) -> None:
        low, high = self.shot_range
        if self.ways < 2:
            raise SettingsError(f"An episode needs at least 2 ways, found {self.ways}.")
        if not 1 <= low <= high:
            raise SettingsError(
                f"Shots must be 1 or more, or a range (low, high) with low <= high; found {self.shots}."
            )
        if self.queries < 1:
            raise SettingsError(f"An episode needs at least 1 query per class, found {self.queries}.")
        if self.query_shares is not None and self.query_shares < 1:
            raise SettingsError(
                f"Classes share queries by Dirichlet(a) with a whole number a of 1 or more, found {self.query_shares}."
            )

    @property
    def shot_range(self) -> tuple[int, int]:
        return (self.shots, self.shots) if isinstance(self.shots, int) else self.shots

    @property
    def most_queries(self) -> int:
        """How many queries one class may have: its own number, or all of the episode where shares are drawn."""
        return self.queries if self.query_shares is None else self.ways * self.queries


@runtime_checkable
class BoundToWays(Protocol):
    """A part of a learner that may be made for tasks of so many classes only."""

    def check_ways(self, ways: int) -> None:
        """Refuse tasks of another number of classes, and say why."""
        ...


@dataclass(frozen=True)
class EpisodeIndex:
    """One episode as integers only: positions of images in a packed data set, and labels 0..W-1.

    ``classes[w]`` is the data set's own class number of way ``w``. Support is padded only when episodes are stacked.
    """

    classes: tuple[int, ...]
    support: tuple[int, ...]
    support_labels: tuple[int, ...]
    query: tuple[int, ...]
    query_labels: tuple[int, ...]

    @property
    def ways(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class TaskBatch:
    """T tasks as tensors: images or features, batch first.

    A support example whose mask is False is padding and has no influence (uneven shots). ``support_classes`` and
    ``query_classes`` number each example's class among all classes of the split that the tasks are drawn from, 0..C-1
    in the data set's own order, for methods that also learn the training classes; padding repeats a real number.
    """

    support: Float[Tensor, "T S *shape"]
    support_labels: Int[Tensor, "T S"]
    query: Float[Tensor, "T Q *shape"]
    query_labels: Int[Tensor, "T Q"] | None
    ways: int
    support_mask: Bool[Tensor, "T S"] | None = None
    support_classes: Int[Tensor, "T S"] | None = None
    query_classes: Int[Tensor, "T Q"] | None = None

    def __post_init__(self) -> None:
        if self.support.ndim < 3 or self.query.ndim != self.support.ndim:
            raise DataError(
                "Support and query must be [tasks, examples, ...features or image]; "
                f"found shapes {tuple(self.support.shape)} and {tuple(self.query.shape)}."
            )
        if self.support.shape[0] != self.query.shape[0] or self.support.shape[2:] != self.query.shape[2:]:
            raise DataError(
                "Support and query must agree in the number of tasks and in feature shape; "
                f"found {tuple(self.support.shape)} and {tuple(self.query.shape)}."
            )
        if not self.support.is_floating_point() or self.support.dtype != self.query.dtype:
            raise DataError(
                "Support and query must be floating-point numbers of one type; "
                f"found {self.support.dtype} and {self.query.dtype}."
            )
        if 0 in self.query.shape[:2]:
            raise DataError(f"There is nothing to predict: the query has shape {tuple(self.query.shape)}.")
        _check_labels("support", self.support_labels, self.support, self.ways)
        if self.query_labels is not None:
            _check_labels("query", self.query_labels, self.query, self.ways)
        _check_classes("support", self.support_classes, self.support)
        _check_classes("query", self.query_classes, self.query)
        mask = self.support_mask
        if mask is not None and mask.shape != self.support_labels.shape:
            raise DataError(
                f"The support mask has shape {tuple(mask.shape)}, but the labels have "
                f"{tuple(self.support_labels.shape)}; they must be equal."
            )
        seen = torch.zeros(len(self), self.ways, dtype=torch.long, device=self.support_labels.device)
        seen.scatter_add_(1, self.support_labels.long(), (self.mask).long())
        if bool((seen == 0).any()):
            task, way = (int(i) for i in torch.nonzero(seen == 0)[0])
            raise DataError(f"Task {task} has no support example of class {way}; every class needs one or more.")
        for name, values in (("support", self.support), ("query", self.query)):
            # A finite sum proves finite terms at a tenth of the cost; only a sum that overflowed needs the close look.
            if not bool(torch.isfinite(values.detach().sum())) and not bool(torch.isfinite(values).all()):
                raise DataError(f"The {name} holds NaN or infinite numbers; features and pixels must be finite.")

    def __len__(self) -> int:
        return self.support.shape[0]

    @property
    def mask(self) -> Bool[Tensor, "T S"]:
        """True where a support example is real."""
        if self.support_mask is None:
            return torch.ones_like(self.support_labels, dtype=torch.bool)
        return self.support_mask

    def tasks(self, start: int, stop: int) -> "TaskBatch":
        """The tasks from start up to stop, as a batch of their own."""
        return self._each(lambda values: values[start:stop])

    def to(self, device: torch.device) -> "TaskBatch":
        """The same tasks on this device."""
        return self._each(lambda values: values.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "TaskBatch":
        """A batch whose every tensor is the changed one of this batch."""
        optional = lambda values: None if values is None else change(values)
        return TaskBatch(
            change(self.support),
            change(self.support_labels),
            change(self.query),
            optional(self.query_labels),
            self.ways,
            optional(self.support_mask),
            optional(self.support_classes),
            optional(self.query_classes),
        )


def _check_labels(name: str, labels: Tensor, examples: Tensor, ways: int) -> None:
    if labels.shape != examples.shape[:2]:
        raise DataError(
            f"The {name} has {tuple(examples.shape[:2])} examples but labels of shape {tuple(labels.shape)}."
        )
    if labels.dtype != torch.long:
        raise DataError(f"The {name} labels must be 64-bit integers, found {labels.dtype}.")
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= ways):
        raise DataError(
            f"The {name} labels must lie in 0..{ways - 1} for {ways} ways; "
            f"found {int(labels.min())}..{int(labels.max())}."
        )


def _check_classes(name: str, classes: Tensor | None, examples: Tensor) -> None:
    if classes is None:
        return
    if classes.shape != examples.shape[:2]:
        raise DataError(
            f"The {name} has {tuple(examples.shape[:2])} examples but class numbers of shape {tuple(classes.shape)}."
        )
    if classes.dtype != torch.long:
        raise DataError(f"The {name} class numbers must be 64-bit integers, found {classes.dtype}.")
    if classes.numel() and int(classes.min()) < 0:
        raise DataError(f"The {name} class numbers must count from 0, found {int(classes.min())}.")
