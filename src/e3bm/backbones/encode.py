"""Features of tasks: images of T tasks through one backbone, without one task's statistics touching another's."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from e3bm.backbones.base import Backbone
from e3bm.backbones.normalisation import batchnorm_mode
from e3bm.errors import DataError, SettingsError

EncodeMode = Literal["batch", "running"]
Network = Callable[[Tensor], Tensor]
"""A pass of images, or of maps, through a backbone's own layers."""


def encode(
    backbone: Backbone,
    images: Float[Tensor, "T N C H W"],
    mode: EncodeMode,
    *,
    update: bool = False,
    mask: Bool[Tensor, "T N"] | None = None,
    chunk_size: int = 64,
    network: Network | None = None,
) -> Float[Tensor, "T N *D"]:
    """The features of one part (support or query) of every task, or what another pass of the backbone gives.

    ``batch``: each task passes alone, in order, normalised by its own statistics, which ``update`` sets aside for
    ``pop_statistics``. ``running``: all tasks pass together, ``chunk_size`` images at a time. Where the mask is False
    an image is padding: it is not encoded, enters no statistics, and its features are zero. ``network`` is the pass to
    make (the backbone's ``maps``, say); it must use the backbone's own layers.
    """
    _check(backbone, images, mode, update, mask)
    tasks, examples = images.shape[:2]
    if mode == "batch":
        calls = list(images) if mask is None else [images[task][mask[task]] for task in range(tasks)]
    else:
        calls = list((images.flatten(0, 1) if mask is None else images[mask]).split(chunk_size))
    network = backbone if network is None else network
    with batchnorm_mode(backbone, mode, update):
        features = torch.cat([network(call) for call in calls])
    if mask is None:
        return features.reshape(tasks, examples, *features.shape[1:])
    padded = features.new_zeros(tasks, examples, *features.shape[1:])
    padded[mask] = features
    return padded


def _check(backbone: Backbone, images: Tensor, mode: str, update: bool, mask: Tensor | None) -> None:
    if mode not in get_args(EncodeMode):
        raise SettingsError(f"There is no encoding mode '{mode}'; known: {', '.join(get_args(EncodeMode))}.")
    if images.ndim != 5 or 0 in images.shape or images.shape[2] != backbone.channels:
        raise DataError(
            f"Images must be [tasks, examples, {backbone.channels} channels, height, width] and not empty; "
            f"found shape {tuple(images.shape)}."
        )
    if mask is not None and (mask.shape != images.shape[:2] or not bool(mask.any(dim=1).all())):
        raise DataError(
            f"The mask must have shape {tuple(images.shape[:2])} and a real image in every task; "
            f"found shape {tuple(mask.shape)} with {mask.sum(dim=-1).tolist()} real images."
        )
    if mode == "batch" and backbone.folded:
        raise SettingsError(
            "A folded backbone knows only its running statistics; encode with the mode 'running', "
            "or use the backbone it was folded from."
        )
    if mode == "running" and update:
        raise SettingsError("Running statistics are updated from batch statistics only; encode with the mode 'batch'.")


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

    @property
    def mode(self) -> EncodeMode:
        """Whose statistics normalise now: each task's own, or the running ones."""
        own = self.batchnorm == "batch" or (self.batchnorm == "batch_then_running" and self.training)
        return "batch" if own else "running"

    @property
    def whole(self) -> Backbone:
        """The backbone, under whose names its layers are found."""
        return self.backbone

    def forward(
        self,
        examples: Float[Tensor, "T N *shape"],
        mask: Bool[Tensor, "T N"] | None = None,
        *,
        network: Network | None = None,
    ) -> Float[Tensor, "T N *D"]:
        """Features, or what another pass gives: ``network`` in place of the encoder's own."""
        mode = self.mode
        own = mode == "batch"
        update = own and self.training and self.batchnorm == "batch_then_running"
        with torch.autocast(examples.device.type, self.autocast, enabled=self.autocast is not None):
            features = encode(self.backbone, examples, mode, update=update, mask=mask, network=network or self.network)
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


# A backbone in two parts: stages that see every image alike, kept once as a row of numbers, and stages that do not.
# A method that changes only the last stages from task to task passes an image through the others once.


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
