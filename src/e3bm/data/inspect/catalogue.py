"""`e3bm datasets`: what is known, where it is looked for, what is there, and what can be freed."""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from e3bm.data.read.prepare import REPORT_FILE
from e3bm.data.source import (
    DATA_VARIABLE,
    EMBEDDED,
    OWN_FOLDER,
    SourceCard,
    data_folder,
    open_dataset,
    registered_name,
    registered_sources,
)
from e3bm.data.store.format import (
    BLOCKS_FILE,
    CLASSES_FILE,
    GROWING_LABELS_FILE,
    IMAGES_FILE,
    LABELS_FILE,
    PROGRESS_FILE,
    lock_folder,
)
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError, SettingsError

DOWNLOADS = "downloads"
OUR_FILES = frozenset(
    {CLASSES_FILE, IMAGES_FILE, LABELS_FILE, BLOCKS_FILE, REPORT_FILE, GROWING_LABELS_FILE, PROGRESS_FILE}
)
ItemKind = Literal["prepared", "unfinished", "left over", "download"]
State = Literal["in the package", "prepared", "unfinished", "damaged", "not there"]


@dataclass(frozen=True)
class DatasetEntry:
    """One data set and its state on this machine."""

    name: str
    title: str
    state: State
    path: str
    bytes: int
    splits: dict[str, dict[str, int | None]]
    """Classes and images of each split: those that are there, else the published ones."""
    image_size: int
    channels: int
    licence: str
    citation: str
    homepage: str
    addresses: tuple[str, ...]
    """Official addresses for `prepare --download`; written down as published, not tested."""
    advice: str

    def as_json(self) -> dict[str, Any]:
        """The record as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Catalogue:
    """Every known data set, and the folder that was looked into."""

    folder: Path
    chosen_by: str
    """Which of setting, variable and default named the folder."""
    entries: tuple[DatasetEntry, ...]


@dataclass(frozen=True)
class CacheItem:
    """A folder or file that this package has written."""

    name: str
    kind: ItemKind
    path: Path
    size: int
    """Bytes on disk."""


@dataclass(frozen=True)
class CacheReport:
    """What the cache holds, and what was freed of it."""

    folder: Path
    items: tuple[CacheItem, ...]
    removed: tuple[CacheItem, ...]

    @property
    def freed(self) -> int:
        """Bytes that are free again."""
        return sum(item.size for item in self.removed)

    def as_json(self) -> dict[str, Any]:
        """The record as plain values, for JSON."""
        items = [{**asdict(item), "path": str(item.path), "removed": item in self.removed} for item in self.items]
        return {"folder": str(self.folder), "items": items, "freed": self.freed}


def known_datasets(folder: Path | None = None) -> Catalogue:
    """The registered data sets, then those of the user's own that are prepared."""
    place = data_folder(folder)
    sizes: dict[tuple[str, str], int] = {(item.kind, item.name): item.size for item in _cache_items(place)}
    sources = registered_sources()
    entries = [_entry(name, sources[name]().card, place, sizes) for name in sources if name != OWN_FOLDER]
    own = sorted(name for kind, name in sizes if kind == "prepared" and name not in sources)
    own_card = sources[OWN_FOLDER]().card
    entries += [_entry(name, own_card, place, sizes) for name in own]
    return Catalogue(place, _chosen_by(folder), tuple(entries))


def _chosen_by(folder: Path | None) -> str:
    if folder:
        return "the setting"
    return f"the variable {DATA_VARIABLE}" if os.environ.get(DATA_VARIABLE) else "the default cache folder"


def _entry(name: str, card: SourceCard, folder: Path, sizes: dict[tuple[str, str], int]) -> DatasetEntry:
    state, packed = _state(name, folder, sizes)
    path = "" if name == EMBEDDED else str(folder / name)
    published: dict[str, dict[str, int | None]] = {
        split: {"classes": count.classes, "images": count.images} for split, count in card.published.items()
    }
    return DatasetEntry(
        name=name,
        title=card.title,
        state=state,
        path=path,
        bytes=sizes.get(("prepared", name), 0) + sizes.get(("unfinished", name), 0),
        splits=published if packed is None else _counts(packed),
        image_size=card.image_size if packed is None else packed.image_shape[0],
        channels=card.channels if packed is None else packed.image_shape[2],
        licence=card.licence,
        citation=card.citation,
        homepage=card.homepage,
        addresses=tuple(download.url for download in card.downloads),
        advice=_advice(name, state, bool(card.downloads)),
    )


def _state(name: str, folder: Path, sizes: dict[tuple[str, str], int]) -> tuple[State, PackedImages | None]:
    try:
        if name == EMBEDDED:
            return "in the package", open_dataset(EMBEDDED)
        if (folder / name / CLASSES_FILE).is_file():
            return "prepared", PackedImages.open(folder / name)
    except (DataError, OSError):
        return "damaged", None
    return ("unfinished" if ("unfinished", name) in sizes else "not there"), None


def _counts(packed: PackedImages) -> dict[str, dict[str, int | None]]:
    counts = packed.class_counts
    return {
        split: {"classes": len(members), "images": int(counts[list(members)].sum())}
        for split, members in packed.splits.items()
        if members
    }


def _advice(name: str, state: State, downloadable: bool) -> str:
    if state in ("in the package", "prepared"):
        return "ready"
    again = " again; it continues where it stopped" if state == "unfinished" else ""
    download = f", or 'e3bm prepare {name} --download'" if downloadable else ""
    return f"run 'e3bm prepare {name} --source PATH'{download}{again}"


def clean_cache(folder: Path | None = None, names: Sequence[str] = (), *, remove: bool = False) -> CacheReport:
    """What the folder of prepared data sets holds; with ``remove`` all of it, or what is named, is freed."""
    place = data_folder(folder)
    wanted = {registered_name(name) for name in names}
    items = _cache_items(place)
    missing = sorted(wanted - {item.name for item in items})
    if missing:
        raise SettingsError(f"There is no data set '{missing[0]}' in {place}; nothing was removed.")
    chosen = [item for item in items if not wanted or item.name in wanted]
    if remove:
        for item in chosen:
            _remove_item(item)
    return CacheReport(place, tuple(items), tuple(chosen) if remove else ())


def _cache_items(folder: Path) -> list[CacheItem]:
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


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _remove_item(item: CacheItem) -> None:
    """Free an item's space; one that another process is writing stays and is an error."""
    lock = lock_folder(item.path) if item.kind == "unfinished" else -1
    try:
        shutil.rmtree(item.path)
    except OSError as error:
        raise DataError(f"{item.path} cannot be removed: {error.strerror}.") from error
    finally:
        if lock >= 0:
            os.close(lock)
