"""TIM (Boudiaf et al., NeurIPS 2020): prototypes that make the queries' predictions sure and the classes even.

The alternating form (TIM-ADM): auxiliary assignments and prototypes, each in closed form. Published: 150 epochs at rate
1, a vote for the last.
"""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.prototype_rounds import PrototypeRounds, RoundState


class TimSettings(InnerLoopSettings):
    """TIM: prototypes that make predictions confident and classes balanced."""

    title = "TIM"
    any_features = True
    transductive = True

    name: Literal["tim"] = "tim"
    epochs: int = Field(default=150, ge=1, le=1000)
    """Rounds; 150 as published."""
    rate: float = Field(default=1.0, gt=0)
    """How far prototypes move in a round before training; 1 as published."""
    order: Literal["second"] = "second"
    """Rounds are not gradients: the outer loop always sees all of them."""
    temperature: float = Field(default=15.0, gt=0)
    """Predictions are softmax(-temperature/2 |q - p|^2)."""
    support: float = Field(default=0.1, ge=0)
    """Weight of the support's cross-entropy."""
    evenness: float = Field(default=1.0, ge=0)
    """Weight of the mean prediction's entropy."""
    sureness: float = Field(default=0.1, ge=0)
    """Weight of the predictions' entropy."""


@METHODS.register("tim")
class Tim(InnerLoopMethod):
    """Minimises a CE(support) - b H(mean prediction) + c H(predictions) for predictions softmax(-t/2 |q - p|^2).

    Names of the weights: ``support`` is a, ``evenness`` is b, ``sureness`` is c; t is ``temperature``.
    """

    settings = TimSettings
    scale: Tensor

    def __init__(
        self,
        encoder: Encoder,
        *,
        temperature: float = 15.0,
        support: float = 0.1,
        evenness: float = 1.0,
        sureness: float = 0.1,
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise SettingsError(f"TIM's temperature must be positive, found {temperature}.")
        for name, value in (("support", support), ("evenness", evenness), ("sureness", sureness)):
            if not value >= 0:
                raise SettingsError(f"TIM's weight of {name} must be 0 or more, found {value}.")
        self.encoder = encoder
        self.support, self.evenness, self.sureness = support, evenness, sureness
        self.register_buffer("scale", torch.tensor(temperature / 2))

    @classmethod
    def from_settings(cls, settings: TimSettings, parts: Parts) -> "Tim":
        return cls(
            parts.encoder,
            temperature=settings.temperature,
            support=settings.support,
            evenness=settings.evenness,
            sureness=settings.sureness,
        )

    def begin(self, batch: TaskBatch) -> PrototypeRounds:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        return PrototypeRounds(
            unit(support),
            unit(query),
            batch.support_labels,
            batch.mask,
            batch.ways,
            scale=self.scale,
            pull=self.pull,
        )

    def pull(self, rounds: PrototypeRounds, state: RoundState) -> Float[Tensor, "T W D"]:
        """Where the prototypes go for the auxiliary assignments z: both sides in sums over examples.

        (a' sum_S [y x + p (w - x)] + r sum_Q [z q + p (w - q)]) / (a' sum_S y + r sum_Q z), with a' = a/(1 + c) and
        r = number of support examples / number of queries.
        """
        of_support = self.support / (1 + self.sureness)
        ratio = rounds.counts.sum(1, keepdim=True) / rounds.query.shape[1]
        auxiliary = self.auxiliary(state.assigned).exp().mT
        queries = state.assigned.exp().mT
        examples = rounds.support_scores(state.prototypes).softmax(-1).mT * rounds.mask.unsqueeze(1)
        weight = of_support * examples.sum(-1, keepdim=True) + ratio * queries.sum(-1, keepdim=True)
        total = (
            of_support * torch.bmm(rounds.members - examples, rounds.support)
            + ratio * torch.bmm(auxiliary - queries, rounds.query)
            + weight * state.prototypes
        )
        return total / (of_support * rounds.counts + ratio * auxiliary.sum(-1, keepdim=True))

    def auxiliary(self, assigned: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        """Logarithms of z ~ p^(1 + c) / (sum over queries of p^(1 + c))^(b / (b + 1)): surer, and more even."""
        surer = (1 + self.sureness) * assigned
        even = self.evenness / (self.evenness + 1)
        return (surer - even * surer.logsumexp(1, keepdim=True)).log_softmax(-1)
