"""Prototypical Networks (Snell, Swersky, Zemel, NIPS 2017): a query belongs to the nearest class mean."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, DirectMethod, Encoder, MethodSettings, Parts
from e3bm.methods.heads.distances import squared_distances
from e3bm.methods.heads.labelled import LabelledSupport


class ProtoNetsSettings(MethodSettings):
    """ProtoNets: a query belongs to the nearest class mean."""

    title = "ProtoNets"
    any_features = True

    name: Literal["proto_nets"] = "proto_nets"
    scale: float = Field(default=1.0, gt=0)
    """Factor on the squared distances, or its start."""
    learned_scale: bool = False
    """Whether the factor is trained."""
    divided: bool = False
    """Whether distances are divided by the number of features."""


@METHODS.register("proto_nets")
class ProtoNets(DirectMethod):
    """Scores are -c |q - mean|^2, squared Euclidean distances to the means of each class's support.

    As published c is 1. With ``divided`` the distances are divided by the number of features, so that one c serves
    features of any size; with ``learned_scale`` c is trained and ``scale`` is its start.
    """

    settings = ProtoNetsSettings
    scale: Tensor

    def __init__(
        self, encoder: Encoder, *, scale: float = 1.0, learned_scale: bool = False, divided: bool = False
    ) -> None:
        super().__init__()
        if not scale > 0:
            raise SettingsError(f"The scale of ProtoNets' distances must be positive, found {scale}.")
        self.encoder, self.divided = encoder, divided
        if learned_scale:
            self.scale = nn.Parameter(torch.tensor(float(scale)))
        else:
            self.register_buffer("scale", torch.tensor(float(scale)))

    @classmethod
    def from_settings(cls, settings: ProtoNetsSettings, parts: Parts) -> "ProtoNets":
        return cls(parts.encoder, scale=settings.scale, learned_scale=settings.learned_scale, divided=settings.divided)

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.scores(batch))

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Minus the scaled squared distances of queries and class means."""
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        distances = squared_distances(query, labelled.class_means(support))
        scale = self.scale / support.shape[-1] if self.divided else self.scale
        return -scale * distances
