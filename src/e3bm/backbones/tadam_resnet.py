"""The residual network of TADAM (Oreshkin et al., NeurIPS 2018): twelve convolutions, swish, three poolings."""

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.base import BACKBONES, Backbone
from e3bm.backbones.layers import ConvNorm, scaled
from e3bm.backbones.normalisation import task_batchnorms

EPS, MOMENTUM = 1e-3, 0.05  # of BatchNorm
START = 0.2  # variance of a convolution's first weights, times its fan-out


class SwishBlock(nn.Module):
    """Three convolutions beside a 1x1 shortcut; swish follows the first two and the sum. It may begin by pooling."""

    def __init__(self, inputs: int, outputs: int, *, pooling: bool) -> None:
        super().__init__()
        self.pooling = pooling
        self.residual = nn.ModuleList(ConvNorm(channels, outputs) for channels in (inputs, outputs, outputs))
        self.shortcut = ConvNorm(inputs, outputs, kernel=1)

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C2 H2 W2"]:
        maps = F.max_pool2d(maps, 2, ceil_mode=True) if self.pooling else maps
        first, second, third = self.residual
        return F.silu(third(F.silu(second(F.silu(first(maps))))) + self.shortcut(maps))


class TadamResNet(Backbone):
    """Four blocks with max-pooling after the first three, which rounds odd sides up, and the mean over positions."""

    def __init__(self, widths: Sequence[int], *, channels: int) -> None:
        super().__init__(channels=channels, feature_size=widths[-1])
        sizes = enumerate(pairwise([channels, *widths]))
        self.blocks = nn.ModuleList(SwishBlock(*size, pooling=number > 0) for number, size in sizes)
        for norm in task_batchnorms(self):
            norm.eps, norm.momentum = EPS, MOMENTUM
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, (START / (layer.weight[0, 0].numel() * layer.out_channels)) ** 0.5)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        return self.pooled(self.maps(images))

    def maps(self, images: Float[Tensor, "N C H W"], *, last_pooling: bool = True) -> Float[Tensor, "N C2 H2 W2"]:
        """The last feature map; no pooling follows the last block."""
        return self.through(self.stages(), images)

    def stages(self) -> list[nn.Module]:
        """The blocks."""
        return list(self.blocks)


@BACKBONES.register("resnet12_tadam")
def resnet12_tadam(*, width: float = 1.0, channels: int = 3, image_size: int = 84) -> Backbone:
    """TADAM's ResNet-12 of 64-128-256-512 channels."""
    return TadamResNet([scaled(width, channel) for channel in (64, 128, 256, 512)], channels=channels)
