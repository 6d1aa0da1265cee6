"""A backbone as methods use it: tasks in, features out, with the BatchNorm mode that the settings name."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from e3bm.backbones.base import Backbone
from e3bm.backbones.encode import encode


class TaskEncoder(nn.Module):
    """Support and query are encoded in separate passes, every task with its own statistics where those are in use.

    With ``autocast`` the network computes in that type where torch deems it safe; features keep the images' type.
    """

    def __init__(
        self,
        backbone: Backbone,
        batchnorm: Literal["batch", "running", "batch_then_running"],
        *,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.batchnorm, self.autocast = backbone, batchnorm, autocast
        self.feature_size = backbone.feature_size

    def forward(
        self, examples: Float[Tensor, "T N *shape"], mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N *D"]:
        own = self.batchnorm == "batch" or (self.batchnorm == "batch_then_running" and self.training)
        update = own and self.training and self.batchnorm == "batch_then_running"
        mode: Literal["batch", "running"] = "batch" if own else "running"
        with torch.autocast(examples.device.type, self.autocast, enabled=self.autocast is not None):
            features = encode(self.backbone, examples, mode, update=update, mask=mask, network=self.network)
        return features.to(examples.dtype)

    def network(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N *D"]:
        """The pass that images make: to features."""
        features: Tensor = self.backbone(images)
        return features


class MapEncoder(TaskEncoder):
    """The same for methods that look at positions: feature maps [tasks, examples, channels, height, width] come out."""

    def __init__(
        self,
        backbone: Backbone,
        batchnorm: Literal["batch", "running", "batch_then_running"],
        *,
        autocast: torch.dtype | None = None,
        last_pooling: bool = True,
    ) -> None:
        super().__init__(backbone, batchnorm, autocast=autocast)
        self.last_pooling = last_pooling

    def network(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N *D"]:
        """The pass that images make: to maps, before the last pooling or after it."""
        return self.backbone.maps(images, last_pooling=self.last_pooling)
