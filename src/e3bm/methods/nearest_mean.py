"""The nearest class mean by cosine: the yardstick for features, with nothing learned per task."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.methods.base import METHODS, DirectMethod, Encoder, MethodSettings, Parts
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.labelled import LabelledSupport


class NearestMeanSettings(MethodSettings):
    """The nearest class mean: how good the features alone are."""

    title = "nearest class mean"
    any_features = True

    name: Literal["nearest_mean"] = "nearest_mean"
    scale: float = Field(default=10.0, gt=0)
    """Factor on the cosines."""


@METHODS.register("nearest_mean")
class NearestMean(DirectMethod):
    """Scores are the scaled cosines to the class means."""

    settings = NearestMeanSettings

    def __init__(self, encoder: Encoder, scale: float = 10.0) -> None:
        super().__init__()
        self.encoder, self.scale = encoder, scale

    @classmethod
    def from_settings(cls, settings: NearestMeanSettings, parts: Parts) -> "NearestMean":
        return cls(parts.encoder, settings.scale)

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.scores(batch))

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Cosines of queries and class means of unit-length support examples."""
        support, query = unit(self.encoder(batch.support, batch.support_mask)), unit(self.encoder(batch.query))
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        return self.scale * torch.bmm(query, unit(labelled.class_means(support)).mT)
