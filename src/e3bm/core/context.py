"""What the hyperprior sees of a task: embeddings and a summary of the gradient (inputs of Eqs. 10 and 11).

Gradients are handed around as coefficients over a few vectors of the task, because plain gradient descent on a head
never leaves their span. A summary that is linear in the gradient is therefore read by projecting the generator's input
weights onto these vectors once per task: inside the epoch loop nothing of feature size is touched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from e3bm.core.episode import BoundToWays
from e3bm.errors import SettingsError


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


# Inside every root and logarithm: small enough to vanish beside real features, large enough to keep gradients finite.
TINY = 1e-12

STATS_INDUCTIVE = 4
STATS_TRANSDUCTIVE = 6


@dataclass(frozen=True)
class Basis:
    """The vectors in which a task's gradients are written, and its embeddings; computed only if somebody asks.

    ``centred``: the hyperprior sees embeddings minus their own mean over features; means are centred after the fact.
    """

    vectors: Callable[[], Float[Tensor, "T N D"]] | None  # None: gradients are written in their own coordinates
    support: Callable[[], Float[Tensor, "T S E"]]
    query: Callable[[], Float[Tensor, "T Q E"]]
    mask: Bool[Tensor, "T S"]
    centred: bool = False

    def project(self, rows: Float[Tensor, "G R D"]) -> Float[Tensor, "G T R N"]:
        """Inner products of groups of rows with the vectors."""
        groups, count, features = rows.shape
        if self.vectors is None:
            return rows.unsqueeze(1).expand(-1, self.mask.shape[0], -1, -1)
        vectors = self.vectors()
        _check_size("gradients", features, vectors.shape[-1])
        # One matrix product for all groups, tasks and vectors.
        products = rows.reshape(-1, features) @ vectors.reshape(-1, features).mT
        return products.view(groups, count, *vectors.shape[:2]).transpose(1, 2)

    def dense(self, coefficients: Float[Tensor, "T N W"]) -> Float[Tensor, "T D W"]:
        """The gradient itself."""
        return coefficients if self.vectors is None else self.vectors().mT @ coefficients

    def support_mean(self) -> Float[Tensor, "T E"]:
        """Mean embedding of the real support examples."""
        embeddings = self.support()
        return self._centre(torch.bmm(self._share(embeddings.dtype).unsqueeze(1), embeddings).squeeze(1))

    def support_square(self) -> Float[Tensor, " T"]:
        """Mean squared length of the real support embeddings."""
        squares = self._centre(self.support()).square().sum(-1)
        return (self._share(squares.dtype) * squares).sum(1)

    def query_mean(self) -> Float[Tensor, "T E"]:
        """Mean embedding of the queries."""
        return self._centre(self.query().mean(1))

    def detached(self) -> "Basis":
        """The same task with no gradient flowing back into it."""
        cut = lambda part: lambda: part().detach()
        vectors = None if self.vectors is None else cut(self.vectors)
        return Basis(vectors, cut(self.support), cut(self.query), self.mask, self.centred)

    def _share(self, dtype: torch.dtype) -> Float[Tensor, "T S"]:
        real = self.mask.to(dtype)
        return real / real.sum(1, keepdim=True)

    def _centre(self, embeddings: Float[Tensor, "*N E"]) -> Float[Tensor, "*N E"]:
        return embeddings - embeddings.mean(-1, keepdim=True) if self.centred else embeddings


@runtime_checkable
class Summary(Protocol):
    """How a gradient becomes a fixed number of inputs."""

    @property
    def size(self) -> int:
        """How many numbers the summary has."""
        ...

    def bind(
        self, basis: Basis, rows: Float[Tensor, "G R C"], constant: Float[Tensor, "G T R"], detach: bool
    ) -> Reading:
        """Reads constant + rows @ summary for each group of rows."""
        ...


@dataclass(frozen=True)
class ClassMean:
    """Mean over classes of the head gradient. Identically zero for a linear softmax head: sum_c (p_c - y_c) = 0."""

    features: int

    @property
    def size(self) -> int:
        return self.features

    def bind(
        self, basis: Basis, rows: Float[Tensor, "G R C"], constant: Float[Tensor, "G T R"], detach: bool
    ) -> TaskReading:
        see = lambda observation: _cut(observation.coefficients(), detach).mean(-1, keepdim=True)
        return TaskReading(see, basis.project(rows), constant)


@dataclass(frozen=True)
class Flat:
    """The whole head gradient, class after class: bound to the number and the order of classes."""

    features: int
    ways: int

    @property
    def size(self) -> int:
        return self.features * self.ways

    def bind(
        self, basis: Basis, rows: Float[Tensor, "G R C"], constant: Float[Tensor, "G T R"], detach: bool
    ) -> TaskReading:
        groups, count, _ = rows.shape
        projected = basis.project(rows.reshape(groups, count * self.ways, self.features))  # G T (R W) N
        matrix = projected.reshape(groups, projected.shape[1], count, -1)

        def see(observation: Observation) -> Tensor:
            coefficients = _cut(observation.coefficients(), detach)
            self.check_ways(coefficients.shape[-1])
            return coefficients.mT.flatten(1).unsqueeze(-1)  # class after class

        return TaskReading(see, matrix, constant)

    def check_ways(self, ways: int) -> None:
        if ways != self.ways:
            raise SettingsError(
                f"The flat summary is made for {self.ways} ways, but the tasks have {ways}; use the summary 'stats', "
                f"which works for any number."
            )


@dataclass(frozen=True)
class Rms:
    """Root mean square over classes (for convolutional features also over positions); not made of Gram products."""

    features: int
    positions: int = 1

    @property
    def size(self) -> int:
        return self.features // self.positions

    def bind(
        self, basis: Basis, rows: Float[Tensor, "G R C"], constant: Float[Tensor, "G T R"], detach: bool
    ) -> SharedReading:
        def see(observation: Observation) -> Tensor:
            dense = _cut(basis.dense(observation.coefficients()), detach)
            _check_size("gradients", self.features, dense.shape[1])
            channels = dense.view(dense.shape[0], self.size, -1)
            return (channels.square().mean(-1) + TINY).sqrt()

        return SharedReading(see, rows, constant)


@dataclass(frozen=True)
class Stats:
    """A few scalars that mean the same for any number of ways, shots and features.

    Log gradient norm, training loss, log squared length of the mean support embedding (= mean of the Gram matrix), log
    mean squared length (= mean of its diagonal); transductive: mean entropy of the query predictions and entropy of
    their mean.
    """

    transductive: bool = False

    @property
    def size(self) -> int:
        return STATS_TRANSDUCTIVE if self.transductive else STATS_INDUCTIVE

    @property
    def seen(self) -> int:
        """How many of them are seen anew at every epoch; the others are fixed for the task."""
        return self.size - 2

    def bind(
        self, basis: Basis, rows: Float[Tensor, "G R C"], constant: Float[Tensor, "G T R"], detach: bool
    ) -> SharedReading:
        mean, diagonal = basis.support_mean().square().sum(-1), basis.support_square()
        fixed = torch.stack([(mean + TINY).log(), (diagonal + TINY).log()], -1)  # T 2
        constant = constant + _cut(fixed, detach) @ rows[..., 2:4].mT

        def see(observation: Observation) -> Tensor:
            # Rounding can leave a vanishing gradient with a negative square.
            parts = [(observation.squared_norm().clamp_min(0) + TINY).log() / 2, observation.loss()]
            if self.transductive:
                parts += query_entropies(observation.query_scores())
            return _cut(torch.stack(parts, -1), detach)

        return SharedReading(see, torch.cat([rows[..., :2], rows[..., 4:]], -1), constant)


@dataclass(frozen=True)
class Context:
    """The concatenation that enters the generator: mean embeddings (if ``embedding`` > 0 features) and a summary."""

    summary: Summary
    embedding: int = 0
    transductive: bool = False
    detach: bool = False

    @property
    def size(self) -> int:
        return self.embedding * (2 if self.transductive else 1) + self.summary.size

    def check_ways(self, ways: int) -> None:
        """Refuse tasks of another number of classes than the summary is made for."""
        if isinstance(self.summary, BoundToWays):
            self.summary.check_ways(ways)

    def bind(self, basis: Basis, rows: Float[Tensor, "G R C"], bias: Float[Tensor, "G R"]) -> Reading:
        """Reads bias + rows @ context at an epoch, for each group of rows."""
        if self.detach:
            basis = basis.detached()
        constant = bias.unsqueeze(1).expand(-1, basis.mask.shape[0], -1)
        if self.embedding:
            parts = [basis.support_mean()]
            if self.transductive:
                parts.append(basis.query_mean())
            _check_size("embeddings", self.embedding, parts[0].shape[-1])
            embeddings = torch.cat(parts, -1)
            groups, count, _ = rows.shape
            weight = rows[..., : embeddings.shape[-1]].reshape(groups * count, -1)
            constant = constant + (embeddings @ weight.mT).view(-1, groups, count).transpose(0, 1)
        return self.summary.bind(basis, rows[..., self.size - self.summary.size :], constant, self.detach)


def query_entropies(scores: Float[Tensor, "T Q W"]) -> list[Tensor]:
    """Mean entropy of the predictions, and entropy of the mean prediction."""
    logs = scores.log_softmax(-1)
    each = -(logs.exp() * logs).sum(-1).mean(-1)
    mean = logs.exp().mean(1)
    return [each, -(mean * (mean + TINY).log()).sum(-1)]


def _check_size(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise SettingsError(
            f"The hyperprior's context is made for {what} of {expected} features, but the task's have {found}; build "
            f"it with the encoder's feature size."
        )


def _cut(values: Tensor, detach: bool) -> Tensor:
    return values.detach() if detach else values
