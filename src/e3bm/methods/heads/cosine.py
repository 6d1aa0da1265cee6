"""A cosine head trained by gradient descent, in Gram form: MTL's cosine classifier and SIB's.

Scores are s (cos(x, w_c) + b). Write v = s x/|x| and keep every weight as coefficients over these vectors, w = B V (if
the start lies outside their span, also over the start's own rows). With G = V V^T, the products of all vectors with all
weights are B G, |w|^2 = B.(B G), scores are q = B G/|w|, and with their derivatives R the gradient is
(R - (R.q) B/|w|)/|w|. The ensemble is the sum of v_m B_m/|w_m|: one matrix.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from e3bm.core.context import Basis
from e3bm.methods.heads.collapsed import SHORTEST, CollapsedHead, WeightedSum
from e3bm.methods.heads.labelled import LabelledSupport


class CosineState(NamedTuple):
    """A learner: coefficients over the vectors, the same for its weights at length one, 1/|w|, and all scores."""

    coefficients: Float[Tensor, "T W N"]
    unit: Float[Tensor, "T W N"]
    inverse: Float[Tensor, "T W 1"]
    scores: Float[Tensor, "T W N"]


class CosineDirection(NamedTuple):
    """A gradient as coefficients, and the logarithms of the support predictions where they were on the way."""

    coefficients: Float[Tensor, "T W N"]
    log_probabilities: Float[Tensor, "T W S"] | None


class CosineEnsemble(NamedTuple):
    """Sums of v_m B_m/|w_m| and, only where a start drifts, of v_m/|w_m|."""

    units: WeightedSum
    inverses: WeightedSum


class CosineStart(NamedTuple):
    """Theta_0: coefficients over the examples and, where it lies outside their span, over rows of its own."""

    coefficients: Float[Tensor, "T W N"]
    rows: Float[Tensor, "T W D"] | None

    @classmethod
    def outside(cls, examples: Float[Tensor, "T X D"], weight: Float[Tensor, "T W D"]) -> "CosineStart":
        """A start that the examples know nothing of."""
        one = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        return cls(functional.pad(one, (examples.shape[1], 0)).expand(len(weight), -1, -1), weight)


# Scores of the examples [T W X] -> their derivatives, and log predictions if the examples are the support.
Drive = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class CosineHead:
    """The moves of cosine heads on T tasks.

    ``examples`` are the rows whose scores ``drive`` the updates: the support with the true gradient, or the queries
    with a synthetic one. Examples, support and query have length ``scale``. ``embeddings`` (of support and query) are
    what the hyperprior sees.
    """

    def __init__(
        self,
        examples: Float[Tensor, "T X D"],
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        mask: Bool[Tensor, "T S"],
        labelled: LabelledSupport,
        start: CosineStart,
        drive: Drive,
        embeddings: tuple[Float[Tensor, "T S D"], Float[Tensor, "T Q D"]],
        *,
        scale: Float[Tensor, ""],
        shift: Float[Tensor, ""] | None,
        centred: bool,
        second_order: bool,
        factor: Float[Tensor, ""] | None = None,
    ) -> None:
        """``shift`` is s b; ``centred`` says that examples and queries lost their own mean, embeddings not yet.

        With a ``factor``, examples, support and query still have to be multiplied by it. That is done to their
        products: where features are constants, those need no derivative, and nothing of feature size is computed.
        """
        self.support, self.query, self.mask, self.labelled = support, query, mask, labelled
        self.drive, self.embeddings = drive, embeddings
        self.scale, self.shift, self.centred, self.second_order = scale, shift, centred, second_order
        self._examples, self._rows, self._factor = examples, start.rows, factor
        self.start_coefficients = start.coefficients
        self.extra = 0 if start.rows is None else start.rows.shape[1]
        self.drift: Tensor | None = None
        if not second_order:
            # Gradients are constants and so are the vectors they are written in; a start that is learned still moves
            # the weights. Its drift from the constant copy is zero and carries the derivative.
            self.start_coefficients = self.start_coefficients.detach()
            if start.rows is not None:
                self.drift = start.rows - start.rows.detach()
        gram = self._vectors_with(examples)
        if start.rows is not None:
            below = torch.cat([gram[:, examples.shape[1] :].mT, start.rows @ start.rows.mT], 1)
            gram = torch.cat([gram, below], 2)
        self.gram = gram if second_order else gram.detach()
        self.shortest = self.gram.new_tensor(SHORTEST)
        if query is examples and second_order:
            self.readout = self.gram[:, : query.shape[1]]  # the queries have met all vectors
        else:
            self.readout = self._scaled(query) @ self.vectors.mT
        self.drift_products = None if self.drift is None else self.drift @ self.vectors.mT

    @cached_property
    def vectors(self) -> Float[Tensor, "T N D"]:
        """What gradients are written in: the examples, then the rows of the start that lie outside their span."""
        examples = self._scaled(self._examples)
        vectors = examples if self._rows is None else torch.cat([examples, self._rows], 1)
        return vectors if self.second_order else vectors.detach()

    @cached_property
    def support_products(self) -> Float[Tensor, "T N S"]:
        """Vectors times support; asked for where it is not the support that drives the updates."""
        return self._vectors_with(self.support)

    def basis(self) -> Basis:
        support, query = self.embeddings
        return Basis(lambda: self.vectors, lambda: support, lambda: query, self.mask, self.centred)

    def start(self) -> CosineState:
        return self._state(self.start_coefficients, first=True)

    def empty(self) -> CosineEnsemble:
        like = self.start_coefficients
        return CosineEnsemble(WeightedSum.nothing(like), WeightedSum.nothing(like[..., :1]))

    def direction(self, state: CosineState) -> CosineDirection:
        if self.second_order:
            return self._direction(state)
        with torch.no_grad():
            return self._direction(state)

    def observe(self, state: CosineState, direction: CosineDirection) -> "CosineObservation":
        return CosineObservation(self, state, direction)

    def step(self, state: CosineState, direction: CosineDirection, rate: Float[Tensor, " T"]) -> CosineState:
        rate = rate.view(-1, 1, 1)
        return self._state(torch.addcmul(state.coefficients, direction.coefficients, rate, value=-1))

    def vote(self, ensemble: CosineEnsemble, state: CosineState, weight: Float[Tensor, " T"]) -> CosineEnsemble:
        inverses = ensemble.inverses if self.drift is None else ensemble.inverses.plus(state.inverse, weight)
        return CosineEnsemble(ensemble.units.plus(state.unit, weight), inverses)

    def replay(
        self, directions: Sequence[CosineDirection], rates: Float[Tensor, "T M"], weights: Float[Tensor, "T M"]
    ) -> CosineEnsemble:
        tasks, epochs = rates.shape
        steps = torch.stack([direction.coefficients for direction in directions], 1) * rates.view(tasks, epochs, 1, 1)
        coefficients = (self.start_coefficients.unsqueeze(1) - steps.cumsum(1)).flatten(1, 2)  # T (M W) N
        drift = None if self.drift_products is None else self.drift_products.repeat(1, epochs, 1)
        state = self._learners(coefficients, drift)
        sum_over_epochs = lambda values: torch.bmm(weights.unsqueeze(1), values.view(tasks, epochs, -1))
        total, like = weights.sum(1), self.start_coefficients
        units = WeightedSum(sum_over_epochs(state.unit).view_as(like), total)
        if self.drift is None:
            return CosineEnsemble(units, WeightedSum.nothing(like[..., :1]))
        return CosineEnsemble(units, WeightedSum(sum_over_epochs(state.inverse).view_as(like[..., :1]), total))

    def scores(self, ensemble: CosineEnsemble) -> Float[Tensor, "T Q W"]:
        units, total, _ = ensemble.units.settled()
        scores = torch.bmm(self.readout, units.mT)
        if self.drift is not None:
            scores = scores + self._scaled(self.query) @ (ensemble.inverses.settled().folded * self.drift).mT
        return scores if self.shift is None else scores + self.shift * total.view(-1, 1, 1)

    def collapse(self, ensemble: CosineEnsemble) -> CollapsedHead:
        """The one matrix whose products with x/|x| are the ensemble's scores; it is not normalised again."""
        units, total, _ = ensemble.units.settled()
        matrix = units @ self.vectors
        if self.drift is not None:
            matrix = matrix + ensemble.inverses.settled().folded * self.drift
        bias = total * (0.0 if self.shift is None else self.shift)
        bias = bias.unsqueeze(1).expand(-1, matrix.shape[1])
        return CollapsedHead(self.scale * matrix, bias, unit_length=True, centred=self.centred)

    def _scaled(self, features: Float[Tensor, "T X D"]) -> Float[Tensor, "T X D"]:
        return features if self._factor is None else self._factor * features

    def _vectors_with(self, others: Float[Tensor, "T X D"]) -> Float[Tensor, "T N X"]:
        """Products of all vectors with examples, support or queries."""
        products = self._examples @ others.mT
        if self._factor is not None:
            products = self._factor.square() * products
        if self._rows is None:
            return products
        with_rows = self._rows @ others.mT
        return torch.cat([products, with_rows if self._factor is None else self._factor * with_rows], 1)

    def _state(self, coefficients: Float[Tensor, "T W N"], *, first: bool = False) -> CosineState:
        return self._learners(coefficients, self.drift_products, first=first)

    def _learners(
        self, coefficients: Float[Tensor, "T L N"], drift: Float[Tensor, "T L N"] | None, *, first: bool = False
    ) -> CosineState:
        """The states of any number of weight vectors a task."""
        products = twice = torch.bmm(coefficients, self.gram)
        if drift is not None:
            products = products + drift
            twice = products + drift  # |w + drift|^2 = |w|^2 + 2 w.drift
        square = (coefficients * twice).sum(-1, keepdim=True)
        if first:
            # Rounding can make nothing negative. Later lengths only grow: updates are orthogonal to the weights.
            square = square.clamp_min(0)
        inverse = (square + self.shortest).rsqrt()
        return CosineState(coefficients, coefficients * inverse, inverse, products * inverse)

    def _direction(self, state: CosineState) -> CosineDirection:
        scores = state.scores[..., : -self.extra] if self.extra else state.scores
        residual, log_probabilities = self.drive(scores if self.shift is None else scores + self.shift)
        along = (residual * scores).sum(-1, keepdim=True)
        if self.extra:
            residual = functional.pad(residual, (0, self.extra))
        gradient = torch.addcmul(residual, along, state.unit, value=-1) * state.inverse
        return CosineDirection(gradient, log_probabilities)


class CosineObservation:
    """What a hyperprior may see of a cosine head at an epoch; constants in first order."""

    def __init__(self, head: CosineHead, state: CosineState, direction: CosineDirection) -> None:
        self._head, self._direction = head, direction
        self._unit = state.unit if head.second_order else state.unit.detach()

    def coefficients(self) -> Float[Tensor, "T N W"]:
        return self._direction.coefficients.mT

    def squared_norm(self) -> Float[Tensor, " T"]:
        gradient = self._direction.coefficients
        return (gradient * (gradient @ self._head.gram)).sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        found, head = self._direction.log_probabilities, self._head
        if found is None:
            # A shift that is the same for all classes does not change a softmax.
            scores = self._unit @ head.support_products
            found = (scores if head.second_order else scores.detach()).log_softmax(1)
        return head.labelled.loss(found)

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        head = self._head
        scores = head.readout @ self._unit.mT
        scores = scores if head.shift is None else scores + head.shift
        return scores if head.second_order else scores.detach()
