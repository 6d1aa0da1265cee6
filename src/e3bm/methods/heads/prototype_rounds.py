"""Prototypes that move towards their queries: the rounds of soft k-means, MAP and their kin as an inner loop.

Every round assigns the queries to the classes, says where each class would be for these assignments, and moves its
prototype there by a rate. What differs between methods is how queries are assigned and what pulls a prototype.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from e3bm.core.context import Basis
from e3bm.methods.heads.distances import squared_distances
from e3bm.methods.heads.labelled import LabelledSupport


class RoundState(NamedTuple):
    """The prototypes, and the logarithms of the queries' assignments to them."""

    prototypes: Float[Tensor, "T W D"]
    assigned: Float[Tensor, "T Q W"]


# Scaled negative squared distances [T Q W] -> logarithms of assignments.
Assign = Callable[[Tensor], Tensor]
# Where the prototypes of a state would go: [T W D].
Pull = Callable[["PrototypeRounds", RoundState], Tensor]


def each_alone(scores: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
    """A softmax over the classes, every query by itself."""
    return scores.log_softmax(-1)


def weighted_mean(rounds: "PrototypeRounds", state: RoundState) -> Float[Tensor, "T W D"]:
    """The mean of a class's support and of all queries, these weighted by their assignments."""
    shares = state.assigned.exp().mT
    total = rounds.support_sums + torch.bmm(shares, rounds.query)
    return total / (rounds.counts + shares.sum(-1, keepdim=True))


class PrototypeRounds:
    """The moves on T tasks, from the class means on; a direction is the prototype minus where it is pulled.

    Scores are the logarithms of the assignments, with distances multiplied by ``scale``.
    """

    def __init__(
        self,
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        labels: Int[Tensor, "T S"],
        mask: Bool[Tensor, "T S"],
        ways: int,
        *,
        scale: Float[Tensor, ""],
        assign: Assign = each_alone,
        pull: Pull = weighted_mean,
    ) -> None:
        self.support, self.query, self.mask = support, query, mask
        self.scale, self.assign, self.pull = scale, assign, pull
        self.labelled = LabelledSupport(labels, mask, ways, support.dtype)
        self.members: Float[Tensor, "T W S"] = ((functional.one_hot(labels, ways) == 1) & mask.unsqueeze(-1)).mT.to(
            support.dtype
        )
        self.counts = self.members.sum(-1, keepdim=True)
        self.support_sums = torch.bmm(self.members, support)

    def basis(self) -> Basis:
        return Basis(None, lambda: self.support, lambda: self.query, self.mask)

    def start(self) -> RoundState:
        return self._state(self.support_sums / self.counts)

    def empty(self) -> Float[Tensor, "T Q W"]:
        return self.query.new_zeros(*self.query.shape[:2], self.members.shape[1])

    def direction(self, state: RoundState) -> Float[Tensor, "T W D"]:
        return state.prototypes - self.pull(self, state)

    def observe(self, state: RoundState, direction: Float[Tensor, "T W D"]) -> "RoundObservation":
        return RoundObservation(self, state, direction)

    def step(self, state: RoundState, direction: Float[Tensor, "T W D"], rate: Float[Tensor, " T"]) -> RoundState:
        return self._state(torch.addcmul(state.prototypes, direction, rate.view(-1, 1, 1), value=-1))

    def vote(
        self, ensemble: Float[Tensor, "T Q W"], state: RoundState, weight: Float[Tensor, " T"]
    ) -> Float[Tensor, "T Q W"]:
        return torch.addcmul(ensemble, state.assigned, weight.view(-1, 1, 1))

    def scores(self, ensemble: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        return ensemble

    def support_scores(self, prototypes: Float[Tensor, "T W D"]) -> Float[Tensor, "T S W"]:
        """Scaled negative squared distances of the support."""
        return -self.scale * squared_distances(self.support, prototypes)

    def _state(self, prototypes: Float[Tensor, "T W D"]) -> RoundState:
        return RoundState(prototypes, self.assign(-self.scale * squared_distances(self.query, prototypes)))


class RoundObservation:
    """What a hyperprior may see before a round; the direction takes the gradient's place."""

    def __init__(self, rounds: PrototypeRounds, state: RoundState, direction: Float[Tensor, "T W D"]) -> None:
        self._rounds, self._state, self._direction = rounds, state, direction

    def coefficients(self) -> Float[Tensor, "T D W"]:
        return self._direction.mT

    def squared_norm(self) -> Float[Tensor, " T"]:
        return self._direction.square().sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        scores = self._rounds.support_scores(self._state.prototypes)
        return self._rounds.labelled.loss(scores.mT.log_softmax(1))

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        return self._state.assigned
