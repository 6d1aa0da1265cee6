"""The files of the package: grey levels in one compressed array, the classes as JSON, and the digests of both."""

import hashlib
import io
import json
import lzma
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glyph_build.characters import SCRIPTS, SPLITS, script_of, split_of
from glyph_build.lookalikes import Drawings, LeftOut

# Few grey levels and long blank runs: no literal context is the smallest here.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 0, "pb": 0}]
IMAGES, CLASSES, DIGESTS = "glyphs_images.npy.xz", "glyphs_classes.json", "glyphs.sha256"


def in_file_order(characters: list[str]) -> list[str]:
    """Classes by split, then script, then code point, which is their numbering."""
    split = split_of(characters)
    return sorted(characters, key=lambda each: (SPLITS.index(split[each]), SCRIPTS.index(script_of(each)), each))


def pack(
    classes: Mapping[str, Drawings], left_out: list[LeftOut], drawn_with: dict[str, str], typefaces: Path
) -> dict[str, bytes]:
    """The content of every file, by name; the same classes always give the same bytes."""
    characters = in_file_order(list(classes))
    split = split_of(characters)
    levels = np.stack([drawing for character in characters for drawing in classes[character].values()])
    rows = [
        {
            "name": unicodedata.name(character),
            "character": character,
            "codepoint": f"U+{ord(character):04X}",
            "script": script_of(character),
            "split": split[character],
            "typefaces": list(classes[character]),
        }
        for character in characters
    ]
    about = {"pixels_sha256": hashlib.sha256(levels.tobytes()).hexdigest(), "drawn_with": drawn_with}
    dropped = [[each.character, each.looks_like, each.same_form_share, each.separability] for each in left_out]
    files = {IMAGES: _compressed(levels), CLASSES: _json_lines(about, rows, dropped)}
    pinned = {**files, typefaces.name: typefaces.read_bytes()}  # the classes name typefaces by their place in that list
    digests = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in pinned.items()]
    return {**files, DIGESTS: "".join(digests).encode()}


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Puts the files into the package."""
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _compressed(levels: np.ndarray) -> bytes:
    plain = io.BytesIO()
    np.save(plain, levels, allow_pickle=False)
    return lzma.compress(plain.getvalue(), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=FILTERS)


def _json_lines(about: dict[str, Any], rows: list[dict[str, Any]], dropped: list[list[Any]]) -> bytes:
    """One class a line, so that a difference between two builds can be read."""

    def block(entries: list[Any]) -> str:
        return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n]"

    head = json.dumps(about, indent=0)[1:-2].strip()
    columns = '"left_out_columns": ["character", "looks_like", "same_form_share", "separability"]'
    text = f'{{\n{head},\n"classes": {block(rows)},\n{columns},\n"left_out": {block(dropped)}\n}}\n'
    return text.encode()
