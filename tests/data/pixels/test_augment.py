"""Batched image operations: equal to Pillow's where Pillow has them, uniform where they are random."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from e3bm.data.episodes.randomness import uniform_numbers
from e3bm.data.pixels import augment
from e3bm.errors import DataError

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def pictures(count: int, height: int, width: int, channels: int, smooth: bool = False) -> list[Image.Image]:
    rng = np.random.default_rng(height * 1000 + width + channels)
    shape = (count, height, width) if channels == 1 else (count, height, width, channels)
    images = [Image.fromarray(pixels) for pixels in rng.integers(0, 256, shape, dtype=np.uint8)]
    return [image.filter(ImageFilter.GaussianBlur(2)) for image in images] if smooth else images


def tensor(images: list[Image.Image]) -> Tensor:
    pixels = np.stack([np.asarray(image) for image in images])
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def draws(count: int, width: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(uniform_numbers(seed, "test", range(count), width))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("before", "after"), [(84, 92), (84, 32), (105, 28), (32, 84), (32, 92), (40, 41), (60, 60), (96, 20)]
)
def test_resizing_is_pillows(channels: int, filter: str, before: int, after: int) -> None:
    images = pictures(4, before, before, channels)
    ours = augment.resize(tensor(images), after, filter).int()
    theirs = tensor([image.resize((after, after), FILTERS[filter]) for image in images]).int()
    difference = (ours - theirs).abs()
    exact = filter == "bilinear" and after < before
    assert difference.max() <= (1 if exact else 2)
    assert (difference > 1).float().mean() < 0.005
    assert (difference > 0).float().mean() < 0.05
    if filter == "bilinear":  # Pillow cuts to 0..255 between the two passes of a bicubic resize; floats do not
        as_floats = augment.resize(tensor(images).double(), after, filter)
        assert (as_floats.round().int() - theirs).abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), [(50, 80), (80, 50), (33, 34)])
def test_resizing_keeps_proportions(height: int, width: int) -> None:
    images = pictures(2, height, width, 3, smooth=True)
    ours = augment.resize(tensor(images), 40)
    assert min(ours.shape[2:]) == 40
    assert ours.shape[2:] == (40 * height // min(height, width), 40 * width // min(height, width))
    theirs = tensor([image.resize((ours.shape[3], ours.shape[2]), FILTERS["bilinear"]) for image in images])
    assert (ours.int() - theirs.int()).abs().max() <= 2


def test_a_centre_crop_is_pillows_crop() -> None:
    images = pictures(3, 92, 101, 3)
    ours = augment.centre_crop(tensor(images), 80)
    assert torch.equal(ours, tensor([image.crop((10, 6, 90, 86)) for image in images]))
    with pytest.raises(DataError, match="A crop of 93 x 93 does not fit into images of 92 x 101"):
        augment.centre_crop(tensor(images), 93)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_padded_crop_is_pillows_crop_of_a_bordered_image(channels: int) -> None:
    images = pictures(40, 10, 12, channels)
    ours = augment.padded_crop(tensor(images), 11, 2, draws(40, 2))
    places = [(int(top * 4), int(left * 6)) for top, left in draws(40, 2).tolist()]
    assert len(set(places)) > 10
    border = 0 if channels == 1 else (0,) * channels
    theirs = [
        ImageOps.expand(image, 2, border).crop((left, top, left + 11, top + 11))
        for image, (top, left) in zip(images, places, strict=True)
    ]
    assert torch.equal(ours, tensor(theirs))
    floats = augment.padded_crop(tensor(images).double(), 11, 2, draws(40, 2))
    assert torch.equal(floats, ours.double())
    with pytest.raises(DataError, match="A crop of 15 x 15 does not fit into 10 x 12 pixels padded by 2"):
        augment.padded_crop(tensor(images), 15, 2, draws(40, 2))


def test_a_padded_crop_reaches_every_place_and_no_other() -> None:
    corner = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    corner[0, 0, 0, 0] = 1
    edge = 1 - 2.0**-53
    for numbers, place in (((0.0, 0.0), (1, 1)), ((edge, edge), None), ((0.5, 0.0), (0, 1))):
        cut = augment.padded_crop(corner, 4, 1, torch.tensor([numbers], dtype=torch.float64))[0, 0]
        assert torch.nonzero(cut).tolist() == ([] if place is None else [list(place)])


def test_a_flip_is_pillows_mirror() -> None:
    images = pictures(200, 6, 7, 3)
    chance = draws(200, 1)
    ours = augment.horizontal_flip(tensor(images), chance)
    theirs = [
        ImageOps.mirror(image) if number < 0.5 else image
        for image, number in zip(images, chance[:, 0].tolist(), strict=True)
    ]
    assert torch.equal(ours, tensor(theirs))
    assert 70 < int((chance < 0.5).sum()) < 130
    assert torch.equal(augment.horizontal_flip(tensor(images), chance, probability=0.0), tensor(images))


def test_resized_crops_are_pillows() -> None:
    images = pictures(12, 50, 40, 3, smooth=True)
    boxes = augment.crop_boxes(50, 40, (0.08, 1.0), (3 / 4, 4 / 3), draws(12, augment.RESIZED_CROP_DRAWS))
    ours = augment.resized_crops(tensor(images), boxes, 32)
    theirs = [
        image.crop((left, top, left + width, top + height)).resize((32, 32), FILTERS["bilinear"])
        for image, (top, left, height, width) in zip(images, boxes.tolist(), strict=True)
    ]
    assert (ours.int() - tensor(theirs).int()).abs().max() <= 2
    whole = augment.random_resized_crop(tensor(images), 32, (0.08, 1.0), (3 / 4, 4 / 3), draws(12, 22))
    assert torch.equal(whole, ours)
    nothing = augment.random_resized_crop(tensor(images)[:0], 32, (0.08, 1.0), (3 / 4, 4 / 3), draws(0, 22))
    assert nothing.shape == (0, 3, 32, 32)


@given(
    height=st.integers(1, 120),
    width=st.integers(1, 120),
    low=st.floats(0.01, 1),
    narrow=st.floats(0.3, 1),
    seed=st.integers(0, 100),
)
@settings(max_examples=150, deadline=None)
def test_crop_boxes_lie_inside_the_image(height: int, width: int, low: float, narrow: float, seed: int) -> None:
    boxes = augment.crop_boxes(height, width, (low, 1.0), (narrow, 1 / narrow), draws(50, 22, seed))
    top, left, tall, wide = boxes.T
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()


def test_crop_boxes_have_the_area_and_proportions_asked_for() -> None:
    boxes = augment.crop_boxes(1000, 1000, (0.2, 0.5), (0.8, 1.25), draws(4000, 22)).double()
    share, proportion = boxes[:, 2] * boxes[:, 3] / 1e6, boxes[:, 3] / boxes[:, 2]
    assert 0.199 < share.min() < 0.21
    assert 0.49 < share.max() < 0.501
    assert abs(share.mean() - 0.35) < 0.01
    assert 0.79 < proportion.min() < 0.81
    assert 1.23 < proportion.max() < 1.26
    assert abs(proportion.log().mean()) < 0.01
    place = boxes[:, :2] / (1001 - boxes[:, 2:])
    assert abs(place.mean() - 0.5) < 0.02


def test_a_shape_that_no_try_fits_gives_the_largest_central_box() -> None:
    boxes = augment.crop_boxes(10, 1000, (0.9, 1.0), (3 / 4, 4 / 3), draws(5, 22))
    assert boxes.tolist() == [[0, 493, 10, 13]] * 5
    boxes = augment.crop_boxes(1000, 10, (0.9, 1.0), (3 / 4, 4 / 3), draws(5, 22))
    assert boxes.tolist() == [[493, 0, 13, 10]] * 5


def test_inverting_twice_changes_nothing() -> None:
    images = tensor(pictures(3, 5, 5, 1))
    assert torch.equal(augment.invert(augment.invert(images)), images)
    assert torch.equal(augment.invert(images), tensor([ImageOps.invert(image) for image in pictures(3, 5, 5, 1)]))
