"""4CONV: four blocks of convolution, BatchNorm, ReLU and max-pooling (Vinyals et al. 2016, Finn et al. 2017)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.base import BACKBONES, Backbone
from e3bm.backbones.double_backward import convolve, pool_with_moments, scaled_relu
from e3bm.backbones.layers import ConvNorm, channels_last, scaled
from e3bm.backbones.normalisation import TaskBatchNorm2d
from e3bm.errors import DataError, SettingsError

# 4CONV with handed-in parameters, made for second-order gradients: the numbers of Conv4, sooner.
#
# A block is convolution, pooling with moments, scale and shift, ReLU. The bias of a convolution is never added to a
# map: BatchNorm with the images' own statistics takes it out again, and with given ones it is part of the shift.


class BlockParameters(NamedTuple):
    """What one block is made of."""

    weight: Float[Tensor, "C2 C 3 3"]
    bias: Float[Tensor, " C2"] | None
    gamma: Float[Tensor, " C2"]
    beta: Float[Tensor, " C2"]
    epsilon: float


@dataclass(frozen=True)
class FunctionalConv4:
    """Conv4's forward pass as a function of its parameters; ``epsilons`` are those of its BatchNorm layers."""

    image_size: int
    epsilons: tuple[float, ...]
    strided: bool
    average: bool

    def __call__(
        self,
        parameters: Mapping[str, Tensor],
        images: Float[Tensor, "N C H W"],
        statistics: Sequence[Float[Tensor, "2 C2"]] | None = None,
        observe: bool = False,
    ) -> tuple[Float[Tensor, "N D"], tuple[Float[Tensor, "2 C2"], ...]]:
        """Features, normalised by the given mean and variance of each layer or by the images' own.

        With ``observe`` also the images' own statistics: mean and unbiased variance of each layer.
        """
        check_image_size(images, self.image_size)
        maps, seen = channels_last(images), []
        for number, epsilon in enumerate(self.epsilons):
            block = BlockParameters(
                parameters[f"blocks.{number}.conv.weight"],
                parameters.get(f"blocks.{number}.conv.bias"),
                parameters[f"blocks.{number}.norm.weight"],
                parameters[f"blocks.{number}.norm.bias"],
                epsilon,
            )
            maps, own = self._block(maps, block, None if statistics is None else statistics[number], observe)
            seen += own
        features = maps.mean((2, 3)) if self.average else maps.flatten(1)
        return features, tuple(seen)

    def _block(
        self, maps: Tensor, block: BlockParameters, given: Tensor | None, observe: bool
    ) -> tuple[Tensor, list[Tensor]]:
        maps = convolve(maps, block.weight, 2 if self.strided else 1)
        count = maps.numel() // maps.shape[1]
        if count == 1 and (given is None or observe):
            raise DataError(
                f"Batch statistics need more than one value per channel, found a map of shape {tuple(maps.shape)}; "
                "pass more or larger images, or use the running statistics."
            )
        if self.strided:
            mean = maps.mean((0, 2, 3))
            variance = (maps - mean.view(1, -1, 1, 1)).square().mean((0, 2, 3))
        else:
            maps, mean, variance = pool_with_moments(maps, block.gamma)
        seen = []
        if observe:
            with torch.no_grad():
                centre = mean if block.bias is None else mean + block.bias
                seen = [torch.stack([centre, variance * (count / (count - 1))])]
        if given is not None:
            mean, variance = given.unbind(0)
        scale = block.gamma * (variance + block.epsilon).rsqrt()
        if given is not None and block.bias is not None:
            mean = mean - block.bias
        shift = torch.addcmul(block.beta, mean, scale, value=-1)
        if given is None and block.bias is not None:
            # A gradient of zero, not none at all: distributed training waits for every parameter.
            shift = shift + 0.0 * block.bias
        return scaled_relu(maps, scale, shift), seen


def functional_conv4(
    blocks: Iterable[nn.Module], *, image_size: int, strided: bool, average: bool
) -> FunctionalConv4 | None:
    """The functional form of blocks as Conv4 builds them; None once a layer was folded or replaced."""
    epsilons = []
    for block in blocks:
        if not isinstance(block, ConvNorm) or type(block.conv) is not nn.Conv2d:
            return None
        if not isinstance(block.norm, TaskBatchNorm2d) or not block.norm.affine or block.slope != 0.0:
            return None
        epsilons.append(block.norm.eps)
    return FunctionalConv4(image_size, tuple(epsilons), strided, average)


def check_image_size(images: Float[Tensor, "N C H W"], image_size: int) -> None:
    """Refuse images of another size than a network's features are made for."""
    if images.shape[2:] != (image_size, image_size):
        raise DataError(
            f"This 4CONV was built for images of {image_size} x {image_size} pixels, found "
            f"{images.shape[2]} x {images.shape[3]}; resize them or build it with their image size."
        )


DEPTH = 4
EGNN_SLOPE = 0.2  # of its leaky ReLU


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


class GrowingConv4(Backbone):
    """EGNN's four convolutions of growing width: max-pooling and leaky ReLU, the second without padding; whole channels
    are dropped after the last two in training."""

    def __init__(self, widths: Sequence[int], *, channels: int, image_size: int, drops: tuple[float, float]) -> None:
        side = ((image_size // 2 - 2) // 2) // 2 // 2
        if side < 1:
            raise SettingsError(f"EGNN's 4CONV needs 20 pixels or more, found {image_size}.")
        super().__init__(channels=channels, feature_size=widths[-1] * side**2, feature_positions=side**2)
        self.image_size = image_size
        self.blocks = nn.ModuleList(
            ConvNorm(inputs, outputs, slope=EGNN_SLOPE, padded=number != 1)
            for number, (inputs, outputs) in enumerate(pairwise([channels, *widths]))
        )
        self.drops = nn.ModuleList([nn.Identity(), nn.Identity(), *(nn.Dropout2d(rate) for rate in drops)])

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        return self.maps(images).flatten(1)

    def maps(self, images: Float[Tensor, "N C H W"], *, last_pooling: bool = True) -> Float[Tensor, "N C2 H2 W2"]:
        """The last feature map, after its max-pooling or before it."""
        check_image_size(images, self.image_size)
        maps = channels_last(images)
        for number, (block, drop) in enumerate(zip(self.blocks, self.drops, strict=True), 1):
            maps = block(maps)
            maps = drop(F.max_pool2d(maps, 2) if last_pooling or number < DEPTH else maps)
        return maps


@BACKBONES.register("conv4_egnn")
def conv4_egnn(
    *, width: float = 1.0, channels: int = 3, image_size: int = 84, drops: tuple[float, float] = (0.4, 0.5)
) -> Backbone:
    """The 4CONV of EGNN's authors, of 64-96-128-256 channels; ``drops`` are rates of its last two blocks."""
    widths = [scaled(width, channel) for channel in (64, 96, 128, 256)]
    return GrowingConv4(widths, channels=channels, image_size=image_size, drops=drops)


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
