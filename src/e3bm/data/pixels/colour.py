"""Brightness, contrast and saturation of whole batches: for bytes exactly what Pillow's ImageEnhance does.

Images are [N, C, H, W], bytes or floats of 0..255, grey or RGB.
"""

from collections.abc import Callable
from itertools import permutations

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from e3bm.errors import DataError

Images = Shaped[Tensor, "N C H W"]
Values = Float[Tensor, "N pixels C"]
Factor = Float[Tensor, " N"]

JITTER_DRAWS = 4
ORDERS = tuple(permutations(range(3)))
IMAGES_AT_A_TIME = 8  # a few images at a time stay in the processor's cache from one operation to the next
# Pillow's luma in 65536ths; sums stay below 2^24, so 32-bit floats hold them exactly.
LUMA = (19595.0, 38470.0, 7471.0)


def colour_jitter(
    images: Images, brightness: float, contrast: float, saturation: float, draws: Float64[Tensor, "N 4"]
) -> Images:
    """All three by random factors up to 1 +- the given strength, in random order."""
    strengths = torch.tensor([brightness, contrast, saturation], dtype=torch.float64)
    low = (1 - strengths).clamp(min=0)
    factors = (low + (1 + strengths - low) * draws[:, :3]).float()
    order_of = (draws[:, 3] * len(ORDERS)).long()
    whole = images.dtype == torch.uint8
    pixels = _pixels(images)
    result = torch.empty_like(pixels)
    for number, order in enumerate(ORDERS):
        for chosen in torch.nonzero(order_of == number)[:, 0].split(IMAGES_AT_A_TIME):
            values = _values(pixels[chosen])
            for which in order:
                if strengths[which] > 0:
                    CHANGES[which](values, factors[chosen, which], whole)
            result[chosen] = values.to(images.dtype)
    return _images(result, images)


def _brightness(values: Values, factor: Factor, whole: bool) -> Values:
    """Towards black (0), unchanged (1), brighter (above 1)."""
    return _cut(values.mul_(factor[:, None, None]), whole)


def _contrast(values: Values, factor: Factor, whole: bool) -> Values:
    """Towards the image's mean grey (0), unchanged (1), stronger (above 1)."""
    mean = _luma(values, whole)[..., :1].to(torch.float64).mean(dim=(1, 2), keepdim=True)
    mean = (mean + 0.5).floor() if whole else mean
    return _blend(values, mean.to(values.dtype), factor, whole)


def _saturation(values: Values, factor: Factor, whole: bool) -> Values:
    """Towards grey (0), unchanged (1), more colourful (above 1)."""
    return values if values.shape[2] == 1 else _blend(values, _luma(values, whole), factor, whole)


CHANGES: tuple[Callable[[Tensor, Tensor, bool], Tensor], ...] = (_brightness, _contrast, _saturation)


def _luma(values: Values, whole: bool) -> Values:
    """The grey value of every pixel, repeated in all channels; rounded where the images are bytes."""
    channels = values.shape[2]
    if channels == 1:
        return values
    if channels != 3:
        raise DataError(f"Colour jitter needs grey or RGB images, found {channels} channels.")
    total = values @ values.new_tensor(LUMA)[:, None].expand(3, 3)
    return total.add_(32768).mul_(1 / 65536).floor_() if whole else total.mul_(1 / 65536)


def _blend(values: Values, base: Float[Tensor, "N #pixels #C"], factor: Factor, whole: bool) -> Values:
    """base + factor (value - base), in place."""
    return _cut(values.sub_(base).mul_(factor[:, None, None]).add_(base), whole)


def _cut(values: Values, whole: bool) -> Values:
    """To 0..255, without the fraction where the images are bytes (so does Pillow)."""
    values.clamp_(0, 255)
    return values.floor_() if whole else values


def _pixels(images: Images) -> Shaped[Tensor, "N pixels C"]:
    return images.permute(0, 2, 3, 1).flatten(1, 2)


def _values(pixels: Shaped[Tensor, "N pixels C"]) -> Values:
    """A float copy to compute in."""
    return pixels.to(torch.float32 if pixels.dtype == torch.uint8 else pixels.dtype, copy=True)


def _images(values: Shaped[Tensor, "N pixels C"], like: Images) -> Images:
    count, channels, height, width = like.shape
    return values.to(like.dtype).view(count, height, width, channels).permute(0, 3, 1, 2)
