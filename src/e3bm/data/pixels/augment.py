"""Crops, resizing and flips of whole batches, with the random numbers as an argument: pure functions of both.

Images are [N, C, H, W], bytes or floats of 0..255. Bytes stay bytes, and agree with Pillow where Pillow has the
operation: crops and flips exactly, resizing to within 2 of 255 in any pixel (1 when shrinking with the bilinear
filter). ``draws`` holds one row of numbers in [0, 1) per image.
"""

import math

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor
from torch.nn import functional

from e3bm.errors import DataError

Images = Shaped[Tensor, "N C H W"]

CROP_TRIES = 10
RESIZED_CROP_DRAWS = 2 * CROP_TRIES + 2


def _resize_to(images: Images, height: int, width: int, filter: str = "bilinear") -> Shaped[Tensor, "N C h w"]:
    """Resize with a filter that widens when shrinking, as Pillow does."""
    if images.shape[2:] == (height, width):
        return images
    values = functional.interpolate(images, size=(height, width), mode=filter, antialias=True, align_corners=False)
    return values if images.dtype == torch.uint8 else values.clamp(0, 255)


def resize(images: Images, size: int, filter: str = "bilinear") -> Shaped[Tensor, "N C h w"]:
    """Resize so that the shorter side has ``size`` pixels, keeping proportions."""
    height, width = images.shape[2:]
    short = min(height, width)
    return _resize_to(images, size * height // short, size * width // short, filter)


def centre_crop(images: Images, size: int) -> Shaped[Tensor, "N C {size} {size}"]:
    """The middle ``size`` x ``size`` pixels."""
    height, width = images.shape[2:]
    if size > min(height, width):
        raise DataError(f"A crop of {size} x {size} does not fit into images of {height} x {width}; resize them first.")
    top, left = round((height - size) / 2), round((width - size) / 2)
    return images[:, :, top : top + size, left : left + size]


def padded_crop(
    images: Images, size: int, padding: int, draws: Float64[Tensor, "N 2"]
) -> Shaped[Tensor, "N C {size} {size}"]:
    """Pad with black, then cut ``size`` x ``size`` pixels at a random place."""
    count, channels, height, width = images.shape
    tall, wide = height + 2 * padding, width + 2 * padding
    if size > min(tall, wide):
        raise DataError(f"A crop of {size} x {size} does not fit into {height} x {width} pixels padded by {padding}.")
    room = torch.tensor([tall - size + 1, wide - size + 1])
    top, left = (draws * room).floor().long().T
    padded = images.new_zeros((count, tall, wide, channels))
    padded[:, padding : padding + height, padding : padding + width] = images.permute(0, 2, 3, 1)
    # A row of a crop is one stretch of memory: pick the stretches by where they start.
    rows = torch.arange(count)[:, None] * tall + top[:, None] + torch.arange(size)
    starts = (rows * wide + left[:, None]) * channels
    stretches = padded.view(-1).unfold(0, size * channels, 1).index_select(0, starts.reshape(-1))
    return stretches.view(count, size, size, channels).permute(0, 3, 1, 2)


def crop_boxes(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draws: Float64[Tensor, "N draws"]
) -> Int64[Tensor, "N 4"]:
    """For every image top, left, height and width of a box with random area and proportions.

    The first of ten tries that fits is taken; if none does, the largest central box within the proportions.
    """
    shares, proportions = draws[:, :CROP_TRIES], draws[:, CROP_TRIES : 2 * CROP_TRIES]
    area = height * width * (scale[0] + (scale[1] - scale[0]) * shares)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * proportions)
    tries = torch.stack([(area / aspect).sqrt().round(), (area * aspect).sqrt().round()], dim=2).long()  # [N, tries, 2]
    fits = ((tries > 0) & (tries <= torch.tensor([height, width]))).all(dim=2)
    first = torch.where(fits.any(dim=1), fits.int().argmax(dim=1), 0)
    box = tries[torch.arange(len(draws)), first]
    fallback = torch.tensor([min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))])
    box = torch.where(fits.any(dim=1, keepdim=True), box, fallback)
    room = torch.tensor([height, width]) - box
    corner = torch.where(fits.any(dim=1, keepdim=True), (draws[:, -2:] * (room + 1)).floor().long(), room // 2)
    return torch.cat([corner, box], dim=1)


def resized_crops(
    images: Images, boxes: Int64[Tensor, "N 4"], size: int, filter: str = "bilinear"
) -> Shaped[Tensor, "N C {size} {size}"]:
    """Cut every image's own box and resize it to ``size`` x ``size``."""
    pieces = [
        _resize_to(images[n : n + 1, :, top : top + height, left : left + width], size, size, filter)
        for n, (top, left, height, width) in enumerate(boxes.tolist())
    ]
    return torch.cat(pieces) if pieces else images.new_empty((0, images.shape[1], size, size))


def random_resized_crop(
    images: Images,
    size: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    draws: Float64[Tensor, "N draws"],
) -> Shaped[Tensor, "N C {size} {size}"]:
    """A random part of every image, of random area and proportions, resized to ``size`` x ``size``."""
    height, width = images.shape[2:]
    return resized_crops(images, crop_boxes(height, width, scale, ratio, draws), size)


def horizontal_flip(images: Images, draws: Float64[Tensor, "N 1"], probability: float = 0.5) -> Images:
    """Mirror every image with the given probability."""
    mirrored = draws[:, 0] < probability
    result = images.clone()
    result[mirrored] = images[mirrored].flip(3)
    return result


def invert(images: Images) -> Images:
    """Black on white becomes white on black."""
    return 255 - images


def to_channels(images: Shaped[Tensor, "N C H W"], count: int) -> Shaped[Tensor, "N C2 H W"]:
    """The same pictures with another number of channels: grey is repeated, colours are averaged to grey."""
    if images.shape[1] == count:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, count, -1, -1)
    grey = images.to(torch.float32).mean(1, keepdim=True).round().to(images.dtype)
    return grey.expand(-1, count, -1, -1)
