"""What a backbone is, and how one is found by name: images in, one feature vector each out."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.layers import ConvNorm, channels_last
from e3bm.backbones.normalisation import TaskBatchNorm2d, convert_batchnorm
from e3bm.errors import DataError, SettingsError
from e3bm.registry import Registry


class Backbone(nn.Module, ABC):
    """Maps images to features of ``feature_size`` = channels x positions of the last map, channel-major.

    Backbones that average over positions have one position. A folded backbone has lost BatchNorm layers to its
    convolutions and knows running statistics only.
    """

    folded: bool = False

    def __init__(self, *, channels: int, feature_size: int, feature_positions: int = 1) -> None:
        super().__init__()
        self.channels = channels
        self.feature_size = feature_size
        self.feature_positions = feature_positions

    @property
    def feature_channels(self) -> int:
        return self.feature_size // self.feature_positions

    @abstractmethod
    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """The features of every image."""

    def maps(self, images: Float[Tensor, "N C H W"], *, last_pooling: bool = True) -> Float[Tensor, "N C2 H2 W2"]:
        """The last feature map of every image, from the same weights; ``forward`` averages or flattens it.

        Without ``last_pooling`` the last block does not pool, so that maps have twice the side; a network that has no
        pooling there gives the same maps either way.
        """
        raise SettingsError(
            "This backbone gives features without positions, and this method needs feature maps; choose one of the "
            "backbones conv4, resnet12, resnet18, resnet25 or wrn28_10, not whitened."
        )

    def stages(self) -> list[nn.Module]:
        """Modules that an image passes one after the other up to the last map; none where it cannot be divided so."""
        return []

    def through(self, stages: Sequence[nn.Module], maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C2 H2 W2"]:
        """Images, or the maps of the stage before, through some stages in a row."""
        maps = channels_last(maps)
        for stage in stages:
            maps = stage(maps)
        return maps

    def pooled(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Features of a last map: the mean over its positions."""
        return maps.mean((2, 3))

    def conv_norm_pairs(self) -> list[tuple[str, str]]:
        """The names of each convolution and of the BatchNorm that alone reads its output: what can be folded."""
        return [
            (f"{name}.conv", f"{name}.norm")
            for name, module in self.named_modules()
            if isinstance(module, ConvNorm) and isinstance(module.norm, TaskBatchNorm2d)
        ]


class BackboneFactory(Protocol):
    """Builds a backbone; further keyword arguments are the backbone's own options."""

    def __call__(self, *, width: float, channels: int, image_size: int) -> Backbone: ...


BACKBONES: Registry[BackboneFactory] = Registry("backbones")


def build(name: str, *, width: float = 1.0, channels: int = 3, image_size: int = 84, **options: object) -> Backbone:
    """The backbone of that name at a width factor, for square images of that many channels and pixels."""
    factory = BACKBONES[name]
    if width <= 0:
        raise SettingsError(f"The width factor must be greater than 0, found {width}.")
    if channels < 1 or image_size < 1:
        raise SettingsError(
            f"Images need at least 1 channel and 1 pixel, found {channels} channels and image size {image_size}."
        )
    settings = {"width": width, "channels": channels, "image_size": image_size, **options}
    signature = inspect.signature(factory)
    try:
        signature.bind(**settings)
    except TypeError as error:
        known = ", ".join(signature.parameters)
        raise SettingsError(f"The backbone '{name}' cannot be built: {error}; it takes {known}.") from error
    return factory(**settings)  # type: ignore[arg-type]  # the signature was just checked


def wrap(module: nn.Module, feature_size: int, *, channels: int = 3) -> Backbone:
    """Any network as a backbone; its output is flattened to ``feature_size`` numbers per image.

    Its BatchNorm layers are replaced in place by TaskBatchNorm2d, which keep their parameters and buffers.
    """
    return WrappedBackbone(module, feature_size, channels)


class WrappedBackbone(Backbone):
    """A network that was not written for this package."""

    def __init__(self, module: nn.Module, feature_size: int, channels: int) -> None:
        super().__init__(channels=channels, feature_size=feature_size)
        self.module = convert_batchnorm(module)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        features: Tensor = self.module(channels_last(images))
        features = features.flatten(1)
        if features.shape[1] != self.feature_size:
            raise DataError(
                f"The wrapped network gave {features.shape[1]} features for images of shape {tuple(images.shape[1:])}, "
                f"expected {self.feature_size}; wrap it with its true feature size."
            )
        return features
