"""A linear head trained by gradient descent, in Gram form.

The weights never leave W0 + span(support): W_m = W0 - A_m^T E. With K = E E^T and R = (softmax - target)/n, an epoch is
A += alpha R and S -= alpha (K + 1) R (the 1 is the bias), and the whole ensemble needs one product with the queries.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from e3bm.core.context import Basis
from e3bm.methods.collapsed import CollapsedHead
from e3bm.methods.labelled import LabelledSupport


class LinearState(NamedTuple):
    """A learner: coefficients over the support, and its support scores."""

    coefficients: Float[Tensor, "T S W"]
    scores: Float[Tensor, "T S W"]


class LinearDirection(NamedTuple):
    """A gradient: coefficients over the support, and the change of support scores it causes."""

    residual: Float[Tensor, "T S W"]
    change: Float[Tensor, "T S W"]


class LinearEnsemble(NamedTuple):
    """Weighted sum of coefficients, and sum of weights."""

    coefficients: Float[Tensor, "T S W"]
    total: Float[Tensor, "T 1 1"]


class LinearHead:
    """The moves of linear heads on T tasks."""

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
    ) -> None:
        self.support, self.query, self.labelled, self.mask = support, query, labelled, mask
        self.weight, self.bias = weight, bias
        self.second_order = second_order
        # First order: gradients are constants, so the vectors they are written in are too.
        self.vectors = support if second_order else support.detach()
        self.gram = self.vectors @ self.vectors.mT + 1
        self.readout = query @ self.vectors.mT + 1
        self.query_start = torch.baddbmm(bias.unsqueeze(1), query, weight.mT)

    def basis(self) -> Basis:
        return Basis(self.vectors, lambda: self.support, lambda: self.query, self.mask)

    def start(self) -> LinearState:
        scores = torch.baddbmm(self.bias.unsqueeze(1), self.vectors, self.weight.mT)
        return LinearState(torch.zeros_like(scores), scores)

    def empty(self) -> LinearEnsemble:
        nothing = self.query_start.new_zeros(())
        shape = self.labelled.minus_targets.shape
        return LinearEnsemble(nothing.expand(shape), nothing.expand(shape[0], 1, 1))

    def direction(self, state: LinearState) -> LinearDirection:
        residual = self.labelled.residual(state.scores if self.second_order else state.scores.detach())
        return LinearDirection(residual, self.gram @ residual)

    def observe(self, state: LinearState, direction: LinearDirection) -> "LinearObservation":
        return LinearObservation(self, state, direction)

    def step(self, state: LinearState, direction: LinearDirection, rate: Float[Tensor, " T"]) -> LinearState:
        rate = rate.view(-1, 1, 1)
        return LinearState(
            torch.addcmul(state.coefficients, direction.residual, rate),
            torch.addcmul(state.scores, direction.change, rate, value=-1),
        )

    def vote(self, ensemble: LinearEnsemble, state: LinearState, weight: Float[Tensor, " T"]) -> LinearEnsemble:
        weight = weight.view(-1, 1, 1)
        return LinearEnsemble(torch.addcmul(ensemble.coefficients, state.coefficients, weight), ensemble.total + weight)

    def scores(self, ensemble: LinearEnsemble) -> Float[Tensor, "T Q W"]:
        return ensemble.total * self.query_start - self.readout @ ensemble.coefficients

    def collapse(self, ensemble: LinearEnsemble) -> CollapsedHead:
        """The one matrix and bias whose scores are the ensemble's."""
        weight = ensemble.total * self.weight - ensemble.coefficients.mT @ self.vectors
        bias = ensemble.total.squeeze(-1) * self.bias - ensemble.coefficients.sum(1)
        return CollapsedHead(weight, bias, unit_length=False)


class LinearObservation:
    """What a hyperprior may see of a linear head at an epoch."""

    def __init__(self, head: LinearHead, state: LinearState, direction: LinearDirection) -> None:
        self._head, self._state, self._direction = head, state, direction
        self._loss: Tensor | None = None

    def coefficients(self) -> Float[Tensor, "T S W"]:
        return self._direction.residual

    def squared_norm(self) -> Float[Tensor, " T"]:
        return (self._direction.residual * self._direction.change).sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        if self._loss is None:
            scores = self._state.scores
            self._loss = self._head.labelled.loss(scores if self._head.second_order else scores.detach())
        return self._loss

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        return self._head.query_start - self._head.readout @ self._state.coefficients
