"""Residual networks of few-shot learning: ResNet-12 (MetaOptNet's and CAN's), ResNet-18 and ResNet-25 (MTL's)."""

from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.base import BACKBONES, Backbone, build
from e3bm.backbones.layers import (
    ConvNorm,
    DropBlock,
    activate,
    check_rate,
    initialise_residual,
    scaled,
)
from e3bm.errors import DataError, SettingsError

LEAKY = 0.1


class PooledBlock(nn.Module):
    """ResNet-12's block: three convolutions beside a 1x1 shortcut, leaky ReLU, max-pooling by 2, dropout."""

    def __init__(self, inputs: int, outputs: int, drop: nn.Module) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            ConvNorm(inputs, outputs, slope=LEAKY), ConvNorm(outputs, outputs, slope=LEAKY), ConvNorm(outputs, outputs)
        )
        self.shortcut = ConvNorm(inputs, outputs, kernel=1)
        self.drop = drop

    def forward(self, maps: Float[Tensor, "N C H W"], *, pooling: bool = True) -> Float[Tensor, "N C2 H2 W2"]:
        total: Tensor = self.residual(maps)
        activated = activate(total.add_(self.shortcut(maps)), LEAKY)
        dropped: Tensor = self.drop(F.max_pool2d(activated, 2) if pooling else activated)
        return dropped


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut, which is a 1x1 convolution where the shape changes, and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(ConvNorm(inputs, outputs, stride=stride, slope=0.0), ConvNorm(outputs, outputs))
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, kernel=1, stride=stride)

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C2 H2 W2"]:
        total: Tensor = self.residual(maps)
        return activate(total.add_(self.shortcut(maps)))


class StridedBlock(nn.Module):
    """CAN's block: three convolutions, the second of stride 2, beside a 1x1 shortcut of stride 2, and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            ConvNorm(inputs, outputs, slope=0.0),
            ConvNorm(outputs, outputs, stride=2, slope=0.0),
            ConvNorm(outputs, outputs),
        )
        self.shortcut = ConvNorm(inputs, outputs, kernel=1, stride=2)

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C2 H2 W2"]:
        total: Tensor = self.residual(maps)
        return activate(total.add_(self.shortcut(maps)))


class ResNet(Backbone):
    """A stem, residual blocks, and the mean over positions; with several ``positions`` they are kept side by side."""

    def __init__(
        self, stem: nn.Module, blocks: list[nn.Module], *, channels: int, feature_size: int, positions: int = 1
    ) -> None:
        super().__init__(channels=channels, feature_size=feature_size * positions, feature_positions=positions)
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        initialise_residual(self)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        maps = self.maps(images)
        if maps[0, 0].numel() != self.feature_positions > 1:
            raise DataError(
                f"This ResNet-12 keeps the {self.feature_positions} positions of its last map; images of "
                f"{images.shape[2]} x {images.shape[3]} pixels give {maps[0, 0].numel()}. Build it with their size."
            )
        return self.pooled(maps)

    def pooled(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """The mean over positions, or all of them side by side."""
        return maps.mean((2, 3)) if self.feature_positions == 1 else maps.flatten(1)

    def stages(self) -> list[nn.Module]:
        """The stem and the blocks."""
        return [self.stem, *self.blocks]

    def maps(self, images: Float[Tensor, "N C H W"], *, last_pooling: bool = True) -> Float[Tensor, "N C2 H2 W2"]:
        """The last feature map; without ``last_pooling`` ResNet-12 gives it before its last max-pooling."""
        *others, last = self.stages()
        maps = self.through(others, images)
        found: Tensor = last(maps) if last_pooling or not isinstance(last, PooledBlock) else last(maps, pooling=False)
        return found


@BACKBONES.register("resnet12")
def resnet12(
    *,
    width: float = 1.0,
    channels: int = 3,
    image_size: int = 84,
    dropout: float = 0.0,
    dropblock: float = 0.0,
    block_size: int = 5,
    average: bool = True,
) -> Backbone:
    """ResNet-12 of 64-160-320-640 channels; ``dropout`` acts in the first two blocks, ``dropblock`` in the last two.

    Not ``average``: all positions of the last map are features.
    """
    if image_size < 16:
        raise SettingsError(f"ResNet-12 halves the image 4 times and needs 16 pixels or more, found {image_size}.")
    check_rate("dropout", dropout)
    check_rate("dropblock", dropblock)
    widths = [scaled(width, channel) for channel in (64, 160, 320, 640)]
    drops = [
        nn.Dropout(dropout),
        nn.Dropout(dropout),
        DropBlock(dropblock, block_size),
        DropBlock(dropblock, block_size),
    ]
    blocks: list[nn.Module] = [
        PooledBlock(inputs, outputs, drop)
        for inputs, outputs, drop in zip([channels, *widths[:-1]], widths, drops, strict=True)
    ]
    positions = 1 if average else (image_size // 16) ** 2
    return ResNet(nn.Identity(), blocks, channels=channels, feature_size=widths[-1], positions=positions)


@BACKBONES.register("resnet12_flat")
def resnet12_flat(*, width: float = 1.0, channels: int = 3, image_size: int = 84, drop: float = 0.1) -> Backbone:
    """ResNet-12 as MetaOptNet was published with: not averaged, dropout and DropBlock of the rate ``drop``."""
    drops = {"dropout": drop, "dropblock": drop, "block_size": 5 if image_size > 32 else 2}
    return build("resnet12", width=width, channels=channels, image_size=image_size, average=False, **drops)


@BACKBONES.register("resnet12_can")
def resnet12_can(*, width: float = 1.0, channels: int = 3, image_size: int = 84) -> Backbone:
    """CAN's ResNet-12: a 3x3 stem and blocks of 64-128-256-512 channels without pooling."""
    first, *widths = (scaled(width, channel) for channel in (64, 64, 128, 256, 512))
    blocks: list[nn.Module] = [StridedBlock(*sizes) for sizes in pairwise([first, *widths])]
    return ResNet(ConvNorm(channels, first, slope=0.0), blocks, channels=channels, feature_size=widths[-1])


@BACKBONES.register("resnet18")
def resnet18(*, width: float = 1.0, channels: int = 3, image_size: int = 84) -> Backbone:
    """ResNet-18 with a 3x3 stem, which has stride 1 up to 84 pixels and stride 2 beyond."""
    widths = [scaled(width, channel) for channel in (64, 128, 256, 512)]
    stem = ConvNorm(channels, widths[0], stride=1 if image_size <= 84 else 2, slope=0.0)
    blocks = _stages([widths[0], *widths], strides=(1, 2, 2, 2), depth=2)
    return ResNet(stem, blocks, channels=channels, feature_size=widths[-1])


@BACKBONES.register("resnet25")
def resnet25(*, width: float = 1.0, channels: int = 3, image_size: int = 84) -> Backbone:
    """ResNet-25 of MTL: a stem of 80 channels with bias, three stages of four blocks, 160-320-640 channels."""
    widths = [scaled(width, channel) for channel in (80, 160, 320, 640)]
    stem = ConvNorm(channels, widths[0], bias=True, slope=0.0)
    return ResNet(stem, _stages(widths, strides=(2, 2, 2), depth=4), channels=channels, feature_size=widths[-1])


def _stages(widths: list[int], strides: tuple[int, ...], depth: int) -> list[nn.Module]:
    """Stages of ``depth`` basic blocks; the first block of each changes channels and size."""
    blocks: list[nn.Module] = []
    for inputs, outputs, stride in zip(widths[:-1], widths[1:], strides, strict=True):
        blocks.append(BasicBlock(inputs, outputs, stride))
        blocks.extend(BasicBlock(outputs, outputs, 1) for _ in range(depth - 1))
    return blocks
