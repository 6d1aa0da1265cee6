"""Glyphs: the data set that comes with the package, open without any preparation."""

import hashlib
import io
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from e3bm.data.layouts.base import KnownClasses, Layout
from e3bm.data.source import EMBEDDED, SOURCES, SourceCard
from e3bm.data.store.packed import Origin, PackedImages
from e3bm.errors import DataError
from e3bm.json_files import parse_json

PACKAGE_FOLDER = Path(__file__).resolve().parent
IMAGES_FILE, CLASSES_FILE, TYPEFACES_FILE = "glyphs_images.npy.xz", "glyphs_classes.json", "glyphs_typefaces.json"
DIGESTS_FILE = "glyphs.sha256"
GREY_STEP = 17  # the file holds 16 levels; times 17 they are 0 to 255


@dataclass(frozen=True, eq=False)
class GlyphArrays:
    """All images with class, typeface and split; the arrays are read-only because every caller shares them."""

    images: UInt8[np.ndarray, "N 28 28 1"]
    labels: Int64[np.ndarray, " N"]
    typefaces: Int64[np.ndarray, " N"]
    """The number of each image's typeface in typeface_names."""
    class_names: tuple[str, ...]
    """Unicode names; characters and scripts have the same order."""
    characters: tuple[str, ...]
    scripts: tuple[str, ...]
    splits: dict[str, tuple[int, ...]]
    typeface_names: tuple[str, ...]


@SOURCES.register(EMBEDDED)
class Glyphs:
    """Characters drawn from open-licence typefaces, 28 px, grey."""

    card = SourceCard(
        title="glyphs",
        image_size=28,
        accepted_sizes=(28,),
        channels=1,
        licence="the typefaces' own open licences (OFL-1.1 and Apache-2.0)",
        citation="The e3bm developers, glyphs: characters drawn from open typefaces",
        ink_is_light=True,
    )
    layouts: tuple[Layout, ...] = ()

    def known_classes(self) -> KnownClasses:
        """Nothing needs to be recognised: the arrays are in the package."""
        return KnownClasses()


@cache
def embedded_glyphs() -> PackedImages:
    """The arrays of the package as a data set in memory."""
    arrays = load_glyphs()
    origin = Origin("the package", "drawn at 28 x 28", "", Glyphs.card.licence, Glyphs.card.citation)
    return PackedImages.from_arrays(
        arrays.images,
        np.asarray(arrays.labels, np.int64),
        arrays.class_names,
        arrays.splits,
        name=EMBEDDED,
        origin=origin,
    )


@cache
def load_glyphs(folder: Path = PACKAGE_FOLDER) -> GlyphArrays:
    """Reads, checks and unpacks the data set once; later calls give the same arrays."""
    contents = _checked_files(folder)
    levels = np.load(io.BytesIO(lzma.decompress(contents[IMAGES_FILE])), allow_pickle=False)
    classes: list[dict[str, Any]] = parse_json(contents[CLASSES_FILE])["classes"]
    families: list[dict[str, Any]] = parse_json(contents[TYPEFACES_FILE])
    images = (levels * np.uint8(GREY_STEP))[..., None]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(row["typefaces"]) for row in classes])
    typefaces = np.concatenate([np.asarray(row["typefaces"], np.int64) for row in classes])
    for array in (images, labels, typefaces):
        array.flags.writeable = False
    return GlyphArrays(
        images=images,
        labels=labels,
        typefaces=typefaces,
        class_names=tuple(row["name"] for row in classes),
        characters=tuple(row["character"] for row in classes),
        scripts=tuple(row["script"] for row in classes),
        splits={
            split: tuple(number for number, row in enumerate(classes) if row["split"] == split)
            for split in ("train", "val", "test")
        },
        typeface_names=tuple(row["family"] for row in families),
    )


def _checked_files(folder: Path) -> dict[str, bytes]:
    """The data files' bytes, each compared with its recorded digest before anything reads it."""
    contents, digests = {}, _recorded_digests(folder)
    for name in (IMAGES_FILE, CLASSES_FILE, TYPEFACES_FILE):
        contents[name] = _bytes_of(folder / name)
        found, expected = hashlib.sha256(contents[name]).hexdigest(), digests.get(name)
        if found != expected:
            raise DataError(
                f"{folder / name} of the embedded data set glyphs is damaged: its SHA-256 is {found}, "
                f"expected {expected}; reinstall e3bm."
            )
    return contents


def _recorded_digests(folder: Path) -> dict[str, str]:
    lines = _bytes_of(folder / DIGESTS_FILE).decode("ascii", "replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} of the embedded data set glyphs cannot be read ({error.strerror}); it comes with the package, "
            "so reinstall e3bm."
        ) from error
