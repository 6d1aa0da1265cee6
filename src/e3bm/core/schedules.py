"""Learning rates alpha_1..M and ensemble weights v_1..M: the rows of the paper's ablations are pairs of these.

A schedule owns the base values alpha' or v'. Which of them also listen to a generator is ``generated``'s answer.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.errors import SettingsError

# Eq. 12: how much of the base value and how much of Delta makes the value, for a given lambda.
AFFINE_MIXINGS: dict[str, Callable[[float], tuple[float, float]]] = {
    # The published code: the base value, nudged.
    "residual": lambda fraction: (1.0, fraction),
    # As printed with lambda and 1 - lambda exchanged.
    "convex": lambda fraction: (1 - fraction, fraction),
    # As printed: with lambda = 1e-4 the base value all but disappears.
    "literal": lambda fraction: (fraction, 1 - fraction),
}
# Ours: alpha = alpha' exp(Delta), v = v' (1 + Delta). Delta = 0 is exactly the base value, and a rate keeps its sign.
SCALED = "scaled"
# Ours where v' is zero for some epochs, which a factor could never change: alpha = alpha' exp(Delta), v = v' + Delta.
SHIFTED = "shifted"
MIXINGS = (*AFFINE_MIXINGS, SCALED, SHIFTED)


@runtime_checkable
class Schedule(Protocol):
    """One number per epoch, the same for all tasks unless it is generated."""

    generated: bool
    trained: bool

    def base(self, epochs: int) -> Float[Tensor, " M"]:
        """The base values of the epochs."""
        ...

    def silent(self, epochs: int) -> tuple[bool, ...]:
        """Where the value is a zero that can never change, so that a vote need not be computed."""
        ...


class Constant(nn.Module):
    """(a4) The same value at every epoch."""

    generated = False
    trained = False
    value: Tensor

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(float(value)))

    def base(self, epochs: int) -> Float[Tensor, " M"]:
        return self.value.expand(epochs)

    def silent(self, epochs: int) -> tuple[bool, ...]:
        return (float(self.value) == 0.0,) * epochs


class Equal(nn.Module):
    """(v4) Every epoch has the same vote, 1/M."""

    generated = False
    trained = False
    one: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.tensor(1.0), persistent=False)

    def base(self, epochs: int) -> Float[Tensor, " M"]:
        return (self.one / epochs).expand(epochs)

    def silent(self, epochs: int) -> tuple[bool, ...]:
        return (False,) * epochs


class LastOnly(nn.Module):
    """(v5) Only the last epoch votes: what every baseline does."""

    generated = False
    trained = False
    one: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.tensor(1.0), persistent=False)

    def base(self, epochs: int) -> Float[Tensor, " M"]:
        return torch.cat([self.one.new_zeros(epochs - 1), self.one.view(1)])

    def silent(self, epochs: int) -> tuple[bool, ...]:
        return (True,) * (epochs - 1) + (False,)


class Learned(nn.Module):
    """(v2, a2) Base values trained by the meta-loss, the same for all tasks."""

    generated = False
    trained = True

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(_vector(values))

    def base(self, epochs: int) -> Float[Tensor, " M"]:
        return _exactly(self.values, epochs)

    def silent(self, epochs: int) -> tuple[bool, ...]:
        return (False,) * epochs


class Frozen(nn.Module):
    """(v3, a3) Values learned elsewhere and not trained any more."""

    generated = False
    trained = False
    values: Tensor

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("values", _vector(values))

    def base(self, epochs: int) -> Float[Tensor, " M"]:
        return _exactly(self.values, epochs)

    def silent(self, epochs: int) -> tuple[bool, ...]:
        return tuple(value == 0.0 for value in _exactly(self.values, epochs).tolist())


class Generated(Learned):
    """(v1, a1) Base values, learned, that a generator moves for each task and epoch."""

    generated = True


def last_values(epochs: int) -> list[float]:
    """v' = (0, .., 0, 1)."""
    return [0.0] * (epochs - 1) + [1.0]


def equal_values(epochs: int) -> list[float]:
    """v' = (1/M, .., 1/M)."""
    return [1.0 / epochs] * epochs


def _vector(values: Sequence[float]) -> Tensor:
    if not len(values):
        raise SettingsError("A schedule needs at least one epoch, found none.")
    return torch.tensor([float(value) for value in values])


def _exactly(values: Tensor, epochs: int) -> Tensor:
    if len(values) != epochs:
        raise SettingsError(
            f"This schedule has values for {len(values)} epochs but {epochs} were asked for; train and test learned "
            f"schedules with the same number."
        )
    return values
