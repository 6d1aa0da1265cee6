"""Matching Networks with full context embeddings (Vinyals et al., NIPS 2016, appendix A.1 and A.2).

g reads the support as a sequence, in both directions; f reads from it K times, with attention. The reads are epochs: a
constant rate of 1 and a vote for the last one is the published network, K = 3.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from e3bm.core.context import Basis
from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.heads.labelled import LabelledSupport
from e3bm.methods.matching_nets import MatchingScores, Rule

PRIME = 2**31 - 1
FIRST_FACTOR, SECOND_FACTOR = 48271, 1103515245  # any numbers that scatter


class MatchingNetsFceSettings(InnerLoopSettings):
    """Matching Networks with full context embeddings: K reads of the support are K epochs."""

    title = "MatchingNets FCE"

    name: Literal["matching_nets_fce"] = "matching_nets_fce"
    epochs: int = Field(default=3, ge=1, le=1000)
    """K: how often a query reads from the support."""
    rate: float = Field(default=1.0, gt=0)
    """How far a read moves the state before training; 1 as published."""
    order: Literal["second"] = "second"
    """Reads are not gradients: the outer loop always sees all of them."""
    scale: float = Field(default=10.0, gt=0)
    """Factor on the cosines, or its start."""
    learned_scale: bool = False
    """Whether the factor is trained."""
    rule: Rule = "attention"
    """A softmax over the support, summed by class, or the sums of cosines of each class's examples."""


@METHODS.register("matching_nets_fce")
class MatchingNetsFce(InnerLoopMethod):
    """Embeddings that know the whole support; their cosines are scored as in the simple form.

    The answer depends on the order in which g reads. With ``shuffled`` that order is a function of the examples alone:
    it tells nothing of their classes, and the same episode is always read in the same order.
    """

    settings = MatchingNetsFceSettings

    def __init__(
        self,
        encoder: Encoder,
        *,
        scale: float = 10.0,
        learned_scale: bool = False,
        rule: Rule = "attention",
        shuffled: bool = True,
    ) -> None:
        super().__init__()
        self.encoder, self.shuffled = encoder, shuffled
        features = encoder.feature_size
        self.onwards, self.backwards = nn.LSTMCell(features, features), nn.LSTMCell(features, features)
        self.reader = nn.LSTMCell(2 * features, features)
        self.matching = MatchingScores(scale=scale, learned_scale=learned_scale, rule=rule)

    @classmethod
    def from_settings(cls, settings: MatchingNetsFceSettings, parts: Parts) -> "MatchingNetsFce":
        return cls(parts.encoder, scale=settings.scale, learned_scale=settings.learned_scale, rule=settings.rule)

    def begin(self, batch: TaskBatch) -> "ContextReads":
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        labels, mask = batch.support_labels, batch.mask
        if self.shuffled:
            order = order_of_bits(batch.support, mask)
            labels, mask = labels.gather(1, order), mask.gather(1, order)
            support = support.gather(1, order.unsqueeze(-1).expand_as(support))
        places = range(support.shape[1])
        context = support + self._states(self.onwards, support, mask, places)
        context = context + self._states(self.backwards, support, mask, places[::-1])
        return ContextReads(query, support, context, labels, mask, batch.ways, self.reader, self.matching)

    @staticmethod
    def _states(
        cell: nn.LSTMCell, support: Float[Tensor, "T S D"], mask: Bool[Tensor, "T S"], places: range
    ) -> Float[Tensor, "T S D"]:
        """The state after each example in the given order; padding leaves it as it was."""
        hidden = memory = torch.zeros_like(support[:, 0])
        states = [hidden] * support.shape[1]
        for place in places:
            real = mask[:, place].unsqueeze(-1)
            found, kept = cell(support[:, place], (hidden, memory))
            hidden, memory = torch.where(real, found, hidden), torch.where(real, kept, memory)
            states[place] = hidden
        return torch.stack(states, 1)


class ReadState(NamedTuple):
    """What has been read so far, for queries and then support examples: hidden state and cell of f."""

    hidden: Float[Tensor, "T N D"]
    cell: Float[Tensor, "T N D"]


class ContextReads:
    """The reads of f on T tasks; a direction is the state minus what the next read makes of it.

    Support examples are read as queries too: their loss is what a hyperprior may see.
    """

    def __init__(
        self,
        query: Float[Tensor, "T Q D"],
        support: Float[Tensor, "T S D"],
        context: Float[Tensor, "T S D"],
        labels: Int[Tensor, "T S"],
        mask: Bool[Tensor, "T S"],
        ways: int,
        reader: nn.LSTMCell,
        matching: MatchingScores,
    ) -> None:
        self.query, self.support, self.context = query, support, context
        self.labels, self.mask, self.ways = labels, mask, ways
        self.reader, self.matching = reader, matching
        self.labelled = LabelledSupport(labels, mask, ways, support.dtype)
        self.examples = torch.cat([query, support], 1)

    def basis(self) -> Basis:
        return Basis(None, lambda: self.support, lambda: self.query, self.mask)

    def start(self) -> ReadState:
        nothing = torch.zeros_like(self.examples)
        return ReadState(nothing, nothing)

    def empty(self) -> Float[Tensor, "T Q W"]:
        return self.query.new_zeros(*self.query.shape[:2], self.ways)

    def direction(self, state: ReadState) -> ReadState:
        attention = torch.bmm(state.hidden, self.context.mT).masked_fill(~self.mask.unsqueeze(1), -torch.inf)
        read = torch.bmm(attention.softmax(-1), self.context)
        rows = lambda values: values.flatten(0, 1)
        hidden, cell = self.reader(rows(torch.cat([self.examples, read], -1)), (rows(state.hidden), rows(state.cell)))
        return ReadState(
            state.hidden - hidden.view_as(state.hidden) - self.examples, state.cell - cell.view_as(state.cell)
        )

    def observe(self, state: ReadState, direction: ReadState) -> "ReadObservation":
        return ReadObservation(self, state, direction)

    def step(self, state: ReadState, direction: ReadState, rate: Float[Tensor, " T"]) -> ReadState:
        rate = rate.view(-1, 1, 1)
        return ReadState(state.hidden - rate * direction.hidden, state.cell - rate * direction.cell)

    def vote(
        self, ensemble: Float[Tensor, "T Q W"], state: ReadState, weight: Float[Tensor, " T"]
    ) -> Float[Tensor, "T Q W"]:
        return ensemble + weight.view(-1, 1, 1) * self.class_scores(state.hidden[:, : self.query.shape[1]])

    def scores(self, ensemble: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        return ensemble

    def class_scores(self, embeddings: Float[Tensor, "T N D"]) -> Float[Tensor, "T N W"]:
        """Scores of what was read."""
        found: Tensor = self.matching(embeddings, self.context, self.labels, self.mask, self.ways)
        return found


class ReadObservation:
    """What a hyperprior may see before a read: losses, scores and lengths; there is no gradient."""

    def __init__(self, problem: ContextReads, state: ReadState, direction: ReadState) -> None:
        self._problem, self._state, self._direction = problem, state, direction

    def coefficients(self) -> Float[Tensor, "T N W"]:
        raise SettingsError(
            "The reads of Matching Networks have no gradient that a hyperprior could see; "
            "use the summary 'stats', which needs none."
        )

    def squared_norm(self) -> Float[Tensor, " T"]:
        """Mean squared length of the queries' change."""
        return self._direction.hidden[:, : self._problem.query.shape[1]].square().sum(-1).mean(1)

    def loss(self) -> Float[Tensor, " T"]:
        problem = self._problem
        scores = problem.class_scores(self._state.hidden[:, problem.query.shape[1] :])
        return problem.labelled.loss(scores.mT.log_softmax(1))

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        problem = self._problem
        return problem.class_scores(self._state.hidden[:, : problem.query.shape[1]])


def order_of_bits(examples: Float[Tensor, "T S *shape"], mask: Bool[Tensor, "T S"]) -> Int[Tensor, "T S"]:
    """A permutation of each task's examples by a hash of their bits, padding last; integers only, so it is exact."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[examples.element_size()]
    bits = examples.detach().contiguous().view(whole).flatten(2).long().remainder(PRIME)
    places = torch.arange(1, bits.shape[-1] + 1, device=bits.device)
    # No product reaches 2^62: both factors are below the prime.
    hashed = (bits * (places * FIRST_FACTOR).remainder(PRIME)).remainder(PRIME).sum(-1).remainder(PRIME)
    scattered = (hashed * SECOND_FACTOR).remainder(PRIME)
    return scattered.masked_fill(~mask, PRIME).argsort(dim=1, stable=True)
