"""The named normalisations are the published numbers, and are applied per channel."""

import numpy as np
import pytest
import torch

from e3bm.data.pixels.pipeline import NORMALISATIONS, Normalisation
from e3bm.errors import DataError, SettingsError

PUBLISHED = {
    "gidaris": ([120.39586422, 115.59361427, 104.54012653], [70.68188272, 68.27635443, 72.54505529]),
    "mtl": ([125.3, 123.0, 113.9], [63.0, 62.1, 66.7]),
    "cifar": ([129.37731888, 124.10583864, 112.47758569], [68.20947949, 65.43124043, 70.45866994]),
    "imagenet": ([255 * x for x in (0.485, 0.456, 0.406)], [255 * x for x in (0.229, 0.224, 0.225)]),
    "lite": ([127.0] * 3, [128.0] * 3),
    "none": ([0.0] * 3, [255.0] * 3),
    "grey": ([127.5] * 3, [127.5] * 3),
}


def pixels(channels: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 5, 6, channels), dtype=np.uint8)


def test_all_names_are_checked_here() -> None:
    assert sorted(PUBLISHED) == list(NORMALISATIONS)


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_pixels_are_shifted_and_scaled(name: str) -> None:
    mean, std = PUBLISHED[name]
    expected = torch.from_numpy((pixels(3) - np.array(mean)) / np.array(std)).permute(0, 3, 1, 2)
    images = torch.from_numpy(pixels(3)).permute(0, 3, 1, 2)
    exact = NORMALISATIONS[name](images, torch.float64)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(NORMALISATIONS[name](images), expected.float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(NORMALISATIONS[name](images.contiguous(), torch.float64), exact, rtol=0, atol=0)
    torch.testing.assert_close(NORMALISATIONS[name](images.double(), torch.float64), exact, rtol=0, atol=0)


def test_the_input_is_not_changed() -> None:
    images = torch.from_numpy(pixels(3)).permute(0, 3, 1, 2).double()
    kept = images.clone()
    NORMALISATIONS["mtl"](images, torch.float64)
    assert torch.equal(images, kept)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_one_number_serves_any_number_of_channels(channels: int) -> None:
    images = torch.from_numpy(pixels(channels)).permute(0, 3, 1, 2)
    assert NORMALISATIONS["grey"](images).min() >= -1
    assert NORMALISATIONS["none"](images).max() <= 1
    torch.testing.assert_close(NORMALISATIONS["none"](images), images / 255)


def test_wrong_channels_and_wrong_numbers_are_refused() -> None:
    grey = torch.from_numpy(pixels(1)).permute(0, 3, 1, 2)
    with pytest.raises(DataError, match="'mtl' is for 3 channels, but the images have 1; use 'grey' or 'none'"):
        NORMALISATIONS["mtl"](grey)
    with pytest.raises(SettingsError, match="one mean and one positive std per channel"):
        Normalisation("flat", (0.0,), (0.0,))
