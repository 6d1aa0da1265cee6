"""The rules of a packed folder: its files, its digests, and what pixels, labels and splits must be."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int64, UInt8

from e3bm.errors import DataError
from e3bm.json_files import digest_of_json, json_bytes, read_json_file
from e3bm.storage import flush_folder, lock, release, swap_folders, write_whole

FORMAT_VERSION = 1
SPLIT_NAMES = ("train", "val", "test")
IMAGES_FILE, LABELS_FILE, CLASSES_FILE, BLOCKS_FILE = "images.u8", "labels.npy", "classes.json", "blocks.json"
GROWING_LABELS_FILE, PROGRESS_FILE = "labels.i64", "progress.json"
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


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with its digest so that a reader finds the old or the new one, never a part."""
    write_whole(path, json_bytes(record))


def read_record(path: Path) -> dict[str, Any]:
    """A record that was written here; a DataError says that it is damaged."""
    try:
        found = read_json_file(path)
    except (OSError, ValueError) as error:
        raise damaged(path) from error
    if not isinstance(found, dict):
        raise damaged(path)
    return found


def read_description(folder: Path) -> dict[str, Any]:
    """The content of classes.json, if it is whole and of this format."""
    path = folder / CLASSES_FILE
    if not path.is_file():
        recover(folder)
    if not path.is_file():
        raise DataError(
            f"{folder} is not a prepared data set (it has no {CLASSES_FILE}); make one with 'e3bm prepare'."
        )
    about = read_record(path)
    try:
        version, digest = about["version"], about["sha256"]["classes"]
    except (KeyError, TypeError) as error:
        raise damaged(path) from error
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path} has format {version}, this version reads {FORMAT_VERSION}; prepare the data set again."
        )
    if digest != digest_of_json({key: value for key, value in about.items() if key != "sha256"}):
        raise damaged(path)
    return about


def partial_of(path: Path) -> Path:
    """Where a data set is written before it gets its name."""
    return path.with_name(path.name + ".partial")


def publish(path: Path) -> None:
    """Give the folder that was written its name, so that at any moment the old data set or the new one has it."""
    partial, retired = partial_of(path), _retired(path)
    shutil.rmtree(retired, ignore_errors=True)
    flush_folder(partial)
    if path.exists() and swap_folders(partial, path):
        with suppress(FileNotFoundError):  # a reader may have swept the old one already
            partial.rename(retired)
    elif path.exists():  # a system that cannot swap: if we are killed here, whoever comes next recovers
        path.rename(retired)
        partial.rename(path)
    else:
        partial.rename(path)
    flush_folder(path.parent)
    shutil.rmtree(retired, ignore_errors=True)


def recover(path: Path) -> None:
    """Bring a data set back whose writer was killed while it got its name, and remove what such a writer left."""
    partial, retired = partial_of(path), _retired(path)
    if not path.exists():
        done = (partial / CLASSES_FILE).is_file() and not (partial / PROGRESS_FILE).exists()
        for folder in (partial, retired) if done else (retired,):
            if folder.is_dir() and not path.exists():
                with suppress(OSError):
                    folder.rename(path)
    if not path.exists():
        return
    shutil.rmtree(retired, ignore_errors=True)
    if (partial / CLASSES_FILE).is_file() and not (partial / PROGRESS_FILE).exists():
        with suppress(OSError, DataError):  # somebody may be writing there
            held = lock_folder(partial)
            shutil.rmtree(partial, ignore_errors=True)
            release(held)


def _retired(path: Path) -> Path:
    return path.with_name(path.name + ".retired")


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
