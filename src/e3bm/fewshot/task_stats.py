"""The `stats` summary of a head on principal axes: scalars that mean the same for any ways, shots and features."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from e3bm.core.context import Basis
from e3bm.core.readings import Observation, SharedReading
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
    ) -> SharedReading:
        def see(observation: Observation) -> Tensor:
            if not isinstance(observation, ObservedScalars):
                raise SettingsError("The summary of a few-shot prior needs the head on principal axes.")
            scalars = observation.scalars()
            return scalars.detach() if detach else scalars

        return SharedReading(see, rows, constant)
