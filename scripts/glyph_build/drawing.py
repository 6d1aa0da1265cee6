"""One character of one typeface as a 28 x 28 grey image: same capital height for all typefaces, ink in the middle.

All characters of a typeface are drawn at one size, so that small and capital letters of the same shape differ.
"""

from pathlib import Path

import numpy as np
from fontTools.ttLib import TTFont
from PIL import Image, ImageDraw, ImageFont

from glyph_build.characters import is_small_letter
from glyph_build.typefaces import Typeface

SIDE = 28
LARGEST_INK = 26  # a wider or taller drawing is shrunk to this
CAPITAL_HEIGHT = 20
OVERSAMPLING = 8
GREY_LEVELS = 16
SMALLEST_X_HEIGHT = 0.45  # of the capital height; below it small letters cannot be read at this size
ALIKE_CASES = (
    0.17  # capitals and small letters of one shape: the five such typefaces are below 0.12, the next is at 0.23
)
FEWEST_INKED_PIXELS = 10.0

Levels = np.ndarray  # [28, 28] uint8, 0 (paper) to 15 (ink)


class Face:
    """A typeface's upright regular face at the size where its capitals are CAPITAL_HEIGHT pixels high."""

    def __init__(self, typeface: Typeface, folder: Path) -> None:
        self._path = folder / typeface.file
        with TTFont(self._path, lazy=True) as tables:
            self._codes = frozenset(tables.getBestCmap())
            axes = tables["fvar"].axes if typeface.variable else []
            self._axes = [_regular(axis) for axis in axes]
        trial = self._font(400)
        capitals = float(np.median([_ink(trial, letter).height for letter in "HEITX"]))
        self._drawing_font = self._font(400 * CAPITAL_HEIGHT * OVERSAMPLING / capitals)
        self.x_height = _ink(trial, "x").height / capitals
        self.capitals_only = _case_difference(trial) < ALIKE_CASES
        self._missing = _place(_ink(self._drawing_font, "\uffff"))

    @property
    def legible(self) -> bool:
        """Whether small letters are large enough to be read."""
        return self.x_height >= SMALLEST_X_HEIGHT

    def draw(self, character: str) -> Levels | None:
        """The drawing, or None where the typeface has none of its own."""
        if ord(character) not in self._codes or (self.capitals_only and is_small_letter(character)):
            return None
        drawing = _place(_ink(self._drawing_font, character))
        if drawing.sum() < FEWEST_INKED_PIXELS * (GREY_LEVELS - 1) or np.array_equal(drawing, self._missing):
            return None
        return drawing

    def _font(self, size: float) -> ImageFont.FreeTypeFont:
        font = ImageFont.truetype(self._path, size, layout_engine=ImageFont.Layout.BASIC)
        if self._axes:
            font.set_variation_by_axes(self._axes)
        return font


def _regular(axis) -> float:
    return min(max(400.0, axis.minValue), axis.maxValue) if axis.axisTag == "wght" else axis.defaultValue


def _ink(font: ImageFont.FreeTypeFont, character: str) -> Image.Image:
    """The drawing cut to its ink; one blank pixel where there is none."""
    left, top, right, bottom = (round(edge) for edge in font.getbbox(character, anchor="ls"))
    canvas = Image.new("L", (right - left + 8, bottom - top + 8))
    ImageDraw.Draw(canvas).text((4 - left, 4 - top), character, fill=255, font=font, anchor="ls")
    box = canvas.getbbox()
    return canvas.crop(box) if box else Image.new("L", (1, 1))


def _place(ink: Image.Image) -> Levels:
    """The ink in the middle of the square, averaged down to its pixels, in 16 grey levels."""
    limit = LARGEST_INK * OVERSAMPLING
    shrink = limit / max(*ink.size, limit)
    if shrink < 1:
        width, height = (max(1, round(edge * shrink)) for edge in ink.size)
        ink = ink.resize((width, height), Image.Resampling.BOX)
    canvas = Image.new("L", (SIDE * OVERSAMPLING, SIDE * OVERSAMPLING))
    canvas.paste(ink, tuple((SIDE * OVERSAMPLING - edge) // 2 for edge in ink.size))
    grey = np.asarray(canvas.reduce(OVERSAMPLING), np.uint16)
    return ((grey + 8) // 17).astype(np.uint8)


def _case_difference(font: ImageFont.FreeTypeFont) -> float:
    """How far small letters differ from capitals once both are stretched to one square, as a share of the ink."""
    shares = []
    for letter in "abdeghnqrt":
        small, capital = (
            np.asarray(_ink(font, form).resize((32, 32), Image.Resampling.BOX), float)
            for form in (letter, letter.upper())
        )
        shares.append(np.abs(small - capital).sum() / np.maximum(small, capital).sum())
    return float(np.median(shares))
