"""What lies in the folder of prepared data sets, and what of it is ours to remove."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from e3bm.data.packed import GROWING_LABELS_FILE, PROGRESS_FILE
from e3bm.data.packed_format import CLASSES_FILE, IMAGES_FILE, LABELS_FILE, lock_folder
from e3bm.data.packing import REPORT_FILE
from e3bm.errors import DataError

DOWNLOADS = "downloads"
OUR_FILES = frozenset({CLASSES_FILE, IMAGES_FILE, LABELS_FILE, REPORT_FILE, GROWING_LABELS_FILE, PROGRESS_FILE})
ItemKind = Literal["prepared", "unfinished", "left over", "download"]


@dataclass(frozen=True)
class CacheItem:
    """A folder or file that this package has written."""

    name: str
    kind: ItemKind
    path: Path
    size: int
    """Bytes on disk."""


def cache_items(folder: Path) -> list[CacheItem]:
    """Everything of ours in the folder; whatever holds a file that we did not write is passed over."""
    try:
        return sorted(_items(folder), key=lambda item: (item.kind, item.name)) if folder.is_dir() else []
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}.") from error


def _items(folder: Path) -> Iterator[CacheItem]:
    for path in folder.iterdir():
        if path.is_symlink() or not path.is_dir():
            continue
        if path.name == DOWNLOADS:
            for place in path.iterdir():
                if place.is_dir() and not place.is_symlink():
                    yield CacheItem(place.name, "download", place, _size(place))
            continue
        names = {name.removesuffix(".new") for name in os.listdir(path)}
        if not names <= OUR_FILES:
            continue
        if path.suffix == ".partial":
            yield CacheItem(path.stem, "unfinished", path, _size(path))
        elif path.suffix == ".retired":
            yield CacheItem(path.stem, "left over", path, _size(path))
        elif CLASSES_FILE in names:
            yield CacheItem(path.name, "prepared", path, _size(path))


def remove_item(item: CacheItem) -> None:
    """Free an item's space; one that another process is writing stays and is an error."""
    lock = lock_folder(item.path) if item.kind == "unfinished" else -1
    try:
        shutil.rmtree(item.path)
    except OSError as error:
        raise DataError(f"{item.path} cannot be removed: {error.strerror}.") from error
    finally:
        if lock >= 0:
            os.close(lock)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
