"""The `stats` summary of a head on principal axes: scalars that mean the same for any ways, shots and features."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.core.context import Basis, Observation, Reader
from e3bm.errors import SettingsError

TASK_STATS = 7


@runtime_checkable
class ObservedScalars(Protocol):
    """An observation that hands out its scalars."""

    def scalars(self) -> Float[Tensor, "T C"]: ...


@dataclass(frozen=True)
class TaskStats:
    """Gradient norm and loss as in `stats`, in units of the task, and what its ways, shots and scatter are."""

    scalars: int = TASK_STATS

    @property
    def size(self) -> int:
        return self.scalars

    def bind(
        self, basis: Basis, rows: Float[Tensor, "G R C"], constant: Float[Tensor, "G T R"], detach: bool
    ) -> tuple[Reader, ...]:
        def read(row: Tensor, start: Tensor) -> Reader:
            def reader(observation: Observation) -> Tensor:
                if not isinstance(observation, ObservedScalars):
                    raise SettingsError("The summary of a few-shot prior needs the head on principal axes.")
                scalars = observation.scalars()
                return torch.addmm(start, scalars.detach() if detach else scalars, row.mT)

            return reader

        return tuple(read(row, start) for row, start in zip(rows.unbind(0), constant.unbind(0), strict=True))
