"""Encoded images to arrays of one size, whatever they were: grey, palette, transparent, 16 bits, turned by a camera."""

import io
import math
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

from e3bm.array_types import UInt8
from e3bm.errors import DataError

LARGEST_IMAGE_FILE = 128 << 20
MOST_PIXELS = 50_000_000
LONGEST_SIDE = 30_000
# A JPEG file can be decoded at a half, a quarter or an eighth of its size, without ever being whole in memory; not so a
# progressive one, of which every pass is about the whole image.
MOST_JPEG_PIXELS = 250_000_000
LONGEST_JPEG_SIDE = 65_500
KEPT_PIXELS = 16_000_000
"""Images of more are halved, or more, while they are decoded: no network sees that many."""
STRIP_PIXELS = 2_000_000
JPEG_START, JPEG_FORMATS = b"\xff\xd8\xff", ("JPEG", "MPO")
FIRST_BYTES = 16
"""Of a file, by which Pillow's formats know it."""
PNG_START = b"\x89PNG\r\n\x1a\n"
# EPS is drawn by a program outside of Python; the others are no pictures or have no decoder of Pillow's own.
NOT_OPENED = frozenset({"EPS", "WMF", "PDF", "MPEG", "HDF5", "GRIB", "BUFR", "STUB"})
# Whatever the decoders raise on bytes that nobody checked; found by sending them damaged images.
DECODING_ERRORS = (
    OSError, ValueError, SyntaxError, TypeError, EOFError, LookupError, ArithmeticError, RuntimeError, AttributeError,
    AssertionError, struct.error, zlib.error,
)  # fmt: skip
HEIF_SUFFIXES = (".heic", ".heif", ".heics", ".heifs", ".hif")
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
HEIF_ADVICE = "photos of this format (HEIC) need pillow-heif; run: pip install pillow-heif"
ORIENTATION = 0x0112
WIDE_GREY = ("I;16", "I;16L", "I;16B", "I;16N", "I")


class TooManyPixelsError(DataError):
    """An image whose header promises far too much."""


@dataclass(frozen=True)
class DecodeSettings:
    """What every image becomes."""

    size: int
    """Height and width of the result."""
    channels: int = 3
    accepted_sizes: tuple[int, ...] = ()
    """Squares that need not be asked for; empty means any size is brought to ``size``."""
    reverse_channels: bool = False
    """Blue first, as some tools store it, to red first."""
    invert: bool = False
    """Dark strokes on light paper to light strokes on dark."""


def is_image_name(name: str) -> bool:
    """Whether a file calls itself an image."""
    dot = name.rfind(".")
    return dot >= 0 and name[dot:].lower() in _image_suffixes()


def why_not_an_image(name: str) -> str:
    """Why a file of that name is not taken for an image, in a few words."""
    suffix = PurePosixPath(name).suffix.lower()
    if not suffix:
        return "no file extension"
    return HEIF_ADVICE if suffix in HEIF_SUFFIXES else f"unknown format {suffix}"


def begins_like_an_image(start: bytes) -> bool:
    """Whether a format that can be read claims the first bytes of a file; some formats claim none."""
    if start.startswith((JPEG_START, PNG_START)):
        return True
    for accept in (Image.OPEN[name][1] for name in _readable_formats()):
        with suppress(*DECODING_ERRORS):
            if accept is not None and accept(start[:FIRST_BYTES]) is True:
                return True
    return False


def image_size(content: bytes) -> tuple[int, int]:
    """Width and height by the header alone."""
    try:
        with _decoding_errors(), _opened(content) as image:
            return image.size
    except UnidentifiedImageError:
        raise _unknown_format(content) from None


def decoded_pixels(content: bytes) -> int:
    """How many pixels are in memory while an image is decoded, by its header alone: of a large JPEG only a part.

    Time and memory of decoding grow with it: whoever takes many images at once adds them up first. An image that would
    not be decoded at all is refused.
    """
    try:
        with _decoding_errors(), _opened(content) as image:
            _check_promise(image)
            if _has_parts(image):
                _decode_smaller(image)
            return math.prod(image.size)
    except UnidentifiedImageError:
        raise _unknown_format(content) from None


def check_pixels(size: tuple[int, int]) -> None:
    """Refuse an image whose header promises an absurd size, before anything is decoded."""
    width, height = size
    if width * height > MOST_PIXELS or max(size) > LONGEST_SIDE or min(size) < 1:
        limits = f"{MOST_PIXELS:,} pixels or {LONGEST_SIDE:,} a side"
        raise TooManyPixelsError(
            f"it claims to be {width} x {height}, more than the limit of {limits}; save it smaller, or as a JPEG"
        )


def decode(content: bytes, channels: int = 3) -> UInt8[np.ndarray, "H W C"]:
    """The pixels of an encoded image at its own size, upright, as 8-bit RGB or grey."""
    return image_pixels(decode_image(content, channels))


def decode_image(content: bytes, channels: int = 3) -> Image.Image:
    """The same as an image of Pillow's: to copy the pixels of a phone's photo takes as long as to decode it."""
    try:
        with _decoding_errors():
            image = _opened(content)
            _check_promise(image)
            _decode_smaller(image)
            return _upright(image, channels)
    except UnidentifiedImageError as error:
        raise _unknown_format(content) from error


def image_pixels(image: Image.Image) -> UInt8[np.ndarray, "H W C"]:
    """The pixels of an image in 8-bit RGB or grey."""
    return np.asarray(image).reshape(image.height, image.width, len(image.getbands()))


def miniature(content: bytes, side: int) -> bytes:
    """A small copy of an encoded image as a JPEG file: upright, ``side`` pixels long at most, and pixels only."""
    try:
        with _decoding_errors():
            image = _opened(content)
            _check_promise(image)
            if image.format in JPEG_FORMATS:
                image.draft(None, (side, side))  # decoded at a part of its size, and never smaller than asked for
            return small_jpeg(image_pixels(_upright(image, 3)), side)
    except UnidentifiedImageError as error:
        raise _unknown_format(content) from error


def small_jpeg(pixels: UInt8[np.ndarray, "H W 3"], side: int) -> bytes:
    """Pixels as a JPEG file, made smaller to ``side`` pixels at most."""
    small = Image.fromarray(np.ascontiguousarray(pixels))
    small.thumbnail((side, side))
    written = io.BytesIO()
    small.save(written, "JPEG", quality=80)
    return written.getvalue()


def plain_image(image: Image.Image, channels: int = 3) -> Image.Image:
    """An image that Pillow has opened already, upright, in 8-bit RGB or grey; it is left as it was."""
    with _decoding_errors():
        check_pixels(image.size)
        return _upright(image if _is_large(image) else image.copy(), channels)


def fit_to_size(pixels: UInt8[np.ndarray, "h w c"], settings: DecodeSettings) -> UInt8[np.ndarray, "H W C"]:
    """The pixels at the size asked for: the short side is scaled to it, the middle of the long side kept."""
    height, width, channels = pixels.shape
    size = settings.size
    if settings.accepted_sizes and (height != width or height not in settings.accepted_sizes):
        expected = " or ".join(f"{side} x {side}" for side in settings.accepted_sizes)
        raise DataError(f"it is {width} x {height} pixels, expected {expected} (--image-size scales everything)")
    if channels != settings.channels:
        pixels = _change_channels(pixels, settings.channels)
    if (height, width) != (size, size):
        check_pixels((width, height))
        image = Image.fromarray(pixels[..., 0] if settings.channels == 1 else pixels)
        scaled = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(scaled).reshape(size, size, settings.channels)
    if settings.reverse_channels:
        pixels = pixels[..., ::-1]
    return 255 - pixels if settings.invert else pixels


@cache
def _readable_formats() -> tuple[str, ...]:
    """The formats that Pillow decodes by itself, and HEIC where pillow-heif is installed."""
    Image.init()
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in Image.OPEN if name not in NOT_OPENED)


@cache
def _image_suffixes() -> frozenset[str]:
    """The file endings of those formats."""
    formats = _readable_formats()
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in formats)


def _unknown_format(content: bytes) -> DataError:
    if content[4:8] == b"ftyp" and content[8:12] in HEIF_BRANDS:
        return DataError(HEIF_ADVICE)
    if not content:
        return DataError("the file is empty")
    return DataError(f"it is not a picture in a format that can be read{beginning(content)}")


def beginning(content: bytes) -> str:
    """The first letters of a file, in brackets, for those who may know it by them; nothing where they are no text."""
    start = content[:8].decode("latin-1")
    return f" (it begins with '{start}')" if start.isascii() and start.isprintable() else ""


@contextmanager
def _decoding_errors() -> Iterator[None]:
    """Whatever goes wrong in a decoder becomes a sentence about the image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images too: their size is looked at before they are decoded
            yield
    except UnidentifiedImageError:
        raise
    except Image.DecompressionBombError as error:
        raise TooManyPixelsError(f"it has far more than the limit of {MOST_PIXELS:,} pixels") from error
    except DataError:
        raise
    except MemoryError as error:
        raise DataError("it asks for more memory than there is") from error
    except DECODING_ERRORS as error:
        raise DataError(f"it is damaged: {str(error).strip().rstrip('.') or type(error).__name__}") from error


def _opened(content: bytes) -> Image.Image:
    """The image that these bytes begin, not yet decoded."""
    try:
        # Most photos are one of these, which Pillow knows before it has loaded the code of its forty other formats.
        formats = ("JPEG", "PNG") if content.startswith((JPEG_START, PNG_START)) else _readable_formats()
        return Image.open(io.BytesIO(content), formats=formats)
    except Image.DecompressionBombError:
        if not content.startswith(JPEG_START):
            raise
        return JpegImagePlugin.JpegImageFile(io.BytesIO(content))  # not decoded whole, so its limit is another


def _has_parts(image: Image.Image) -> bool:
    """Whether the decoder can give a part of an image without holding the whole."""
    return image.format in JPEG_FORMATS and not image.info.get("progressive")


def _fits_in_parts(size: tuple[int, int]) -> bool:
    return math.prod(size) <= MOST_JPEG_PIXELS and max(size) <= LONGEST_JPEG_SIDE and min(size) >= 1


def _check_promise(image: Image.Image) -> None:
    """Refuse an image whose header promises more than can be decoded in its format."""
    if not _has_parts(image):
        check_pixels(image.size)
    elif not _fits_in_parts(image.size):
        limits = f"{MOST_JPEG_PIXELS:,} pixels or {LONGEST_JPEG_SIDE:,} a side"
        size = f"{image.width} x {image.height}"
        raise TooManyPixelsError(f"it claims to be {size}, more than the limit of {limits} for a JPEG; save it smaller")


def _is_large(image: Image.Image) -> bool:
    return math.prod(image.size) > KEPT_PIXELS


def _decode_smaller(image: Image.Image) -> None:
    """Tell the decoder of a large JPEG to give a half, a quarter or an eighth of it; other formats cannot."""
    if image.format in JPEG_FORMATS and _is_large(image):
        width, height = image.size
        parts = next((parts for parts in (2, 4) if width * height <= KEPT_PIXELS * parts**2), 8)
        image.draft(None, (width // parts, height // parts))


def _upright(image: Image.Image, channels: int) -> Image.Image:
    wanted = "L" if channels == 1 else "RGB"
    if _is_large(image):
        image = _reduced(image, wanted)
        ImageOps.exif_transpose(image, in_place=True)
    else:
        ImageOps.exif_transpose(image, in_place=True)
        image = _plain(image, wanted)
    image.load()  # what is damaged shows now
    return image


def _reduced(image: Image.Image, wanted: str) -> Image.Image:
    """A large image as the means of squares of its pixels, strip by strip: beside it there is never a second one."""
    width, height = image.size
    factor = math.ceil(math.sqrt(width * height / KEPT_PIXELS))
    rows = max(1, STRIP_PIXELS // (width * factor)) * factor
    found = Image.new(wanted, (-(-width // factor), -(-height // factor)))
    image.load()
    brightest = float(np.max(image.getextrema())) if image.mode == "F" else None
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        found.paste(_plain(strip, wanted, brightest).reduce(factor), (0, top // factor))
    found.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return found


def _plain(image: Image.Image, wanted: str, brightest: float | None = None) -> Image.Image:
    """The image in 8-bit grey or colours; ``brightest`` is the largest value of the whole of which this is a part."""
    if image.mode in WIDE_GREY:
        image = Image.fromarray(_narrow(np.asarray(image)))
    elif image.mode == "F":
        image = Image.fromarray(_from_floats(np.asarray(image), brightest))
    elif image.has_transparency_data:
        # What is transparent shows white paper, as most viewers do.
        layered = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
    return image if image.mode == wanted else image.convert(wanted)


def _narrow(values: np.ndarray) -> UInt8[np.ndarray, "H W"]:
    """16 bits to 8: 65,535 becomes 255."""
    if values.min() < 0 or values.max() > 65_535:
        raise ValueError(f"grey values from {values.min()} to {values.max()}, expected 0 to 65535")
    narrow: np.ndarray = (values.astype(np.uint32) * 255 + 32_767) // 65_535
    return narrow.astype(np.uint8)


def _from_floats(values: np.ndarray, brightest: float | None = None) -> UInt8[np.ndarray, "H W"]:
    low, high = float(values.min()), float(values.max()) if brightest is None else brightest
    if not (np.isfinite(values).all() and low >= 0 and high <= 255):
        raise ValueError(f"grey values from {low} to {high}, expected 0 to 1 or 0 to 255")
    scaled: np.ndarray = np.rint(values * (255 if high <= 1 else 1))
    return scaled.astype(np.uint8)


def _change_channels(pixels: UInt8[np.ndarray, "H W c"], channels: int) -> UInt8[np.ndarray, "H W C"]:
    if pixels.shape[2] == 1:
        return np.repeat(pixels, channels, axis=2)
    if pixels.shape[2] == 3 and channels == 1:
        return np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
    raise DataError(f"it has {pixels.shape[2]} channels, expected {channels}")
