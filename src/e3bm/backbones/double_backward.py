"""The operations of a convolutional block with their second derivatives written out, because those of torch are slow.

A convolution's derivatives are again convolutions and weight gradients, so two functions that call one another serve
any order; torch itself takes the weight gradient of the second derivative by a convolution as large as the image.
Max-pooling reads the map once together with its mean and variance; what follows it touches a quarter of the numbers.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

POOL = 2
LARGEST_INT16 = 2**15 - 1
CHUNK = 25  # images whose places are widened at a time

Optional = Tensor | None


class Wanted(NamedTuple):
    """The stride of a convolution, and of which of its inputs a gradient is asked for."""

    stride: int
    of_images: bool
    of_weight: bool


class Convolution(Function):
    """A 3x3 convolution with padding 1 and no bias."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.stride = stride
        return F.conv2d(images, weight, None, stride, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Optional, ...]:
        wanted = Wanted(ctx.stride, *ctx.needs_input_grad[:2])
        return *ConvolutionBackward.apply(gradient, *ctx.saved_tensors, wanted), None


class ConvolutionBackward(Function):
    """The gradients of a convolution; linear in the output's gradient and in one of the other two each."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, images: Tensor, weight: Tensor, wanted: Wanted) -> tuple[Optional, ...]:
        ctx.save_for_backward(gradient, images, weight)
        ctx.set_materialize_grads(False)
        ctx.stride = wanted.stride
        mask = [wanted.of_images, wanted.of_weight, False]
        found = torch.ops.aten.convolution_backward(
            gradient, images, weight, None, [wanted.stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, mask
        )
        return tuple(part if asked else None for part, asked in zip(found[:2], mask[:2], strict=True))

    @staticmethod
    def backward(ctx: Any, along_images: Optional, along_weight: Optional) -> tuple[Optional, ...]:
        gradient, images, weight = ctx.saved_tensors
        of_gradient, of_images, of_weight = ctx.needs_input_grad[:3]
        change: Optional = None
        if of_gradient and along_weight is not None:
            change = Convolution.apply(images, along_weight, ctx.stride)
        if of_gradient and along_images is not None:
            part = Convolution.apply(along_images, weight, ctx.stride)
            change = part if change is None else change.add_(part)
        wanted = Wanted(ctx.stride, of_images and along_weight is not None, of_weight and along_images is not None)
        if not wanted.of_images and not wanted.of_weight:
            return change, None, None, None
        # One call gives both: the directions stand where images and weight stood.
        images = images if along_images is None else along_images
        weight = weight if along_weight is None else along_weight
        return change, *ConvolutionBackward.apply(gradient, images, weight, wanted), None


class PooledMoments(Function):
    """Per 2x2 window the largest value (the smallest where ``sign`` is -1), and mean and variance of every channel."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, sign: Optional) -> tuple[Tensor, ...]:
        pooled, places = F.max_pool2d(maps if sign is None else maps * sign, POOL, return_indices=True)
        mean, variance = torch.batch_norm_update_stats(maps, None, None, 0.0)
        # Places are kept as small integers: as torch has them they would be half as large as the map.
        small = torch.int16 if maps[0, 0].numel() <= LARGEST_INT16 else torch.int32
        ctx.save_for_backward(maps, places.to(small), mean)
        return pooled if sign is None else pooled * sign, mean, variance

    @staticmethod
    def backward(ctx: Any, of_pooled: Tensor, of_mean: Tensor, of_variance: Tensor) -> tuple[Optional, ...]:
        return PooledMomentsBackward.apply(*ctx.saved_tensors, of_pooled, of_mean, of_variance), None


class PooledMomentsBackward(Function):
    """Gradient of the map: of_mean / n + of_variance 2 (map - mean) / n everywhere, of_pooled at the chosen places."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, places: Tensor, mean: Tensor, *gradients: Tensor) -> Tensor:
        of_pooled, of_mean, of_variance = gradients
        count = maps.numel() // maps.shape[1]
        slope = of_variance * (2 / count)
        offset = torch.addcmul(of_mean / count, slope, mean, value=-1)
        gradient = torch.addcmul(offset, _rows(maps), slope)
        for part, places_, of_pooled_ in zip(
            gradient.split(CHUNK), _rows(places).split(CHUNK), _rows(of_pooled).split(CHUNK), strict=True
        ):
            part.scatter_add_(1, places_.long(), of_pooled_)
        ctx.save_for_backward(maps, places, mean, slope)
        return _maps(gradient, maps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, along: Tensor) -> tuple[Optional, ...]:
        maps, places, mean, slope = ctx.saved_tensors
        count = maps.numel() // maps.shape[1]
        product, total = _channel_sums(along, maps, mean)
        of_pooled = _maps(_rows(along).gather(1, _rows(places).long()), places)
        of_maps: Optional = None
        if ctx.needs_input_grad[0]:
            of_maps = _maps(torch.addcmul(slope * total / -count, _rows(along), slope), maps)
        return of_maps, None, None, of_pooled, total / count, product * (2 / count)


class ScaledRelu(Function):
    """relu(scale x map + shift), scale and shift per channel."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        output = torch.addcmul(_per_channel(shift), maps, _per_channel(scale)).relu_()
        ctx.save_for_backward(maps, output, scale)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return ScaledReluBackward.apply(gradient, *ctx.saved_tensors)  # type: ignore[no-any-return]


class ScaledReluBackward(Function):
    """The gradients of map, scale and shift."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, maps: Tensor, output: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        passed = torch.ops.aten.threshold_backward(gradient, output, 0)
        ctx.save_for_backward(passed, maps, output, scale)
        return passed * _per_channel(scale), *_channel_sums(passed, maps, torch.zeros_like(scale))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, along_maps: Tensor, along_scale: Tensor, along_shift: Tensor) -> tuple[Optional, ...]:
        passed, maps, output, scale = ctx.saved_tensors
        change = torch.addcmul(_per_channel(along_shift), maps, _per_channel(along_scale))
        change.addcmul_(along_maps, _per_channel(scale))
        of_scale, _ = _channel_sums(along_maps, passed, torch.zeros_like(scale))
        of_gradient = torch.ops.aten.threshold_backward(change, output, 0)
        return of_gradient, passed * _per_channel(along_scale), None, of_scale


def convolve(
    images: Float[Tensor, "N C H W"], weight: Float[Tensor, "C2 C 3 3"], stride: int = 1
) -> Float[Tensor, "N C2 H2 W2"]:
    """A 3x3 convolution with padding 1, cheap to differentiate twice."""
    return Convolution.apply(images, weight, stride)  # type: ignore[no-any-return]


def pool_with_moments(
    maps: Float[Tensor, "N C H W"], falling: Float[Tensor, " C"]
) -> tuple[Float[Tensor, "N C H2 W2"], Float[Tensor, " C"], Float[Tensor, " C"]]:
    """Pooled map, mean and (biased) variance; channels whose ``falling`` is negative keep the smallest value.

    Pooling may then come before a scale of that sign and a ReLU, which are monotone: the results are the same.
    """
    negative = falling < 0
    sign = torch.where(negative, -1.0, 1.0).to(maps.dtype).view(1, -1, 1, 1) if bool(negative.any()) else None
    return PooledMoments.apply(maps, sign)  # type: ignore[no-any-return]


def scaled_relu(
    maps: Float[Tensor, "N C H W"], scale: Float[Tensor, " C"], shift: Float[Tensor, " C"]
) -> Float[Tensor, "N C H W"]:
    """relu(scale x map + shift)."""
    return ScaledRelu.apply(maps, scale, shift)  # type: ignore[no-any-return]


def _channel_sums(first: Tensor, second: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Per channel sum(first (second - centre)) and sum(first), in one reading: BatchNorm's own reduction does it."""
    _, product, total = torch.ops.aten.native_batch_norm_backward(
        first, second, None, None, None, centre, torch.ones_like(centre), True, 0.0, [False, True, True]
    )
    return product, total


def _per_channel(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)


def _rows(maps: Tensor) -> Tensor:
    """[N C H W] as [N, positions, C]: a view of a channels-last map."""
    return maps.permute(0, 2, 3, 1).reshape(maps.shape[0], -1, maps.shape[1])


def _maps(rows: Tensor, like: Tensor) -> Tensor:
    """[N, positions, C] as [N C H W], channels last."""
    examples, channels, height, width = like.shape
    return rows.view(examples, height, width, channels).permute(0, 3, 1, 2)
