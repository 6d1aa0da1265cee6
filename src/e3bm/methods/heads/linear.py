"""A linear head trained by gradient descent, in Gram form.

The weights never leave W0 + span(support): W_m = W0 + A_m E. With K = E E^T and R = (softmax - target)/n, an epoch is
A -= alpha R and S = S0 + A (K + 1) (the 1 is the bias), and the whole ensemble needs one product with the queries.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from e3bm.core.context import Basis
from e3bm.methods.heads.collapsed import CollapsedHead, WeightedSum
from e3bm.methods.heads.labelled import LabelledSupport


class LinearState(NamedTuple):
    """A learner: coefficients over the support, and the logarithms of its support predictions."""

    coefficients: Float[Tensor, "T W S"]
    log_probabilities: Float[Tensor, "T W S"]


class LinearHead:
    """The moves of linear heads on T tasks; a direction is the gradient's coefficients over the support."""

    def __init__(
        self,
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        labelled: LabelledSupport,
        mask: Bool[Tensor, "T S"],
        weight: Float[Tensor, "T W D"],
        bias: Float[Tensor, "T W"],
        *,
        second_order: bool,
        length: float | None = None,
    ) -> None:
        """``length`` is what examples were scaled to before they came here, if they were: new ones must be too."""
        self.support, self.query, self.labelled, self.mask = support, query, labelled, mask
        self.weight, self.bias = weight, bias
        self.second_order, self.length = second_order, length
        # First order: gradients are constants, so the vectors they are written in are too.
        self.vectors = support if second_order else support.detach()
        self.gram = self.vectors @ self.vectors.mT + 1
        self.start_scores = torch.baddbmm(bias.unsqueeze(-1), weight, self.vectors.mT)
        # The queries meet the support and the start in one product.
        products = query @ torch.cat([self.vectors, weight], 1).mT
        self.readout = products[..., : support.shape[1]] + 1
        self.query_start = products[..., support.shape[1] :] + bias.unsqueeze(1)

    def basis(self) -> Basis:
        return Basis(lambda: self.vectors, lambda: self.support, lambda: self.query, self.mask)

    def start(self) -> LinearState:
        return LinearState(torch.zeros_like(self.start_scores), self.start_scores.log_softmax(1))

    def empty(self) -> WeightedSum:
        return WeightedSum.nothing(self.start_scores)

    def direction(self, state: LinearState) -> Float[Tensor, "T W S"]:
        found = state.log_probabilities
        return self.labelled.residual(found if self.second_order else found.detach())

    def observe(self, state: LinearState, direction: Float[Tensor, "T W S"]) -> "LinearObservation":
        return LinearObservation(self, state, direction)

    def step(self, state: LinearState, direction: Float[Tensor, "T W S"], rate: Float[Tensor, " T"]) -> LinearState:
        coefficients = torch.addcmul(state.coefficients, direction, rate.view(-1, 1, 1), value=-1)
        return LinearState(coefficients, torch.baddbmm(self.start_scores, coefficients, self.gram).log_softmax(1))

    def vote(self, ensemble: WeightedSum, state: LinearState, weight: Float[Tensor, " T"]) -> WeightedSum:
        return ensemble.plus(state.coefficients, weight)

    def replay(
        self,
        directions: Sequence[Float[Tensor, "T W S"]],
        rates: Float[Tensor, "T M"],
        weights: Float[Tensor, "T M"],
    ) -> WeightedSum:
        return WeightedSum.of_learners(directions, rates, weights)

    def scores(self, ensemble: WeightedSum) -> Float[Tensor, "T Q W"]:
        coefficients, total, _ = ensemble.settled()
        return torch.baddbmm(total.view(-1, 1, 1) * self.query_start, self.readout, coefficients.mT)

    def collapse(self, ensemble: WeightedSum) -> CollapsedHead:
        """The one matrix and bias whose scores are the ensemble's."""
        coefficients, total, _ = ensemble.settled()
        weight = torch.baddbmm(total.view(-1, 1, 1) * self.weight, coefficients, self.vectors)
        return CollapsedHead(weight, total.unsqueeze(1) * self.bias + coefficients.sum(-1), unit_length=False)


class LinearObservation:
    """What a hyperprior may see of a linear head at an epoch; constants in first order."""

    def __init__(self, head: LinearHead, state: LinearState, direction: Float[Tensor, "T W S"]) -> None:
        self._head, self._direction = head, direction
        self._state = state if head.second_order else LinearState(*(part.detach() for part in state))

    def coefficients(self) -> Float[Tensor, "T S W"]:
        return self._direction.mT

    def squared_norm(self) -> Float[Tensor, " T"]:
        return (self._direction * (self._direction @ self._head.gram)).sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        return self._head.labelled.loss(self._state.log_probabilities)

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        head = self._head
        scores = torch.baddbmm(head.query_start, head.readout, self._state.coefficients.mT)
        return scores if head.second_order else scores.detach()
