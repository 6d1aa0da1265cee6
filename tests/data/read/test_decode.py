"""Images of every kind to pixels: upright, 8 bits, one size; anything else is a sentence."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from decoding_workers import dies, first_pixels
from e3bm.data.read.decode import DecodeSettings, decode, fit_to_size, is_image_name
from e3bm.data.read.decode_pool import decode_batch, decode_records, map_records
from e3bm.data.read.records import MemoryRecords
from e3bm.errors import DataError

RAMP = np.linspace(0, 255, 48).astype(np.uint8).reshape(6, 8)
COLOUR = np.stack([RAMP, RAMP[::-1], 255 - RAMP], axis=-1)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "TGA", "WEBP"])
def test_formats_that_lose_nothing(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(COLOUR), kind, **options)), COLOUR)


@pytest.mark.parametrize("kind", ["JPEG", "GIF"])
def test_formats_that_lose_a_little(kind):
    smooth = np.tile(np.linspace(0, 255, 32).astype(np.uint8), (32, 1))
    found = decode(encoded(Image.fromarray(smooth), kind))
    assert found.shape == (32, 32, 3)
    assert np.abs(found.astype(int) - smooth[..., None]).mean() < 3


def test_grey_and_black_and_white():
    grey = decode(encoded(Image.fromarray(RAMP)))
    np.testing.assert_array_equal(grey, np.repeat(RAMP[..., None], 3, axis=2))
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(RAMP)), channels=1)[..., 0], RAMP)
    bits = Image.fromarray(RAMP > 99)
    assert set(np.unique(decode(encoded(bits), channels=1))) == {0, 255}


def test_sixteen_bits_keep_their_brightness():
    wide = RAMP.astype(np.uint16) * 257
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(decode(encoded(Image.fromarray(wide), kind), channels=1)[..., 0], RAMP)


def test_floats_from_zero_to_one():
    image = Image.fromarray((RAMP / 255).astype(np.float32))
    np.testing.assert_array_equal(decode(encoded(image, "TIFF"), channels=1)[..., 0], RAMP)
    for low, high in ((-1.0, 1.0), (0.0, 1e6), (0.0, np.nan)):
        with pytest.raises(DataError, match="grey values"):
            decode(encoded(Image.fromarray(np.array([[low, high]], np.float32)), "TIFF"))


def test_transparency_shows_white_paper():
    layered = np.dstack([COLOUR, np.full_like(RAMP, 255)])
    layered[0, :, 3] = 0
    layered[1, :, 3] = 128
    found = decode(encoded(Image.fromarray(layered)))
    assert (found[0] == 255).all()
    np.testing.assert_array_equal(found[2:], COLOUR[2:])
    expected = COLOUR[1] * (128 / 255) + 127
    assert np.abs(found[1] - expected).max() <= 1
    grey_alpha = Image.fromarray(np.dstack([RAMP, layered[..., 3]]))
    assert (decode(encoded(grey_alpha))[0] == 255).all()


def test_palettes_with_and_without_transparency():
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), mode=None).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255] + [0] * 759)
    np.testing.assert_array_equal(decode(encoded(image))[0], [[255, 0, 0], [0, 255, 0]])
    np.testing.assert_array_equal(decode(encoded(image, transparency=1))[0], [[255, 0, 0], [255, 255, 255]])


def test_cmyk_and_the_first_of_many_frames():
    found = decode(encoded(Image.fromarray(COLOUR).convert("CMYK"), "TIFF"))
    assert np.abs(found.astype(int) - COLOUR).max() <= 2
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    movie = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (decode(movie)[..., 0] > 200).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_turned_by_the_camera_are_upright(orientation):
    undo = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a, 1),
    }
    image = Image.fromarray(COLOUR)
    exif = image.getexif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(decode(encoded(image, exif=exif)), undo[orientation](COLOUR))


def png_that_says(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"0")), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    "size", [(100_000, 100_000), (60_000, 10), (10_000, 8_000), (13_000, 8_000), (2**31 - 1, 2**31 - 1)]
)
def test_absurd_sizes_are_refused_before_decoding(size):
    with pytest.raises(DataError, match="pixels"):
        decode(png_that_says(*size))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_truncated_images_are_refused(kind):
    content = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)), kind)
    with pytest.raises(DataError, match="the file is empty"):
        decode(content[:0])
    for length in range(1, len(content) * 3 // 4, max(len(content) // 40, 1)):
        with pytest.raises(DataError, match=r"damaged|not a picture"):
            decode(content[:length])


NO_IMAGES = [b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>", b"%PDF-1.4"]


@pytest.mark.parametrize("content", NO_IMAGES)
def test_what_is_no_image(content):
    with pytest.raises(DataError, match="not a picture"):
        decode(content)


def test_names():
    assert is_image_name("a/b.JPG")
    assert is_image_name("x.webp")
    assert not any(map(is_image_name, ("a.txt", "png", "a.eps", "a.pdf", "train.csv", "a.npz")))


def test_fit_scales_the_short_side_and_keeps_the_middle():
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 200
    for image in (wide, wide.transpose(1, 0, 2)):
        found = fit_to_size(image, DecodeSettings(10))
        assert (found[1:-1, 1:-1] == 200).all()
        assert found.min() > 150
    assert fit_to_size(wide, DecodeSettings(10, channels=1)).shape == (10, 10, 1)
    same = np.random.default_rng(0).integers(0, 256, (10, 10, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fit_to_size(same, DecodeSettings(10, accepted_sizes=(10,))), same)
    np.testing.assert_array_equal(fit_to_size(same, DecodeSettings(10, reverse_channels=True)), same[..., ::-1])
    np.testing.assert_array_equal(fit_to_size(same, DecodeSettings(10, invert=True)), 255 - same)
    for bad in (wide, np.zeros((11, 11, 3), np.uint8)):
        with pytest.raises(DataError, match="expected 10 x 10"):
            fit_to_size(bad, DecodeSettings(10, accepted_sizes=(10,)))


def test_one_bad_image_does_not_stop_the_batch():
    good = encoded(Image.fromarray(COLOUR))
    batch = decode_batch(DecodeSettings(5), [good, b"bad", DataError("gone"), good])
    assert batch.kept == (0, 3)
    assert batch.images.shape == (2, 5, 5, 3)
    assert [place for place, _ in batch.broken] == [1, 2]
    assert batch.broken[1][1] == "gone"


class EncodedList:
    """Encoded images in memory."""

    pixel_shape = None

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def name_of(self, index):
        return str(index)

    def read(self, start=0):
        return iter(self.images[start:])

    def pick(self, places):
        return (self.images[place] for place in places)


def test_processes_give_the_same_as_one():
    images = EncodedList([encoded(Image.new("RGB", (3, 3), (n % 256, 0, 0))) for n in range(2500)])
    alone = list(map_records(first_pixels, images, start=17))
    together = list(map_records(first_pixels, images, start=17, workers=2))
    assert alone == together
    assert [value for _, values in together for value in values] == [n % 256 for n in range(17, 2500)]


def test_a_dying_process_is_a_sentence():
    with pytest.raises(DataError, match="ended unexpectedly"):
        list(map_records(dies, EncodedList([b"x"] * 2500), workers=2))


def test_stored_pixels_are_decoded_where_they_are():
    pixels = np.random.default_rng(0).integers(0, 256, (3000, 4, 4, 3), dtype=np.uint8)
    found = list(decode_records(MemoryRecords(pixels, "x"), DecodeSettings(4), workers=2))
    np.testing.assert_array_equal(np.concatenate([batch.images for _, batch in found]), pixels)
    assert [first for first, _ in found] == list(range(0, 3000, 256))
