"""Psi: the hyperprior learner that turns a task into rates and weights (Eqs. 10-12 of the paper).

A hyperprior is first bound to a batch of tasks, which lets it project its input weights onto each task once, and then
called once per epoch. Recurrent state is handed in and out, never kept.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.core.context import Basis, Context, Observation, Reading
from e3bm.core.familiarity import Familiarity
from e3bm.core.schedules import AFFINE_MIXINGS, MIXINGS, SCALED, Schedule
from e3bm.errors import SettingsError

CONSTRAINT_MARGIN = 1e-6


class Memory(NamedTuple):
    """Recurrent state of one batch of tasks."""

    hidden: Float[Tensor, "T H"]
    cell: Float[Tensor, "T H"]


class Line(NamedTuple):
    """What becomes of a generator's outputs: offset + slope Delta. Most mixing rules (Eq. 12) are of this form."""

    offset: Float[Tensor, "M R"]
    slope: Float[Tensor, "M R"]


@runtime_checkable
class BoundGenerator(Protocol):
    """A generator that has seen its tasks; what it gives is offset + slope Delta."""

    def see(self, observation: Observation) -> Tensor:
        """What it reads of an epoch."""
        ...

    def value(self, epoch: int, seen: Tensor, memory: Memory | None) -> tuple[Float[Tensor, "T R"], Memory | None]:
        """The values of one epoch; the memory handed in at the first epoch is None."""
        ...

    def values(self, seen: Tensor) -> Float[Tensor, "M T R"]:
        """The values of all epochs, of what was seen of them, stacked."""
        ...


class Generator(nn.Module, ABC):
    """A network from context to the differences Delta alpha, Delta v."""

    context: Context

    def check_ways(self, ways: int) -> None:
        """Refuse tasks of another number of classes than its context is made for."""
        self.context.check_ways(ways)

    @abstractmethod
    def bind(self, basis: Basis, epochs: int, line: Line) -> BoundGenerator:
        """See the tasks once."""

    def parts(self) -> list[list[nn.Parameter]]:
        """Its parameters: one list for each value that it generates, or a single list where they share them."""
        return [list(self.parameters())]


class FcGenerator(Generator):
    """Eq. 10: every epoch has its own linear layer. Alpha and v have parameters of their own, entry by entry."""

    def __init__(self, context: Context, epochs: int, outputs: int, *, zero_start: bool = False) -> None:
        super().__init__()
        self.context, self.epochs = context, epochs
        self.weight = nn.ParameterList(torch.zeros(epochs, context.size) for _ in range(outputs))
        self.bias = nn.ParameterList(torch.zeros(epochs) for _ in range(outputs))
        if not zero_start:
            for weight in self.weight:
                nn.init.normal_(weight, std=(2.0 / context.size) ** 0.5)  # kaiming over the inputs

    def bind(self, basis: Basis, epochs: int, line: Line) -> "BoundFc":
        if epochs != self.epochs:
            raise SettingsError(
                f"The hyperprior has layers for {self.epochs} epochs but {epochs} were asked for; "
                f"train and test with the same number."
            )
        # A line of a linear layer is a linear layer: nothing is left to do at the epochs.
        weight = torch.stack(list(self.weight), 1) * line.slope.unsqueeze(-1)
        bias = torch.addcmul(line.offset, torch.stack(list(self.bias), 1), line.slope)
        return BoundFc(self.context.bind(basis, weight, bias))

    def parts(self) -> list[list[nn.Parameter]]:
        return [list(pair) for pair in zip(self.weight, self.bias, strict=True)]


class BoundFc:
    """An FC generator on its tasks: a reading with a group for every epoch."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.see = reading, reading.see

    def value(self, epoch: int, seen: Tensor, memory: Memory | None) -> tuple[Float[Tensor, "T R"], Memory | None]:
        return self.reading.value(epoch, seen), memory

    def values(self, seen: Tensor) -> Float[Tensor, "M T R"]:
        return self.reading.values(seen)


class LstmGenerator(Generator):
    """Eq. 11: an LSTM over epochs; with ``separate`` alpha and v have one each, with parameters of their own.

    Without ``readout`` the hidden state itself is Delta, as in the published code (hidden size 1). The cell is written
    out, because fused kernels have no second derivative.
    """

    def __init__(
        self, context: Context, outputs: int, *, hidden: int = 8, readout: bool = True, separate: bool = False
    ) -> None:
        super().__init__()
        self.context, self.hidden = context, hidden
        self.cells = outputs if separate else 1
        if not readout and self.cells * hidden != outputs:
            raise SettingsError(
                f"Without a read-out the hidden state is the output: {self.cells} cell(s) of size {hidden} cannot give "
                f"{outputs} values; use hidden={outputs // self.cells} or a read-out."
            )
        cells = range(self.cells)
        self.input_weight = nn.ParameterList(torch.empty(4, hidden, context.size) for _ in cells)
        self.hidden_weight = nn.ParameterList(torch.empty(4, hidden, hidden) for _ in cells)
        self.input_bias = nn.ParameterList(torch.zeros(4, hidden) for _ in cells)
        self.hidden_bias = nn.ParameterList(torch.zeros(4, hidden) for _ in cells)
        for cell in cells:
            nn.init.uniform_(self.input_weight[cell], -(context.size**-0.5), context.size**-0.5)
            nn.init.uniform_(self.hidden_weight[cell], -(hidden**-0.5), hidden**-0.5)
        # The read-out of a cell sees that cell only; it starts at zero, so Delta does too.
        rows = outputs // self.cells
        self.readout = nn.ParameterList(torch.zeros(rows, hidden) for _ in cells) if readout else None

    def bind(self, basis: Basis, epochs: int, line: Line) -> "BoundLstm":
        width = self.cells * self.hidden
        # All cells become one of width cells*hidden whose recurrent matrix is block diagonal; gates come first.
        rows = torch.stack(list(self.input_weight), 1).view(1, 4 * width, -1)
        biases = [first + second for first, second in zip(self.input_bias, self.hidden_bias, strict=True)]
        recurrent = torch.cat([_blocks(weight[gate] for weight in self.hidden_weight) for gate in range(4)])
        readout = None if self.readout is None else _blocks(self.readout).mT
        return BoundLstm(
            self.context.bind(basis, rows, torch.stack(biases, 1).view(1, 4 * width)), recurrent, readout, line
        )

    def parts(self) -> list[list[nn.Parameter]]:
        lists = [self.input_weight, self.hidden_weight, self.input_bias, self.hidden_bias]
        lists += [] if self.readout is None else [self.readout]
        return [[each[cell] for each in lists] for cell in range(self.cells)]


class BoundLstm:
    """An LSTM on its tasks."""

    def __init__(
        self,
        reading: Reading,
        recurrent: Float[Tensor, "gates H"],
        readout: Float[Tensor, "H R"] | None,
        line: Line,
    ) -> None:
        self.reading, self.see, self.recurrent, self.readout, self.line = reading, reading.see, recurrent, readout, line
        self._offsets, self._slopes = line.offset.unbind(0), line.slope.unbind(0)

    def value(self, epoch: int, seen: Tensor, memory: Memory | None) -> tuple[Float[Tensor, "T R"], Memory | None]:
        gates = self.reading.value(0, seen)
        if memory is not None:
            gates = torch.addmm(gates, memory.hidden, self.recurrent.mT)
        enter, forget, candidate, leave = gates.chunk(4, -1)
        cell = enter.sigmoid() * candidate.tanh()
        if memory is not None:
            cell = torch.addcmul(cell, forget.sigmoid(), memory.cell)
        hidden = leave.sigmoid() * cell.tanh()
        delta = hidden if self.readout is None else hidden @ self.readout
        return torch.addcmul(self._offsets[epoch], delta, self._slopes[epoch]), Memory(hidden, cell)

    def values(self, seen: Tensor) -> Float[Tensor, "M T R"]:
        gates = self.reading.values(seen)
        # torch's own recurrence, once differentiable: the gates are its inputs and pass through unchanged.
        unchanged = torch.eye(gates.shape[-1], dtype=gates.dtype, device=gates.device)
        zero = gates.new_zeros(1, gates.shape[1], self.recurrent.shape[1])
        hidden, *_ = torch.lstm(gates, (zero, zero), (unchanged, self.recurrent), False, 1, 0.0, False, False, False)
        delta = hidden if self.readout is None else hidden @ self.readout
        return torch.addcmul(self.line.offset.unsqueeze(1), delta, self.line.slope.unsqueeze(1))


def _blocks(matrices: Iterable[Tensor]) -> Tensor:
    """The matrices along the diagonal."""
    found: Tensor = torch.block_diag(*matrices)
    return found


@dataclass(frozen=True)
class BoundHyperprior:
    """Psi for one batch of tasks; pairs are for rate and weight."""

    rates: Float[Tensor, " M"]
    weights: Float[Tensor, " M"]
    silent: tuple[bool, ...]
    tasks: int
    generator: BoundGenerator | None
    generated: tuple[bool, bool]
    scaled: bool
    constrained: tuple[bool, bool]
    familiarity: Familiarity | None = None

    def see(self, observation: Observation) -> Tensor | None:
        """What is read of an epoch, before its update."""
        return None if self.generator is None else self.generator.see(observation)

    def __call__(
        self, epoch: int, seen: Tensor | None, memory: Memory | None
    ) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"] | None, Memory | None]:
        """The rate and the weight of an epoch; a weight of None is a constant zero."""
        found: tuple[Tensor, ...] = ()
        if self.generator is not None:
            assert seen is not None
            values, memory = self.generator.value(epoch, seen, memory)
            found = values.unbind(-1)
            self._look(epoch, seen)
        rate = self._rate(self._base_rates[epoch], found, epoch)
        return rate, None if self.silent[epoch] else self._weight(self._base_weights[epoch], found, epoch), memory

    def all_epochs(self, seen: Sequence[Tensor | None]) -> tuple[Float[Tensor, "T M"], Float[Tensor, "T M"]]:
        """Rates and weights of all epochs at once, of what was seen of them."""
        found: tuple[Tensor, ...] = ()
        if self.generator is not None:
            every = [each for each in seen if each is not None]
            found = self.generator.values(torch.stack(every)).unbind(-1)
            self._look(0, every[0])
        return self._rate(self.rates.unsqueeze(-1), found).mT, self._weight(self.weights.unsqueeze(-1), found).mT

    def _look(self, epoch: int, seen: Tensor) -> None:
        """Before the first update: how much these tasks are like those of training."""
        if epoch == 0 and self.familiarity is not None:
            self._trust[:] = [self.familiarity(seen)]

    def _bounded(self, difference: Float[Tensor, "*M T"]) -> Float[Tensor, "*M T"]:
        """Delta, less of it where tasks are unlike those of training."""
        return difference if self.familiarity is None else self._trust[0] * difference

    def _trusted(self, value: Tensor, which: int, epoch: int | None) -> Tensor:
        """The value, or one between it and the fixed one where tasks are unlike those of training."""
        if self.familiarity is None or not self.familiarity.known:
            return value
        fixed = (self.familiarity.rates, self.familiarity.weights)[which].to(value.dtype)
        fixed = fixed.unsqueeze(-1) if epoch is None else fixed[epoch]
        return fixed + self._trust[0] * (value - fixed)

    def _rate(self, base: Tensor, found: tuple[Tensor, ...], epoch: int | None = None) -> Float[Tensor, "*M T"]:
        if self.generated[0]:
            # The exponent is bounded before it is raised: far away it may be anything.
            base = (
                self._trusted(base, 0, epoch) * self._bounded(found[0]).exp()
                if self.scaled
                else self._trusted(found[0], 0, epoch)
            )
        return self._finish(base, 0)

    def _weight(self, base: Tensor, found: tuple[Tensor, ...], epoch: int | None = None) -> Float[Tensor, "*M T"]:
        return self._finish(self._trusted(found[-1], 1, epoch) if self.generated[1] else base, 1)

    def _finish(self, value: Tensor, which: int) -> Float[Tensor, "*M T"]:
        if self.constrained[which]:
            # Straight through: the value is clamped, its gradient is not, so that a start at 0 or 1 can move.
            value = value + (value.clamp(CONSTRAINT_MARGIN, 1 - CONSTRAINT_MARGIN) - value).detach()
        return value if self.generated[which] else value.expand(*value.shape[:-1], self.tasks)

    @cached_property
    def _trust(self) -> list[Tensor]:
        """The trust in each task, once the first epoch was seen."""
        return []

    @cached_property
    def _base_rates(self) -> tuple[Tensor, ...]:
        return self.rates.unbind(0)

    @cached_property
    def _base_weights(self) -> tuple[Tensor, ...]:
        return self.weights.unbind(0)


class Hyperprior(nn.Module):
    """Two schedules and, where one of them is generated, the network that moves it."""

    def __init__(
        self,
        rate: Schedule,
        weight: Schedule,
        generator: Generator | None = None,
        *,
        mixing: str = "scaled",
        fractions: tuple[float, float] = (1e-4, 1e-4),
        constrained: bool = False,
        familiarity: Familiarity | None = None,
    ) -> None:
        """``fractions`` are lambda_1 and lambda_2 of Eq. 12; ``constrained`` keeps trained values inside (0, 1).

        ``familiarity`` takes generated values back to those before training on tasks unlike those of training.
        """
        super().__init__()
        if mixing not in MIXINGS:
            raise SettingsError(f"There is no mixing rule '{mixing}'; known: {', '.join(MIXINGS)}.")
        if (generator is None) == (rate.generated or weight.generated):
            raise SettingsError("A generator is needed exactly when the rate or the weight schedule is generated.")
        self.rate, self.weight, self.generator = rate, weight, generator
        self.mixing, self.fractions, self.constrained = mixing, fractions, constrained
        self.familiarity = familiarity

    def bind(self, basis: Basis, epochs: int) -> BoundHyperprior:
        """See a batch of tasks once."""
        rates, weights = self.rate.base(epochs), self.weight.base(epochs)
        return BoundHyperprior(
            rates=rates,
            weights=weights,
            silent=self.weight.silent(epochs),
            tasks=basis.mask.shape[0],
            generator=None
            if self.generator is None
            else self.generator.bind(basis, epochs, self._line(rates, weights)),
            generated=(self.rate.generated, self.weight.generated),
            scaled=self.mixing not in AFFINE_MIXINGS,
            constrained=(self.constrained and self.rate.trained, self.constrained and self.weight.trained),
            familiarity=self.familiarity,
        )

    def parameter_kinds(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the learning rate they have; a joint generator counts as that of the rates."""
        kinds: dict[str, list[nn.Parameter]] = {"psi_rate": [], "psi_weight": []}
        if self.generator is not None:
            generated = [kind for kind, each in zip(kinds, (self.rate, self.weight), strict=True) if each.generated]
            kinds |= dict(zip(generated, self.generator.parts(), strict=False))
        for kind, schedule in (("base_rate", self.rate), ("base_weight", self.weight)):
            assert isinstance(schedule, nn.Module)
            kinds[kind] = list(schedule.parameters())
        return kinds

    def _line(self, rates: Float[Tensor, " M"], weights: Float[Tensor, " M"]) -> Line:
        """Eq. 12 for the generated schedules; scaled rates are not a line and get Delta itself."""
        pairs = []
        for base, schedule, fraction in zip((rates, weights), (self.rate, self.weight), self.fractions, strict=True):
            if not schedule.generated:
                continue
            if self.mixing in AFFINE_MIXINGS:
                of_base, of_delta = AFFINE_MIXINGS[self.mixing](fraction)
                pairs.append((of_base * base, torch.full_like(base, of_delta)))
            elif base is weights:
                pairs.append((base, base if self.mixing == SCALED else torch.ones_like(base)))
            else:
                pairs.append((torch.zeros_like(base), torch.ones_like(base)))
        offsets, slopes = zip(*pairs, strict=True)
        return Line(torch.stack(offsets, 1), torch.stack(slopes, 1))
