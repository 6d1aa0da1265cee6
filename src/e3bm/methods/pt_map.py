"""PT+MAP (Hu, Gripon, Pateux, ICANN 2021): power transform, then rounds with balanced optimal transport.

Published: 20 epochs at rate 0.2, a vote for the last. It takes for granted that every class has equally many queries.
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.prototype_rounds import PrototypeRounds

ABOVE_ZERO = 1e-6  # added before the power, as published
MOST_TURNS = 1000


class PtMapSettings(InnerLoopSettings):
    """PT+MAP: power transform and rounds with balanced transport."""

    title = "PT+MAP"
    any_features = True
    transductive = True

    name: Literal["pt_map"] = "pt_map"
    epochs: int = Field(default=20, ge=1, le=1000)
    """Rounds; 20 as published."""
    rate: float = Field(default=0.2, gt=0)
    """How far prototypes move in a round before training; 0.2 as published."""
    order: Literal["second"] = "second"
    """Rounds are not gradients: the outer loop always sees all of them."""
    power: float = Field(default=0.5, gt=0)
    """The power to which features are raised."""
    scale: float = Field(default=10.0, gt=0)
    """Factor on the squared distances."""
    tolerance: float = Field(default=1e-6, gt=0)
    """How small the change of the transport's sums must become."""


@METHODS.register("pt_map")
class PtMap(InnerLoopMethod):
    """Features to a power, at length one, centred (support and queries apart), at length one again.

    Published for features after a ReLU; negative ones, as centred features have them, keep their sign.
    ``tolerance`` is how still the assignments' sums must be before the transport counts as balanced.
    """

    settings = PtMapSettings
    scale: Tensor

    def __init__(self, encoder: Encoder, *, power: float = 0.5, scale: float = 10.0, tolerance: float = 1e-6) -> None:
        super().__init__()
        for name, value in (("power", power), ("scale", scale), ("tolerance", tolerance)):
            if not value > 0:
                raise SettingsError(f"PT+MAP's {name} must be positive, found {value}.")
        self.encoder, self.power, self.tolerance = encoder, power, tolerance
        self.register_buffer("scale", torch.tensor(float(scale)))

    @classmethod
    def from_settings(cls, settings: PtMapSettings, parts: Parts) -> "PtMap":
        return cls(parts.encoder, power=settings.power, scale=settings.scale, tolerance=settings.tolerance)

    def begin(self, batch: TaskBatch) -> PrototypeRounds:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        everyone = torch.ones_like(query[..., 0], dtype=torch.bool)
        return PrototypeRounds(
            self.transformed(support, batch.mask),
            self.transformed(query, everyone),
            batch.support_labels,
            batch.mask,
            batch.ways,
            scale=self.scale,
            assign=lambda scores: balanced(scores, self.tolerance),
        )

    def transformed(self, features: Float[Tensor, "T N D"], mask: Bool[Tensor, "T N"]) -> Float[Tensor, "T N D"]:
        """The power transform of the real examples."""
        real = mask.unsqueeze(-1)
        features = features.masked_fill(~real, 0)
        powers = (features.abs() + ABOVE_ZERO).pow(self.power)
        features = unit(torch.where(features < 0, -powers, powers))
        share = real.to(features.dtype) / real.sum(1, keepdim=True)
        return unit(features - (share * features).sum(1, keepdim=True))


def balanced(scores: Float[Tensor, "T Q W"], tolerance: float) -> Float[Tensor, "T Q W"]:
    """Logarithms of the transport plan: rows sum to 1 and classes to Q/W, by rescaling them in turn (Sinkhorn).

    A task stops for itself, once the rows' sums move by no more than the tolerance. Where queries are sure of their
    classes that is long before the plan is balanced: the turns are the method, and derivatives go through them.
    """
    queries, ways = scores.shape[1:]
    of_query, of_class = -scores.logsumexp((1, 2), keepdim=True), torch.zeros_like(scores[:, :1])
    before = torch.zeros_like(scores[..., :1])
    for _ in range(MOST_TURNS):
        found = -(scores + of_class).logsumexp(-1, keepdim=True)
        rows = (of_query - found).detach().exp()
        moved = (rows - before).abs().amax((1, 2), keepdim=True) > tolerance
        if not bool(moved.any()):
            break
        before = torch.where(moved, rows, before)
        of_query = torch.where(moved, found, of_query)
        balance = math.log(queries / ways) - (scores + of_query).logsumexp(1, keepdim=True)
        of_class = torch.where(moved, balance, of_class)
    return scores + of_query + of_class
