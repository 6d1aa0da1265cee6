"""What may be seen of an epoch, and the linear maps of it that the generator's input weights become for given tasks."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Observation(Protocol):
    """One epoch of one batch of tasks, as far as a hyperprior may look; each part is computed when asked for."""

    def coefficients(self) -> Float[Tensor, "T N W"]:
        """The gradient of the head's weights over the basis."""
        ...

    def squared_norm(self) -> Float[Tensor, " T"]:
        """Squared length of the whole gradient."""
        ...

    def loss(self) -> Float[Tensor, " T"]:
        """Training loss before the update."""
        ...

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        """Scores of the queries before the update."""
        ...


@runtime_checkable
class Reading(Protocol):
    """A summary bound to tasks: what is seen of an epoch, and constant + rows @ summary as a linear map of it."""

    def see(self, observation: Observation) -> Tensor:
        """The numbers of one epoch that the map reads."""
        ...

    def value(self, group: int, seen: Tensor) -> Float[Tensor, "T R"]:
        """The map of one group of rows."""
        ...

    def values(self, seen: Tensor) -> Float[Tensor, "M T R"]:
        """All epochs at once, of what was seen of them, stacked; group m is for epoch m, a single group for all."""
        ...


class TaskReading:
    """A map that differs from task to task, because rows were projected onto the task's vectors."""

    def __init__(
        self,
        see: Callable[[Observation], Float[Tensor, "T X 1"]],
        matrix: Float[Tensor, "G T R X"],
        constant: Float[Tensor, "G T R"],
    ) -> None:
        self.see, self.matrix, self.constant = see, matrix, constant.unsqueeze(-1)
        # unbind, not indexing: its backward pass stacks once instead of filling a zero tensor per epoch.
        self._groups = tuple(zip(self.constant.unbind(0), matrix.unbind(0), strict=True))

    def value(self, group: int, seen: Float[Tensor, "T X 1"]) -> Float[Tensor, "T R"]:
        return torch.baddbmm(*self._groups[group], seen).squeeze(-1)

    def values(self, seen: Float[Tensor, "M T X 1"]) -> Float[Tensor, "M T R"]:
        if len(self.matrix) > 1:
            flat = (part.flatten(0, 1) for part in (self.constant.expand(len(seen), -1, -1, -1), self.matrix, seen))
            return torch.baddbmm(*flat).view(*seen.shape[:2], -1)
        # One product per task: epochs are columns.
        return torch.baddbmm(self.constant[0], self.matrix[0], seen.squeeze(-1).permute(1, 2, 0)).permute(2, 0, 1)


class SharedReading:
    """A map that is the same for all tasks."""

    def __init__(
        self,
        see: Callable[[Observation], Float[Tensor, "T X"]],
        matrix: Float[Tensor, "G R X"],
        constant: Float[Tensor, "G T R"],
    ) -> None:
        self.see, self.matrix, self.constant = see, matrix.mT, constant
        self._groups = tuple(zip(constant.unbind(0), self.matrix.unbind(0), strict=True))

    def value(self, group: int, seen: Float[Tensor, "T X"]) -> Float[Tensor, "T R"]:
        start, rows = self._groups[group]
        return torch.addmm(start, seen, rows)

    def values(self, seen: Float[Tensor, "M T X"]) -> Float[Tensor, "M T R"]:
        return self.constant + seen @ self.matrix
