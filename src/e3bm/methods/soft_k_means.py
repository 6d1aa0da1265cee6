"""Soft k-means on the queries of a task (Ren et al., ICLR 2018): class means refined by unlabelled examples.

Published: one round at rate 1, a vote for the last; squared distances without a scale.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.prototype_rounds import PrototypeRounds


class SoftKMeansSettings(InnerLoopSettings):
    """Soft k-means: class means refined by the queries."""

    title = "soft k-means"
    any_features = True
    transductive = True

    name: Literal["soft_k_means"] = "soft_k_means"
    epochs: int = Field(default=1, ge=1, le=1000)
    """Rounds; 1 as published."""
    rate: float = Field(default=1.0, gt=0)
    """How far prototypes move in a round before training; 1 as published."""
    order: Literal["second"] = "second"
    """Rounds are not gradients: the outer loop always sees all of them."""
    scale: float = Field(default=1.0, gt=0)
    """Factor on the squared distances."""
    unit_length: bool = False
    """Whether features are divided by their length."""


@METHODS.register("soft_k_means")
class SoftKMeans(InnerLoopMethod):
    """Prototypes go to the mean of their support and of the queries, each query in the share softmax(-c |q - p|^2).

    Transductive: the queries are the unlabelled examples. With ``unit_length`` features are divided by their length.
    """

    settings = SoftKMeansSettings
    scale: Tensor

    def __init__(self, encoder: Encoder, *, scale: float = 1.0, unit_length: bool = False) -> None:
        super().__init__()
        if not scale > 0:
            raise SettingsError(f"The scale of soft k-means' distances must be positive, found {scale}.")
        self.encoder, self.unit_length = encoder, unit_length
        self.register_buffer("scale", torch.tensor(float(scale)))

    @classmethod
    def from_settings(cls, settings: SoftKMeansSettings, parts: Parts) -> "SoftKMeans":
        return cls(parts.encoder, scale=settings.scale, unit_length=settings.unit_length)

    def begin(self, batch: TaskBatch) -> PrototypeRounds:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        if self.unit_length:
            support, query = unit(support), unit(query)
        return PrototypeRounds(support, query, batch.support_labels, batch.mask, batch.ways, scale=self.scale)
