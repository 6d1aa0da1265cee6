"""A ridge regression reached by gradient descent, in Gram form: epochs for a learner that is otherwise solved at once.

The loss is 1/2 |W X^T - Z|^2 + penalty/2 |W|^2 with targets Z. Weights stay in the span of the support, W = A X, and
with K = X X^T the gradient has the coefficients A (K + penalty I) - Z. A rate of 1 is 1/(tr K/n + penalty): the inverse
of the mean curvature along one example, so that rates mean the same for features of any length.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from e3bm.core.context import Basis
from e3bm.methods.heads.collapsed import CollapsedHead, WeightedSum


class RidgeHead:
    """The moves on T tasks; a state is A [T, W, S], a direction the gradient's coefficients over the curvature."""

    def __init__(
        self,
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        targets: Float[Tensor, "T W S"],
        mask: Bool[Tensor, "T S"],
        *,
        penalty: float,
        scale: Float[Tensor, ""],
        second_order: bool,
    ) -> None:
        """Query scores are multiplied by ``scale``; the regression knows nothing of it."""
        self.support, self.query, self.mask = support, query, mask
        self.penalty, self.scale, self.second_order = penalty, scale, second_order
        self.real = mask.to(support.dtype).unsqueeze(1)
        self.targets = targets * self.real
        # First order: gradients are constants, so the vectors they are written in are too.
        self.vectors = support if second_order else support.detach()
        self.gram = self.vectors @ self.vectors.mT
        self.count = self.real.sum((1, 2))
        lengths = (self.gram.diagonal(dim1=1, dim2=2) * self.real.squeeze(1)).sum(1) / self.count
        self.curvature = (lengths + penalty).view(-1, 1, 1)
        self.readout = query @ self.vectors.mT

    def basis(self) -> Basis:
        return Basis(lambda: self.vectors, lambda: self.support, lambda: self.query, self.mask)

    def start(self) -> Float[Tensor, "T W S"]:
        return torch.zeros_like(self.targets)

    def empty(self) -> WeightedSum:
        return WeightedSum.nothing(self.targets)

    def direction(self, state: Float[Tensor, "T W S"]) -> Float[Tensor, "T W S"]:
        found = state if self.second_order else state.detach()
        residual = torch.baddbmm(self.penalty * found - self.targets, found, self.gram)
        return residual * self.real / self.curvature

    def observe(self, state: Float[Tensor, "T W S"], direction: Float[Tensor, "T W S"]) -> "RidgeObservation":
        return RidgeObservation(self, state if self.second_order else state.detach(), direction)

    def step(
        self, state: Float[Tensor, "T W S"], direction: Float[Tensor, "T W S"], rate: Float[Tensor, " T"]
    ) -> Float[Tensor, "T W S"]:
        return torch.addcmul(state, direction, rate.view(-1, 1, 1), value=-1)

    def vote(self, ensemble: WeightedSum, state: Float[Tensor, "T W S"], weight: Float[Tensor, " T"]) -> WeightedSum:
        return ensemble.plus(state, weight)

    def replay(
        self,
        directions: Sequence[Float[Tensor, "T W S"]],
        rates: Float[Tensor, "T M"],
        weights: Float[Tensor, "T M"],
    ) -> WeightedSum:
        return WeightedSum.of_learners(directions, rates, weights)

    def scores(self, ensemble: WeightedSum) -> Float[Tensor, "T Q W"]:
        return self.scale * torch.bmm(self.readout, ensemble.settled().folded.mT)

    def collapse(self, ensemble: WeightedSum) -> CollapsedHead:
        """The one matrix whose scores are the ensemble's."""
        weight = self.scale * (ensemble.settled().folded @ self.vectors)
        return CollapsedHead(weight, weight.new_zeros(weight.shape[:2]), unit_length=False)


class RidgeObservation:
    """What a hyperprior may see of the regression at an epoch; constants in first order."""

    def __init__(self, head: RidgeHead, state: Float[Tensor, "T W S"], direction: Float[Tensor, "T W S"]) -> None:
        self._head, self._state, self._direction = head, state, direction

    def coefficients(self) -> Float[Tensor, "T S W"]:
        return self._direction.mT

    def squared_norm(self) -> Float[Tensor, " T"]:
        return (self._direction * (self._direction @ self._head.gram)).sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        """The regression's own loss, a mean over examples."""
        head, fitted = self._head, self._state @ self._head.gram
        misses = ((fitted - head.targets) * head.real).square().sum((1, 2))
        return (misses + head.penalty * (self._state * fitted).sum((1, 2))) / (2 * head.count)

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        head = self._head
        scores = head.scale * torch.bmm(head.readout, self._state.mT)
        return scores if head.second_order else scores.detach()
