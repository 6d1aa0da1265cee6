"""Images of more pixels than any network sees are decoded at a part of their size, in a bounded memory."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from e3bm.data.inspect import survey as surveying
from e3bm.data.read import decode as decoding
from e3bm.data.read.decode import (
    KEPT_PIXELS,
    MOST_JPEG_PIXELS,
    decode,
    decoded_pixels,
    image_size,
    plain_image,
)
from e3bm.errors import DataError

WIDTH, HEIGHT = 260, 200


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture
def large(monkeypatch):
    """A picture that is not the same anywhere along a row or column, and large for once."""
    monkeypatch.setattr(decoding, "KEPT_PIXELS", 40_000)
    monkeypatch.setattr(decoding, "STRIP_PIXELS", 7_000)
    monkeypatch.setattr(surveying, "SMALLEST_REDUCED", 4_000)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    channels = (rows * 255 // HEIGHT, columns * 255 // WIDTH, (rows // 50 + columns // 50) % 2 * 200)
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8))


def means(pixels, factor):
    cut = pixels[: len(pixels) // factor * factor].astype(np.float64)
    return cut.reshape(len(cut) // factor, factor, WIDTH // factor, factor, -1).mean((1, 3))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "I;16", "F"])
def test_squares_of_pixels_become_their_means(large, mode):
    if mode in ("I;16", "F"):
        grey = np.asarray(large.convert("L"))
        image = Image.fromarray(grey.astype(np.uint16) * 257 if mode == "I;16" else grey.astype(np.float32) / 255)
        content, exact = encoded(image, "TIFF"), np.repeat(grey[..., None], 3, 2)
    else:
        image = large.convert(mode)
        content = encoded(image, "PNG", compress_level=1)
        exact = np.asarray(image.convert("RGB"))
    found = decode(content)
    assert found.shape == (HEIGHT // 2, WIDTH // 2, 3)
    assert np.abs(found - means(exact, 2)).max() <= 1  # the means are rounded
    assert np.array_equal(plain_image(image), found)
    assert image_size(content) == (WIDTH, HEIGHT) == surveying._stored_size(content, found)


def test_a_large_jpeg_is_decoded_smaller_and_upright(large):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    content = encoded(large, "JPEG", quality=90, exif=exif)
    found = decode(content)
    assert found.shape == (WIDTH // 2, HEIGHT // 2, 3)
    turned = np.rot90(means(np.asarray(large), 2), -1)
    assert np.abs(found - turned).mean() < 3  # JPEG loses a little
    assert decode(content, 1).shape == (WIDTH // 2, HEIGHT // 2, 1)


def test_a_photo_over_the_limit_is_refused_where_its_format_must_be_decoded_whole():
    wide = Image.new("L", (9000, 6000), 77)
    with pytest.raises(DataError, match=r"it claims to be 9000 x 6000, more than the limit of 50,000,000 pixels"):
        decode(encoded(wide, "PNG"))
    # Its decoder holds all of a progressive one, and more than its pixels.
    with pytest.raises(DataError, match=r"it claims to be 9000 x 6000, more than the limit of 50,000,000 pixels"):
        decode(encoded(wide, "JPEG", progressive=True))
    found = decode(encoded(wide, "JPEG"))
    assert found.shape == (3000, 4500, 3)
    assert found.shape[0] * found.shape[1] == decoded_pixels(encoded(wide, "JPEG")) <= KEPT_PIXELS
    assert (np.abs(found.astype(int) - 77) <= 1).all()


def test_a_photo_of_200_megapixels():
    """Pillow alone warns of such a file, or refuses it."""
    content = encoded(Image.new("L", (16_320, 12_240), 50), "JPEG")
    assert MOST_JPEG_PIXELS > 16_320 * 12_240
    assert decode(content, 1).shape == (3060, 4080, 1)
    claims = bytearray(content)
    place = claims.find(b"\xff\xc0")
    claims[place + 5 : place + 9] = b"\xff\xd0\xff\xd0"  # 65,488 x 65,488
    for read in (decode, decoded_pixels):
        with pytest.raises(DataError, match=r"more than the limit of .* for a JPEG"):
            read(bytes(claims))
    assert decoded_pixels(content) == 3060 * 4080


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("JPEG", {"progressive": True}), ("BMP", {})])
def test_what_cannot_be_decoded_in_part_counts_whole(large, form, options):
    assert decoded_pixels(encoded(large, form, **options)) == WIDTH * HEIGHT
    assert decoded_pixels(encoded(large, "JPEG")) == WIDTH * HEIGHT // 4
    with pytest.raises(DataError, match="not a picture in a format that can be read"):
        decoded_pixels(b"no image")


def test_pixels_are_counted_by_the_header():
    small = encoded(Image.new("RGB", (30, 20)), "PNG")
    assert decoded_pixels(small) == decoded_pixels(small[:60]) == 600


DECODES = """
import resource, sys
from pathlib import Path
from e3bm.data.read.decode import decode
decode(Path(sys.argv[2]).read_bytes())
room = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (room, room))
print(decode(Path(sys.argv[3]).read_bytes()).shape)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of a process is bounded as Linux does")
@pytest.mark.parametrize(
    ("image", "form", "options", "shape", "megabytes"),
    [
        (("RGBA", (7000, 7000), (9, 8, 7, 99)), "PNG", {}, (3500, 3500, 3), 320),
        (("L", (16_320, 12_240), 50), "JPEG", {}, (3060, 4080, 3), 320),
        (("RGB", (7000, 7000), (9, 8, 7)), "JPEG", {"progressive": True, "subsampling": 0}, (3500, 3500, 3), 400),
    ],
    ids=["transparent", "JPEG of 200 megapixels", "progressive"],
)
def test_a_large_photo_fits_into_little_memory(tmp_path, image, form, options, shape, megabytes):
    (tmp_path / "small").write_bytes(encoded(Image.new(image[0], (30, 30)), form, **options))
    (tmp_path / "large").write_bytes(encoded(Image.new(*image), form, **options))
    words = [sys.executable, "-c", DECODES, str(megabytes << 20), tmp_path / "small", tmp_path / "large"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == f"{shape}\n", done.stderr[-500:]
