"""A photo in any form gives the same pixels; what is wrong with it is said in a sentence."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from e3bm.data.read.photos import WIDEST, as_photos, photo_name, photo_pixels
from e3bm.errors import DataError


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.fixture
def file(pixels, tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


def test_every_form_of_a_photo_has_the_same_pixels(pixels, file):
    with Image.open(file) as opened:
        for form in (file, str(file), file.read_bytes(), opened, pixels, torch.from_numpy(pixels)):
            assert np.array_equal(photo_pixels(form), pixels)


def test_pillow_images_are_left_as_they_were(file):
    with Image.open(file) as image:
        photo_pixels(image, channels=1)
        assert (image.mode, image.size) == ("RGB", (30, 20))


def test_a_turned_photo_is_put_upright(pixels):
    image, stored = Image.fromarray(pixels), io.BytesIO()
    exif = image.getexif()
    exif[274] = 6  # turned by a quarter
    image.save(stored, "png", exif=exif)
    assert photo_pixels(stored.getvalue()).shape == (30, 20, 3)
    stored.seek(0)
    assert np.array_equal(photo_pixels(Image.open(stored)), photo_pixels(stored.getvalue()))


def test_grey_and_transparent_arrays_become_colours(pixels):
    grey = photo_pixels(pixels[..., 0])
    assert np.array_equal(grey, np.repeat(pixels[..., :1], 3, axis=2))
    assert np.array_equal(photo_pixels(pixels[..., :1]), grey)
    clear = np.concatenate([pixels, np.zeros_like(pixels[..., :1])], axis=2)
    assert (photo_pixels(clear) == 255).all()
    assert photo_pixels(pixels, channels=1).shape == (20, 30, 1)


def test_of_a_strip_only_the_middle_is_used():
    strip = np.zeros((2, 1000, 3), dtype=np.uint8)
    strip[:, 500] = 255
    found = photo_pixels(strip)
    assert found.shape == (2, 2 * WIDEST, 3)
    assert found.max() == 255
    assert photo_pixels(strip.transpose(1, 0, 2)).shape == (2 * WIDEST, 2, 3)


@pytest.mark.parametrize(
    ("photo", "sentence"),
    [
        (b"GIF89a but no more", "damaged|not a picture"),
        (b"", "the file is empty"),
        (b"plain text", r"not a picture in a format that can be read \(it begins with 'plain te'\)$"),
        (b"\x00\x01\xfe junk", "not a picture in a format that can be read$"),
        (np.zeros((20, 30, 3)), "array of float64; expected uint8"),
        (np.zeros((3, 20, 30), dtype=np.uint8), r"shape \(3, 20, 30\); expected \[height, width, 3\]"),
        (np.zeros((0, 30, 3), dtype=np.uint8), "30 x 0"),
        (17, "of type int; expected a path"),
    ],
)
def test_what_is_no_photo_is_refused(photo, sentence):
    with pytest.raises(DataError, match=sentence):
        photo_pixels(photo)


def test_files_that_cannot_be_read_are_refused(tmp_path, file):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "cut.png").write_bytes(file.read_bytes()[:200])
    for name, sentence in (
        ("", "a folder"),
        ("none.jpg", "no such file"),
        ("empty.jpg", "the file is empty"),
        ("cut.png", "damaged"),
    ):
        with pytest.raises(DataError, match=sentence):
            photo_pixels(tmp_path / name)
    with pytest.raises(DataError, match="no such file"):
        photo_pixels("null\0byte.jpg")
    with pytest.raises(DataError, match=r"it is an address on the web, .* download it first"):
        photo_pixels("https://photos.invalid/crow.jpg")


def test_one_photo_is_told_from_several(pixels, file):
    for single in (file, str(file), file.read_bytes(), Image.fromarray(pixels), pixels, torch.from_numpy(pixels)):
        assert as_photos(single)[1]
    for several in ([file], (file, pixels), np.stack([pixels, pixels]), iter([pixels])):
        photos, single = as_photos(several)
        assert not single
        assert all(np.array_equal(photo_pixels(photo), pixels) for photo in photos)
    with pytest.raises(DataError, match="found shape"):
        as_photos(np.zeros(3, dtype=np.uint8))
    with pytest.raises(DataError, match="found int"):
        as_photos(3)


def test_photos_without_a_path_get_another_name(pixels, file):
    assert photo_name(file, "first") == str(file)
    assert photo_name(pixels, "first") == "first"
