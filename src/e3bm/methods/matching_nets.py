"""Matching Networks (Vinyals et al., NIPS 2016): a query takes its classes from the support, by attention."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, DirectMethod, Encoder, MethodSettings, Parts
from e3bm.methods.heads.collapsed import unit

Rule = Literal["attention", "summed"]


class MatchingNetsSettings(MethodSettings):
    """Matching Networks without context: attention over the support."""

    title = "MatchingNets"

    name: Literal["matching_nets"] = "matching_nets"
    scale: float = Field(default=10.0, gt=0)
    """Factor on the cosines, or its start."""
    learned_scale: bool = False
    """Whether the factor is trained."""
    rule: Rule = "attention"
    """A softmax over the support, summed by class, or the sums of cosines of each class's examples."""


class MatchingScores(nn.Module):
    """From embeddings to class scores: scaled cosines, then one of two rules.

    ``attention`` is the paper's: a softmax over the support, summed by class; scores are the logarithms. ``summed`` is
    that of the code which the tables quote: the cosines of each class's examples added up.
    """

    scale: Tensor

    def __init__(self, *, scale: float, learned_scale: bool, rule: Rule) -> None:
        super().__init__()
        if not scale > 0:
            raise SettingsError(f"The scale of Matching Networks' cosines must be positive, found {scale}.")
        if rule not in get_args(Rule):
            raise SettingsError(f"Matching Networks score by 'attention' or 'summed' cosines, found '{rule}'.")
        self.rule = rule
        if learned_scale:
            self.scale = nn.Parameter(torch.tensor(float(scale)))
        else:
            self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(
        self,
        query: Float[Tensor, "T Q D"],
        support: Float[Tensor, "T S D"],
        labels: Int[Tensor, "T S"],
        mask: Bool[Tensor, "T S"],
        ways: int,
    ) -> Float[Tensor, "T Q W"]:
        """Scores of queries; padded examples get no attention."""
        cosines = self.scale * torch.bmm(unit(query), unit(support).mT)
        member = (functional.one_hot(labels, ways) == 1) & mask.unsqueeze(-1)  # [T, S, W]
        if self.rule == "summed":
            return torch.bmm(cosines, member.to(cosines.dtype))
        attention = cosines.masked_fill(~mask.unsqueeze(1), -torch.inf).log_softmax(-1)
        return attention.unsqueeze(2).masked_fill(~member.mT.unsqueeze(1), -torch.inf).logsumexp(-1)


@METHODS.register("matching_nets")
class MatchingNets(DirectMethod):
    """The simple form, without context: every example is embedded by itself.

    The paper has no scale (1): with five examples no probability can then exceed 0.65.
    """

    settings = MatchingNetsSettings

    def __init__(
        self, encoder: Encoder, *, scale: float = 10.0, learned_scale: bool = False, rule: Rule = "attention"
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.matching = MatchingScores(scale=scale, learned_scale=learned_scale, rule=rule)

    @classmethod
    def from_settings(cls, settings: MatchingNetsSettings, parts: Parts) -> "MatchingNets":
        return cls(parts.encoder, scale=settings.scale, learned_scale=settings.learned_scale, rule=settings.rule)

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.scores(batch))

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Logarithms of the class probabilities, or summed cosines."""
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        scores: Tensor = self.matching(query, support, batch.support_labels, batch.mask, batch.ways)
        return scores
