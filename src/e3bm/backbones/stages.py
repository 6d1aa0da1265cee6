"""A backbone in two parts: stages that see every image alike, kept once as a row of numbers, and stages that do not.

A method that changes only the last stages from task to task (TADAM) then passes an image through the others once,
however many episodes it is in.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from e3bm.backbones.base import Backbone
from e3bm.backbones.encode import Network, TaskEncoder, encode


class EarlierStages(Backbone):
    """Images to rows: the features of the whole network, then the maps that its stage number ``count`` reads."""

    def __init__(self, backbone: Backbone, count: int, map_shape: tuple[int, int, int]) -> None:
        self.count, self.map_shape = count, map_shape
        channels, height, width = map_shape
        super().__init__(channels=backbone.channels, feature_size=backbone.feature_size + channels * height * width)
        self.folded, self.backbone = backbone.folded, backbone

    @classmethod
    def of(cls, backbone: Backbone, count: int, image_size: int) -> "EarlierStages":
        """The first ``count`` stages of a backbone, for images of that many pixels a side."""
        image = next(backbone.parameters()).new_zeros(1, backbone.channels, image_size, image_size)
        with torch.no_grad():
            _, channels, height, width = backbone.through(backbone.stages()[:count], image).shape
        return cls(backbone, count, (channels, height, width))

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        stages = self.backbone.stages()
        maps = self.backbone.through(stages[: self.count], images)
        # Blocks work in place: the second half has a copy of its own.
        features = self.backbone.pooled(self.backbone.through(stages[self.count :], maps.clone()))
        return torch.cat([features, maps.flatten(1)], 1)

    def extra_repr(self) -> str:
        return f"the first {self.count} stages"


class LaterStages(Backbone):
    """Those maps to features: the stages from number ``count`` on."""

    def __init__(self, earlier: EarlierStages) -> None:
        super().__init__(channels=earlier.map_shape[0], feature_size=earlier.backbone.feature_size)
        self.folded, self.backbone, self.count = earlier.folded, earlier.backbone, earlier.count

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        return self.backbone.pooled(self.backbone.through(self.backbone.stages()[self.count :], images))


class StagedEncoder(TaskEncoder):
    """The encoder of rows that earlier stages gave: their features, or another pass through the later stages."""

    def __init__(self, earlier: EarlierStages) -> None:
        super().__init__(LaterStages(earlier), "running")
        self.map_shape = earlier.map_shape

    @property
    def whole(self) -> Backbone:
        later = self.backbone
        assert isinstance(later, LaterStages)
        return later.backbone

    def forward(
        self,
        examples: Float[Tensor, "T N *shape"],
        mask: Bool[Tensor, "T N"] | None = None,
        *,
        network: Network | None = None,
    ) -> Float[Tensor, "T N *D"]:
        if network is None:
            return examples[..., : self.feature_size]
        maps = examples[..., self.feature_size :].unflatten(-1, self.map_shape)
        return encode(self.backbone, maps, "running", mask=mask, network=network)
