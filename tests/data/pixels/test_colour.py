"""Colour changes are Pillow's, to the last bit of every byte."""

import platform

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from e3bm.data.episodes.randomness import uniform_numbers
from e3bm.data.pixels import colour
from e3bm.errors import DataError


def pictures(count: int, height: int, width: int, channels: int) -> list[Image.Image]:
    rng = np.random.default_rng(height * 1000 + width + channels)
    shape = (count, height, width) if channels == 1 else (count, height, width, channels)
    return [Image.fromarray(pixels) for pixels in rng.integers(0, 256, shape, dtype=np.uint8)]


def tensor(images: list[Image.Image]) -> Tensor:
    pixels = np.stack([np.asarray(image) for image in images])
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def draws(count: int, width: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(uniform_numbers(seed, "test", range(count), width))


ENHANCERS = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]


def changed(images: Tensor, which: int, factors: Tensor) -> Tensor:
    """One of the three changes alone, by these factors: of strength 1, a draw of half the factor gives the factor."""
    strengths = [float(place == which) for place in range(3)]
    numbers = torch.zeros(len(images), 4, dtype=torch.float64)
    numbers[:, which] = factors.double() / 2
    return colour.colour_jitter(images, *strengths, numbers)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("which", range(3), ids=["brightness", "contrast", "saturation"])
def test_colour_changes_are_pillows_exactly(which: int, channels: int) -> None:
    images = pictures(30, 17, 19, channels)
    factors = torch.linspace(0, 2, 30)
    expected = [ENHANCERS[which](image).enhance(float(f)) for image, f in zip(images, factors, strict=True)]
    difference = (changed(tensor(images), which, factors).int() - tensor(expected).int()).abs()
    # Pillow for other processors than these may be compiled to round product and sum in one: a pixel in a thousand
    # then loses another fraction.
    same = platform.machine() in ("x86_64", "AMD64")
    assert difference.max() <= (0 if same else 1)
    assert difference.float().mean() < 0.001
    floats = changed(tensor(images).double(), which, factors)
    assert floats.dtype == torch.float64
    assert (floats - tensor(expected)).abs().max() <= 1.51  # Pillow rounds the grey values and drops the fraction


def test_colour_jitter_is_the_three_changes_in_a_random_order() -> None:
    images, numbers = pictures(120, 8, 9, 3), draws(120, 4)
    ours = colour.colour_jitter(tensor(images), 0.4, 0.3, 0.2, numbers)
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    expected = []
    for image, row in zip(images, numbers.tolist(), strict=True):
        changed = image
        for which in orders[int(row[3] * 6)]:
            strength = (0.4, 0.3, 0.2)[which]
            changed = ENHANCERS[which](changed).enhance(1 - strength + 2 * strength * row[which])
        expected.append(changed)
    assert (ours.int() - tensor(expected).int()).abs().max() <= 1  # factors are 32-bit here, 64-bit there
    assert (ours == tensor(expected)).float().mean() > 0.999
    assert torch.equal(colour.colour_jitter(tensor(images), 0.0, 0.0, 0.0, numbers), tensor(images))
    with pytest.raises(DataError, match="grey or RGB images, found 4 channels"):
        colour.colour_jitter(tensor(pictures(5, 8, 8, 4)), 0.4, 0.4, 0.4, numbers[:5])


def test_a_strength_above_one_never_makes_a_negative_factor() -> None:
    images = torch.full((50, 1, 4, 4), 100, dtype=torch.uint8)
    brightest = colour.colour_jitter(images, 3.0, 0.0, 0.0, draws(50, 4))
    assert brightest.float().mean() > 100
    expected = (draws(50, 4)[:, 0] * 4 * 100).clamp(max=255)
    assert (brightest[:, 0, 0, 0] - expected).abs().max() <= 1
