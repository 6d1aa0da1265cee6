"""LaplacianShot (Ziko, Dolz, Granger, Ben Ayed, ICML 2020): nearest means; neighbours are pulled to one class."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, DirectMethod, Encoder, MethodSettings, Parts
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.distances import squared_distances
from e3bm.methods.heads.labelled import LabelledSupport

MOST_UPDATES = 20
TOLERANCE = 1e-6  # of the energy's relative change
SURENESS = 10.0


class LaplacianShotSettings(MethodSettings):
    """LaplacianShot: nearest means; neighbours are pulled to one class."""

    title = "LaplacianShot"
    any_features = True
    transductive = True

    name: Literal["laplacian_shot"] = "laplacian_shot"
    agreement: float = Field(default=1.0, ge=0)
    """How much a neighbour's assignment counts."""
    neighbours: int = Field(default=2, ge=1)
    """How many other queries influence a query."""
    rectified: bool = True
    """Whether the queries and the class means are first moved (rectified), as published."""


@METHODS.register("laplacian_shot")
class LaplacianShot(DirectMethod):
    """Assignments z = softmax(-|q - mean|^2 + agreement x sum of the neighbours' z), updated until their energy rests.

    Features have length one. A query's ``neighbours`` are the nearest other queries; the published code asks for 3 and
    counts the query itself among them, so 2 is its number. With ``rectified``, as published, the queries are first
    moved to the support's mean and the class means take in the queries nearest to them.
    """

    settings = LaplacianShotSettings

    def __init__(
        self, encoder: Encoder, *, agreement: float = 1.0, neighbours: int = 2, rectified: bool = True
    ) -> None:
        super().__init__()
        if not agreement >= 0:
            raise SettingsError(f"LaplacianShot's agreement must be 0 or more, found {agreement}.")
        if neighbours < 1:
            raise SettingsError(f"LaplacianShot needs at least 1 neighbour, found {neighbours}.")
        self.encoder, self.agreement, self.neighbours, self.rectified = encoder, agreement, neighbours, rectified

    @classmethod
    def from_settings(cls, settings: LaplacianShotSettings, parts: Parts) -> "LaplacianShot":
        return cls(
            parts.encoder,
            agreement=settings.agreement,
            neighbours=settings.neighbours,
            rectified=settings.rectified,
        )

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.scores(batch))

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Logarithms of the assignments; each task stops for itself."""
        support, query = unit(self.encoder(batch.support, batch.support_mask)), unit(self.encoder(batch.query))
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        means = labelled.class_means(support)
        if self.rectified:
            query = query + labelled.share @ support - query.mean(1, keepdim=True)
            means = rectified(
                means, torch.cat([support, query], 1), functional.pad(batch.mask, (0, query.shape[1]), value=True)
            )
        alone = -squared_distances(query, means)
        near = self.agreement * self.affinity(query.detach())
        logs = alone.log_softmax(-1)
        energy = logs.new_full((len(batch),), torch.inf)
        moving = torch.ones_like(energy, dtype=torch.bool)
        for update in range(MOST_UPDATES):
            found = torch.baddbmm(alone, near, logs.exp()).log_softmax(-1)
            logs = torch.where(moving.view(-1, 1, 1), found, logs)
            before, energy = energy, self._energy(logs.detach(), alone.detach(), near)
            if update > 1:
                moving = moving & ((energy - before).abs() > TOLERANCE * before.abs())
            if not bool(moving.any()):
                break
        return logs

    def affinity(self, query: Float[Tensor, "T Q D"]) -> Float[Tensor, "T Q Q"]:
        """1 where a query (column) is among the nearest of another (row); not symmetric, as published."""
        count = query.shape[1]
        apart = torch.cdist(query, query, compute_mode="donot_use_mm_for_euclid_dist")
        apart = apart.masked_fill(torch.eye(count, dtype=torch.bool, device=query.device), torch.inf)
        nearest = apart.topk(min(self.neighbours, count - 1), dim=-1, largest=False).indices
        return functional.one_hot(nearest, count).sum(-2).to(query.dtype)

    @staticmethod
    def _energy(
        logs: Float[Tensor, "T Q W"], alone: Float[Tensor, "T Q W"], near: Float[Tensor, "T Q Q"]
    ) -> Float[Tensor, " T"]:
        assigned = logs.exp()
        return (assigned * (logs - alone - torch.bmm(near, assigned))).sum((1, 2))


def rectified(
    means: Float[Tensor, "T W D"], examples: Float[Tensor, "T N D"], mask: Bool[Tensor, "T N"]
) -> Float[Tensor, "T W D"]:
    """For each class the mean of c x over the examples x nearest to it by cosine, c being how sure that is.

    c is a softmax of 10 cosines. As in the published code the sum is divided by the number of examples, not by the sum
    of c: an unsure class has a short prototype. A class that no example is nearest to keeps its mean.
    """
    cosines = torch.bmm(unit(examples), unit(means).mT)
    nearest = (functional.one_hot(cosines.argmax(-1), means.shape[1]) == 1) & mask.unsqueeze(-1)
    shares = ((SURENESS * cosines).softmax(-1) * nearest).mT
    count = nearest.sum(1).unsqueeze(-1)
    return torch.where(count > 0, torch.bmm(shares, examples) / count.clamp_min(1), means)
