"""A cosine head trained by gradient descent, in Gram form: MTL's cosine classifier and SIB's.

Scores are s (cos(x, w_c) + b). Every w_c stays W0_c + span(examples, W0), so learners are coefficients C over the basis
[x/|x|; W0]. Lengths and cosines come from its Gram matrix, and the ensemble is the sum of v_m w_m/|w_m|: one matrix.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from e3bm.core.context import Basis
from e3bm.methods.collapsed import SHORTEST, CollapsedHead


class CosineState(NamedTuple):
    """A learner: coefficients over the basis (beyond W0), products of the basis with its weights, 1/|w_c|."""

    coefficients: Float[Tensor, "T N W"]
    products: Float[Tensor, "T N W"]
    inverse: Float[Tensor, "T 1 W"]


class CosineDirection(NamedTuple):
    """A gradient: coefficients over the basis, and products of the basis with it."""

    coefficients: Float[Tensor, "T N W"]
    change: Float[Tensor, "T N W"]
    scores: Float[Tensor, "T X W"]


class CosineEnsemble(NamedTuple):
    """Sums of v_m C_m/|w_m|, of v_m/|w_m| and of v_m."""

    coefficients: Float[Tensor, "T N W"]
    inverse: Float[Tensor, "T 1 W"]
    total: Float[Tensor, "T 1 1"]


class CosineHead:
    """The moves of cosine heads on T tasks.

    ``examples`` are the rows whose scores drive the updates: the support with the true gradient, or the queries with a
    synthetic one. ``residual`` gives the derivative of the loss by these scores, ``loss`` the training loss of the
    support from its scores.
    """

    def __init__(
        self,
        examples: Float[Tensor, "T X D"],
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        mask: Bool[Tensor, "T S"],
        weight: Float[Tensor, "T W D"],
        scale: Float[Tensor, ""],
        bias: Float[Tensor, ""],
        residual: Callable[[Tensor], Tensor],
        loss: Callable[[Tensor], Tensor],
        embeddings: Float[Tensor, "T S D"],
        *,
        second_order: bool,
    ) -> None:
        """All of examples, support and query have length one; ``embeddings`` are what the hyperprior sees."""
        self.count, self.support, self.query, self.mask = examples.shape[1], support, query, mask
        self.weight, self.scale, self.bias = weight, scale, bias
        self.residual, self.support_loss, self.embeddings = residual, loss, embeddings
        self.second_order = second_order
        self.drives_itself = examples is support
        self.vectors = torch.cat([examples, weight], 1)
        if not second_order:
            self.vectors = self.vectors.detach()
        self.gram = self.vectors @ self.vectors.mT
        self.start_products = self.vectors @ weight.mT if not second_order else self.gram[..., self.count :]
        self.start_square = weight.square().sum(-1).unsqueeze(1)
        self.readout = self.gram[:, : self.count] if examples is query and second_order else query @ self.vectors.mT
        self.query_start = query @ weight.mT
        ways = weight.shape[1]
        self.identity = functional.pad(torch.eye(ways, dtype=weight.dtype, device=weight.device), (0, 0, self.count, 0))

    def basis(self) -> Basis:
        return Basis(self.vectors, lambda: self.embeddings, lambda: self.query, self.mask)

    def start(self) -> CosineState:
        return CosineState(
            torch.zeros_like(self.start_products), self.start_products, (self.start_square + SHORTEST).rsqrt()
        )

    def empty(self) -> CosineEnsemble:
        nothing = self.start_products.new_zeros(())
        tasks, _, ways = self.start_products.shape
        return CosineEnsemble(
            nothing.expand_as(self.start_products), nothing.expand(tasks, 1, ways), nothing.expand(tasks, 1, 1)
        )

    def direction(self, state: CosineState) -> CosineDirection:
        if not self.second_order:
            state = CosineState(*(part.detach() for part in state))
        steep = self.scale * state.inverse
        plain = state.products[:, : self.count] * steep
        residual = self.residual(plain + self.scale * self.bias)
        # The score of x by w_c: s x.w/|w|. Its derivative by w is s x/|w| minus (s x.w/|w|) w/|w|^2.
        along = (residual * plain).sum(1, keepdim=True) * state.inverse.square()
        top = functional.pad(residual * steep, (0, 0, 0, self.identity.shape[1]))
        coefficients = torch.addcmul(top, state.coefficients + self.identity, along, value=-1)
        if not self.second_order:
            coefficients = coefficients.detach()
        return CosineDirection(coefficients, self.gram @ coefficients, plain)

    def observe(self, state: CosineState, direction: CosineDirection) -> "CosineObservation":
        return CosineObservation(self, state, direction)

    def step(self, state: CosineState, direction: CosineDirection, rate: Float[Tensor, " T"]) -> CosineState:
        rate = rate.view(-1, 1, 1)
        coefficients = torch.addcmul(state.coefficients, direction.coefficients, rate, value=-1)
        products = torch.addcmul(state.products, direction.change, rate, value=-1)
        # |w|^2 = |W0|^2 + C.(basis W0) + C.(basis w)
        square = self.start_square + (coefficients * (self.start_products + products)).sum(1, keepdim=True)
        return CosineState(coefficients, products, (square + SHORTEST).rsqrt())

    def vote(self, ensemble: CosineEnsemble, state: CosineState, weight: Float[Tensor, " T"]) -> CosineEnsemble:
        weight = weight.view(-1, 1, 1)
        share = weight * state.inverse
        return CosineEnsemble(
            torch.addcmul(ensemble.coefficients, state.coefficients, share),
            ensemble.inverse + share,
            ensemble.total + weight,
        )

    def scores(self, ensemble: CosineEnsemble) -> Float[Tensor, "T Q W"]:
        cosines = torch.addcmul(self.readout @ ensemble.coefficients, self.query_start, ensemble.inverse)
        return self.scale * (cosines + ensemble.total * self.bias)

    def collapse(self, ensemble: CosineEnsemble) -> CollapsedHead:
        """The one matrix whose products with x/|x| are the ensemble's scores; it is not normalised again."""
        direction = ensemble.inverse.mT * self.weight + ensemble.coefficients.mT @ self.vectors
        bias = (self.scale * self.bias * ensemble.total).squeeze(-1).expand(-1, self.weight.shape[1])
        return CollapsedHead(self.scale * direction, bias, unit_length=True)

    def support_scores(self, state: CosineState) -> Float[Tensor, "T S W"]:
        """Scores of the support by a learner."""
        products = self.support @ self.weight.mT + (self.support @ self.vectors.mT) @ state.coefficients
        return self.scale * (products * state.inverse + self.bias)


class CosineObservation:
    """What a hyperprior may see of a cosine head at an epoch."""

    def __init__(self, head: CosineHead, state: CosineState, direction: CosineDirection) -> None:
        self._head, self._state, self._direction = head, state, direction
        self._loss: Tensor | None = None

    def coefficients(self) -> Float[Tensor, "T N W"]:
        return self._direction.coefficients

    def squared_norm(self) -> Float[Tensor, " T"]:
        return (self._direction.coefficients * self._direction.change).sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        if self._loss is None:
            head = self._head
            # A bias that is the same for all classes does not change a softmax.
            scores = self._direction.scores if head.drives_itself else head.support_scores(self._state)
            self._loss = head.support_loss(scores if head.second_order else scores.detach())
        return self._loss

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        head, state = self._head, self._state
        products = head.query_start + head.readout @ state.coefficients
        return head.scale * (products * state.inverse + head.bias)
