"""What a data set says of itself, how data sets are registered, and the one way to open a prepared one."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from platformdirs import user_cache_path

from e3bm.data.layouts.base import KnownClasses, Layout
from e3bm.data.store.format import CLASSES_FILE, SPLIT_NAMES, recover
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError, SettingsError
from e3bm.json_files import parse_json
from e3bm.registry import Registry

DATA_VARIABLE = "E3BM_DATA"
DEFAULT_FRACTIONS = (0.64, 0.16, 0.20)
FEWEST_CLASSES_IN_A_SPLIT = 2


@dataclass(frozen=True)
class SplitCount:
    """The published size of a split."""

    classes: int
    images: int | None
    """None where nobody published it."""


@dataclass(frozen=True)
class Download:
    """An official address of a file of a data set. Addresses are written down as published and not tested."""

    url: str
    file_name: str
    checksum: str = ""
    """algorithm:digest where the publisher or a maintained loader states one, else empty."""
    checksum_from: str = ""
    """Who states it."""


@dataclass(frozen=True)
class SourceCard:
    """What is published about a data set."""

    title: str
    image_size: int
    """Height and width in the packed form, unless a setting says otherwise."""
    licence: str
    citation: str
    channels: int = 3
    accepted_sizes: tuple[int, ...] = ()
    """Squares in which its images are handed round; empty if they come in all sizes."""
    published: Mapping[str, SplitCount] = field(default_factory=dict)
    images_per_class: int | None = None
    """The number that every class has, None where it differs."""
    total_images: int | None = None
    pixel_mean: tuple[float, ...] = ()
    """Mean of red, green and blue over the whole set, from 0 to 255, where it is known."""
    pixel_std: tuple[float, ...] = ()
    ink_is_light: bool = False
    """Drawings whose strokes become 255 on 0, whichever way round they are stored."""
    downloads: tuple[Download, ...] = ()
    homepage: str = ""
    archive_patterns: tuple[str, ...] = ()
    """Names of archives that may lie in the folder that a user points at."""


@runtime_checkable
class DataSource(Protocol):
    """A data set that can be prepared: what is published about it, and the layouts in which it comes."""

    @property
    def card(self) -> SourceCard:
        """What is published about it."""
        ...

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The forms in which it is handed round, the most telling first."""
        ...

    def known_classes(self) -> KnownClasses:
        """Its standard classes and their splits; empty for a folder of one's own."""
        ...


SOURCES: Registry[type[DataSource]] = Registry("sources")
OWN_FOLDER, EMBEDDED = "folder", "glyphs"


def registered_sources() -> Registry[type[DataSource]]:
    """The registry with the package's own data sets in it."""
    import e3bm.data.sources  # noqa: F401

    return SOURCES


def registered_name(name: str) -> str:
    """A data set's name as it is registered: miniImageNet, mini_imagenet and mini-imagenet are one."""
    squeezed = re.sub(r"[\s_\-]", "", name.lower())
    for known in registered_sources():
        if re.sub(r"[\s_\-]", "", known.lower()) == squeezed:
            return known
    return name


def check_own_name(name: str) -> str:
    """A name for data of one's own, if it can name a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}", name) or name.endswith((".partial", ".retired")):
        raise SettingsError(f"'{name}' cannot name a data set; use letters, digits, dash, underscore and dot.")
    return name


def data_folder(setting: str | os.PathLike[str] | None = None) -> Path:
    """Where prepared data sets are: the setting, else the variable E3BM_DATA, else the user's cache folder."""
    chosen = setting or os.environ.get(DATA_VARIABLE)
    # "opinion" would put a folder "Cache" below this one on Windows.
    return Path(chosen).expanduser() if chosen else user_cache_path("e3bm", appauthor=False, opinion=False)


def open_dataset(name: str, folder: str | os.PathLike[str] | None = None) -> PackedImages:
    """A data set by name, from the folder of prepared ones; glyphs come with the package, a path is opened as it is."""
    if registered_name(name) == EMBEDDED:
        from e3bm.data.sources.glyphs import embedded_glyphs

        return embedded_glyphs()
    if os.sep in name or "/" in name:
        return PackedImages.open(name)
    known = registered_name(name)
    place = data_folder(folder) / known
    recover(place)
    if (place / CLASSES_FILE).is_file():
        return PackedImages.open(place)
    command = f"e3bm prepare {known} --source PATH"
    if known in registered_sources():
        raise DataError(f"{known} is not prepared in {place.parent}; run '{command}' with PATH naming your copy of it.")
    own = ", ".join(sorted(path.parent.name for path in place.parent.glob(f"*/{CLASSES_FILE}")))
    raise DataError(
        f"There is no data set '{name}' in {place.parent} (there: {own or 'none'}; known: "
        f"{', '.join(registered_sources())}); for a folder of your own run '{command}'."
    )


@cache
def class_list(name: str) -> Mapping[str, Any]:
    """A standard class list of the package: for each split its class names, some of them grouped."""
    return dict(parse_json(files("e3bm.data").joinpath("class_splits", f"{name}.json").read_bytes()))


def split_of_each(classes_of: Mapping[str, str | Mapping[str, str]]) -> dict[str, str]:
    """The split of each class, from lists of class names separated by spaces, or groups of such lists, by split."""
    found: dict[str, str] = {}
    for split, names in classes_of.items():
        groups = [names] if isinstance(names, str) else list(names.values())
        found.update({name: split for group in groups for name in group.split()})
    return found


def family_of_each(members: Mapping[str, str]) -> dict[str, str]:
    """The family of each class, from lists of class names separated by spaces, by family."""
    return {name: family for family, names in members.items() for name in names.split()}


def divide_by_seed(
    class_names: Sequence[str], seed: int, fractions: Sequence[float] = DEFAULT_FRACTIONS
) -> dict[str, str]:
    """Every class in train, val or test, by chance and the same for the same names and seed."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise SettingsError(f"The fractions for train, val and test must add up to 1, found {fractions}.")
    wanted = [fraction > 0 for fraction in fractions]
    fewest = FEWEST_CLASSES_IN_A_SPLIT * sum(wanted)
    if len(class_names) < fewest:
        raise DataError(
            f"{len(class_names)} classes cannot be divided into {sum(wanted)} splits of at least "
            f"{FEWEST_CLASSES_IN_A_SPLIT}; expected {fewest} or more, or folders named train, val and test."
        )
    sizes = [max(round(f * len(class_names)), FEWEST_CLASSES_IN_A_SPLIT) if f else 0 for f in fractions]
    # Rounding is settled with the largest part.
    sizes[sizes.index(max(sizes))] += len(class_names) - sum(sizes)
    order = np.random.default_rng(seed).permutation(len(class_names))
    names = [sorted(class_names)[place] for place in order]
    ends = np.cumsum(sizes)
    return {name: SPLIT_NAMES[int(np.searchsorted(ends, place, side="right"))] for place, name in enumerate(names)}
