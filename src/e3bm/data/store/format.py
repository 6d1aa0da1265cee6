"""The rules of a packed folder: its files, its digests, and what pixels, labels and splits must be."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int64, UInt8

from e3bm.errors import DataError
from e3bm.storage import lock, write_whole

FORMAT_VERSION = 1
SPLIT_NAMES = ("train", "val", "test")
IMAGES_FILE, LABELS_FILE, CLASSES_FILE = "images.u8", "labels.npy", "classes.json"
HASH_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Origin:
    """Where a data set comes from, and what was done to its pixels."""

    source: str = ""
    preprocessing: str = ""
    fingerprint: str = ""
    """Identifies the exact source files, so that preparing them a second time can be skipped."""
    licence: str = ""
    citation: str = ""


def checked_pixels(images: np.ndarray, image_shape: tuple[int, ...] | None) -> UInt8[np.ndarray, "N H W C"]:
    """The images, if they are uint8 [N, H, W, C] and of the expected shape."""
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape[1:]:
        raise DataError(
            f"Images must be unsigned bytes of shape [count, height, width, channels]; "
            f"found {images.dtype} of shape {images.shape}."
        )
    if image_shape is not None and images.shape[1:] != image_shape:
        raise DataError(f"Every image of a data set has one shape: expected {image_shape}, found {images.shape[1:]}.")
    return images


def checked_labels(labels: np.ndarray, images: int, classes: int | None) -> Int64[np.ndarray, " N"]:
    """The labels, if there is one per image and each is the number of a class."""
    if labels.shape != (images,):
        raise DataError(f"There must be one label per image: found {images} images and labels of shape {labels.shape}.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"Labels must be whole numbers, found {labels.dtype}.")
    low, high = (int(labels.min()), int(labels.max())) if images else (0, 0)
    if low < 0 or (classes is not None and high >= classes):
        raise DataError(f"Labels must lie in 0..{'' if classes is None else classes - 1}; found {low}..{high}.")
    return labels.astype(np.int64, copy=False)


def checked_splits(splits: Mapping[str, Sequence[int]], class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Train, val and test as sorted class numbers, if every class is in exactly one of them."""
    if len(set(class_names)) != len(class_names):
        twice = next(name for name in class_names if list(class_names).count(name) > 1)
        raise DataError(f"Two classes are named '{twice}'; class names must differ, also between splits.")
    unknown = [name for name in splits if name not in SPLIT_NAMES]
    if unknown:
        raise DataError(f"There is no split '{unknown[0]}'; the splits are {', '.join(SPLIT_NAMES)}.")
    home: dict[int, str] = {}
    for split, members in splits.items():
        for number in members:
            if not 0 <= number < len(class_names):
                raise DataError(
                    f"Split {split} names class number {number}; there are only {len(class_names)} classes."
                )
            if number in home:
                raise DataError(
                    f"Class '{class_names[number]}' is in {home[number]} and again in {split}; "
                    "splits must not overlap, keep it in one."
                )
            home[number] = split
    for number, name in enumerate(class_names):
        if number not in home:
            raise DataError(f"Class '{name}' is in no split; put every class into one of {', '.join(SPLIT_NAMES)}.")
    return {split: tuple(sorted(int(number) for number in splits.get(split, ()))) for split in SPLIT_NAMES}


def damaged(path: Path) -> DataError:
    """The error for a file whose content is not what was written."""
    return DataError(f"{path} is damaged: its content is not what was written; prepare the data set again.")


def file_hash(path: Path, size: int | None = None) -> "hashlib._Hash":
    """The running sha256 of a file's first ``size`` bytes (of all by default)."""
    digest, left = hashlib.sha256(), path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0:
            block = file.read(min(left, HASH_BLOCK_BYTES))
            if not block:
                raise EOFError(f"{path} is {left} bytes short")
            digest.update(block)
            left -= len(block)
    return digest


def label_bytes(labels: Int64[np.ndarray, " N"]) -> bytes:
    """Labels as little-endian 64-bit integers, so that a digest means the same on every machine."""
    return labels.astype("<i8").tobytes()


def joint_digest(images_sha256: str, labels_sha256: str, image_shape: Sequence[int]) -> str:
    """One sha256 for pixels, labels and shape."""
    text = f"{images_sha256} {labels_sha256} {tuple(int(n) for n in image_shape)}"
    return hashlib.sha256(text.encode()).hexdigest()


def json_digest(record: Mapping[str, Any]) -> str:
    """The sha256 of a record, whatever the order and layout in which it is written."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record so that a reader finds the old or the new one, never a part."""
    write_whole(path, json.dumps(record, indent=1).encode("ascii"))


def read_description(folder: Path) -> dict[str, Any]:
    """The content of classes.json, if it is whole and of this format."""
    path = folder / CLASSES_FILE
    if not path.is_file():
        raise DataError(
            f"{folder} is not a prepared data set (it has no {CLASSES_FILE}); make one with 'e3bm prepare'."
        )
    try:
        about = dict(json.loads(path.read_bytes()))
        version, digest = about["version"], about["sha256"]["classes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path} has format {version}, this version reads {FORMAT_VERSION}; prepare the data set again."
        )
    if digest != json_digest({key: value for key, value in about.items() if key != "sha256"}):
        raise damaged(path)
    return about


def lock_folder(folder: Path) -> int:
    """Hold a folder for this process until the returned descriptor is closed; -1 where the system has no such lock."""
    descriptor = lock(folder, wait=False)
    if descriptor is None:
        raise DataError(f"{folder} is being written by another process; wait for it to end.")
    return descriptor


def open_at(path: Path, size: int) -> BinaryIO:
    """A file opened for writing after its first ``size`` bytes; anything beyond them is dropped."""
    file = path.open("r+b" if path.exists() else "w+b")
    file.truncate(size)
    file.seek(size)
    return file
