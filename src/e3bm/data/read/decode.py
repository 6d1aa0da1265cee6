"""Encoded images to arrays of one size, whatever they were: grey, palette, transparent, 16 bits, turned by a camera."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from e3bm.errors import DataError

MOST_PIXELS = 50_000_000
LONGEST_SIDE = 30_000
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
WIDE_GREY = ("I;16", "I;16L", "I;16B", "I;16N", "I")


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


def image_size(content: bytes) -> tuple[int, int]:
    """Width and height by the header alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=_readable_formats()) as image:
                return image.size
    except UnidentifiedImageError:
        raise _unknown_format(content) from None
    except Image.DecompressionBombError:
        raise DataError("it has far more pixels than are read") from None
    except MemoryError:
        raise DataError("it asks for more memory than there is") from None
    except DECODING_ERRORS as error:
        raise DataError(f"it is damaged ({str(error).rstrip('.') or type(error).__name__})") from None


def check_pixels(size: tuple[int, int]) -> None:
    """Refuse an image whose header promises an absurd size, before anything is decoded."""
    width, height = size
    if width * height > MOST_PIXELS or max(size) > LONGEST_SIDE or min(size) < 1:
        limits = f"{MOST_PIXELS:,} pixels or {LONGEST_SIDE:,} a side"
        raise DataError(f"it says it is {width} x {height}, more than the {limits} that are read")


def decode(content: bytes, channels: int = 3) -> UInt8[np.ndarray, "H W C"]:
    """The pixels of an encoded image at its own size, upright, as 8-bit RGB or grey."""
    try:
        with _decoding_errors():
            return _to_array(Image.open(io.BytesIO(content), formats=_readable_formats()), channels)
    except UnidentifiedImageError as error:
        raise _unknown_format(content) from error


def pixels_of_pillow_image(image: Image.Image, channels: int = 3) -> UInt8[np.ndarray, "H W C"]:
    """The same of an image that Pillow has opened already; it is left as it was."""
    with _decoding_errors():
        check_pixels(image.size)
        return _to_array(image.copy(), channels)


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
    return DataError(f"it is no image that Pillow knows (it begins with {content[:4]!r})")


@contextmanager
def _decoding_errors() -> Iterator[None]:
    """Whatever goes wrong in a decoder becomes a sentence about the image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)
            yield
    except UnidentifiedImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"it has more than {MOST_PIXELS:,} pixels, which is refused") from error
    except MemoryError as error:
        raise DataError("it asks for more memory than there is") from error
    except DECODING_ERRORS as error:
        raise DataError(f"it is damaged ({str(error).rstrip('.') or type(error).__name__})") from error


def _to_array(image: Image.Image, channels: int) -> UInt8[np.ndarray, "H W C"]:
    check_pixels(image.size)
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in WIDE_GREY:
        image = Image.fromarray(_narrow(np.asarray(image)))
    elif image.mode == "F":
        image = Image.fromarray(_from_floats(np.asarray(image)))
    elif image.has_transparency_data:
        # What is transparent shows white paper, as most viewers do.
        layered = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
    wanted = "L" if channels == 1 else "RGB"
    pixels = np.asarray(image if image.mode == wanted else image.convert(wanted))
    return pixels.reshape(*pixels.shape[:2], channels)


def _narrow(values: np.ndarray) -> UInt8[np.ndarray, "H W"]:
    """16 bits to 8: 65,535 becomes 255."""
    if values.min() < 0 or values.max() > 65_535:
        raise ValueError(f"grey values from {values.min()} to {values.max()}, expected 0 to 65535")
    narrow: np.ndarray = (values.astype(np.uint32) * 255 + 32_767) // 65_535
    return narrow.astype(np.uint8)


def _from_floats(values: np.ndarray) -> UInt8[np.ndarray, "H W"]:
    low, high = float(values.min()), float(values.max())
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
