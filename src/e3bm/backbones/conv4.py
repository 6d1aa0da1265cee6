"""4CONV: four blocks of convolution, BatchNorm, ReLU and max-pooling (Vinyals et al. 2016, Finn et al. 2017)."""

from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.base import BACKBONES, Backbone
from e3bm.backbones.functional_conv4 import FunctionalConv4, check_image_size, functional_conv4
from e3bm.backbones.layers import ConvNorm, channels_last, scaled
from e3bm.errors import SettingsError

DEPTH = 4


class Conv4(Backbone):
    """Four 3x3 convolutions, each halving the image by max-pooling or, in the Omniglot form, by stride 2."""

    def __init__(
        self, filters: int, *, channels: int, image_size: int, strided: bool, bias: bool, average: bool
    ) -> None:
        side = image_size
        for _ in range(DEPTH):
            side = (side + 1) // 2 if strided else side // 2
        if side < 1:
            raise SettingsError(
                f"4CONV halves the image {DEPTH} times and needs 16 pixels or more, found {image_size}."
            )
        positions = 1 if average else side * side
        super().__init__(channels=channels, feature_size=filters * positions, feature_positions=positions)
        self.image_size = image_size
        self.strided = strided
        self.average = average
        widths = [channels] + [filters] * DEPTH
        stride = 2 if strided else 1
        self.blocks = nn.ModuleList(
            ConvNorm(inputs, outputs, stride=stride, bias=bias, slope=0.0) for inputs, outputs in pairwise(widths)
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        maps = self.maps(images)
        return maps.mean((2, 3)) if self.average else maps.flatten(1)

    def maps(self, images: Float[Tensor, "N C H W"], *, last_pooling: bool = True) -> Float[Tensor, "N C2 H2 W2"]:
        """The last feature map, after its max-pooling or before it; the form with strides has no pooling."""
        check_image_size(images, self.image_size)
        maps = channels_last(images)
        for number, block in enumerate(self.blocks, 1):
            maps = block(maps)
            if not self.strided and (last_pooling or number < DEPTH):
                maps = F.max_pool2d(maps, 2)
        return maps

    def functional_pass(self) -> FunctionalConv4 | None:
        """The network as a function of its parameters, cheap to differentiate twice; None once layers were replaced."""
        return functional_conv4(self.blocks, image_size=self.image_size, strided=self.strided, average=self.average)


@BACKBONES.register("conv4")
def conv4(*, width: float = 1.0, channels: int = 3, image_size: int = 84, bias: bool = True) -> Backbone:
    """4CONV with 32 filters, the network of MAML."""
    return Conv4(scaled(width, 32), channels=channels, image_size=image_size, strided=False, bias=bias, average=False)


@BACKBONES.register("conv4_64")
def conv4_64(*, width: float = 1.0, channels: int = 3, image_size: int = 84, bias: bool = True) -> Backbone:
    """4CONV with 64 filters, the network of Matching and Prototypical Networks."""
    return Conv4(scaled(width, 64), channels=channels, image_size=image_size, strided=False, bias=bias, average=False)


@BACKBONES.register("conv4_stride")
def conv4_stride(
    *, width: float = 1.0, channels: int = 3, image_size: int = 84, bias: bool = True, average: bool = False
) -> Backbone:
    """4CONV for Omniglot: 64 filters, stride 2 in place of pooling; ``average`` takes the mean of the last map."""
    return Conv4(scaled(width, 64), channels=channels, image_size=image_size, strided=True, bias=bias, average=average)
