"""What a layout is and what it finds: every image of a source, its class, and the split of each class."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from e3bm.data.read.file_tree import FileTree
from e3bm.data.read.records import FileRecords, JoinedRecords, Records
from e3bm.data.store.format import SPLIT_NAMES
from e3bm.errors import DataError

NO_SPLIT = "all"
"""The split of a class of which nobody said where it belongs."""
SPLIT_WORDS = {
    "train": "train",
    "train_train": "train",
    "train_phase_train": "train",
    "meta_train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "meta_val": "val",
    "test": "test",
    "meta_test": "test",
}
"""How folders and files name the three splits, with dashes written as underscores."""
SPLIT_IN_NAME = re.compile(
    r"(?:^|[_\-.])(train_phase_train|train_phase_val|train_phase_test|train|val|valid|validation|test)(?=[_\-.]|$)"
)


@dataclass(frozen=True)
class KnownClasses:
    """What a data set knows of its own classes; empty for a folder of one's own."""

    split_of: Mapping[str, str] = field(default_factory=dict)
    by_number: tuple[str, ...] = ()
    """Class names in the order of the numbers that pickles use, where there is such an order."""
    family_of: Mapping[str, str] = field(default_factory=dict)
    """The larger class that a class belongs to, where the data set has such."""


@dataclass(frozen=True, eq=False)
class Listing:
    """Every image of a source in the order in which it is read, with its class; no pixel has been looked at yet."""

    layout: str
    class_names: tuple[str, ...]
    class_splits: tuple[str, ...]
    """Train, val, test or all, for each class."""
    labels: Int64[np.ndarray, " N"]
    records: Records
    notes: tuple[str, ...] = ()
    """What a careful reader of the source would want to know."""
    names_known: bool = True
    """False where the source only numbers its classes and names had to be made up."""
    red_first: bool = True
    """False where the source does not say whether red or blue comes first."""

    def __post_init__(self) -> None:
        counts = self.class_counts
        if len(self.class_names) and (counts == 0).any():
            empty = self.class_names[int(counts.argmin())]
            raise DataError(f"Class '{empty}' has no images; add some or remove the class.")

    @property
    def class_counts(self) -> Int64[np.ndarray, " classes"]:
        """How many images each class has."""
        return np.bincount(self.labels, minlength=len(self.class_names)).astype(np.int64)

    def split_counts(self) -> dict[str, tuple[int, int]]:
        """Classes and images of each split that has any."""
        counts = self.class_counts
        order = [name for name in (*SPLIT_NAMES, NO_SPLIT) if name in self.class_splits]
        chosen = {name: [n for n, split in enumerate(self.class_splits) if split == name] for name in order}
        return {name: (len(numbers), int(counts[numbers].sum())) for name, numbers in chosen.items()}

    def with_splits(self, split_of: Mapping[str, str]) -> "Listing":
        """The same images with the classes in these splits."""
        return replace(self, class_splits=tuple(split_of[name] for name in self.class_names))

    def with_notes(self, *notes: str) -> "Listing":
        """The same images with more to say about them."""
        return replace(self, notes=(*self.notes, *notes))


@runtime_checkable
class Layout(Protocol):
    """A way in which images, classes and splits can be arranged in files."""

    @property
    def name(self) -> str:
        """A word for people and reports."""
        ...

    @property
    def example(self) -> str:
        """What it looks like, in one line."""
        ...

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """The images if the tree is laid out this way, None if it is not; an error if it is and is broken."""
        ...


def split_word(word: str) -> str | None:
    """The split that a folder or file name stands for."""
    return SPLIT_WORDS.get(word.lower().replace("-", "_"))


def split_in_file_name(name: str) -> str | None:
    """The split in names such as FC100_train.pickle; None where there is none or it is not one of the three."""
    stem = name.rsplit("/", maxsplit=1)[-1].lower()
    found = SPLIT_IN_NAME.search(stem)
    return SPLIT_WORDS.get(found.group(1)) if found else None


def files_listing(
    layout: str, tree: FileTree, files: Mapping[tuple[str, str], Sequence[str]], notes: Sequence[str] = ()
) -> Listing:
    """A listing of image files, given the files of each (split, class)."""
    pairs = _class_order(files)
    if tree.sequential:
        number_of = {name: number for number, pair in enumerate(pairs) for name in files[pair]}
        names = [name for name in tree.names if name in number_of]
        labels = np.array([number_of[name] for name in names], np.int64)
    else:
        names = [name for pair in pairs for name in sorted(files[pair])]
        labels = np.repeat(np.arange(len(pairs)), [len(files[pair]) for pair in pairs]).astype(np.int64)
    splits, classes = tuple(split for split, _ in pairs), tuple(name for _, name in pairs)
    return Listing(layout, classes, splits, labels, FileRecords(tree, names), tuple(notes))


def arrays_listing(
    layout: str,
    parts: Sequence[tuple[Sequence[tuple[str, str]], Records]],
    *,
    notes: Sequence[str] = (),
    names_known: bool = True,
    red_first: bool = True,
) -> Listing:
    """A listing of stored arrays, given the (split, class) of each image of each part."""
    pairs = _class_order({pair for members, _ in parts for pair in members})
    number_of = {pair: number for number, pair in enumerate(pairs)}
    labels = np.array([number_of[pair] for members, _ in parts for pair in members], np.int64)
    records = JoinedRecords(tuple(records for _, records in parts))
    splits, classes = tuple(split for split, _ in pairs), tuple(name for _, name in pairs)
    return Listing(layout, classes, splits, labels, records, tuple(notes), names_known, red_first)


def _class_order(classes: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(split, class) pairs in the order in which classes are numbered: train, val, test, and by name in each."""
    pairs = sorted(classes, key=lambda pair: ((*SPLIT_NAMES, NO_SPLIT).index(pair[0]), pair[1]))
    home: dict[str, str] = {}
    for split, name in pairs:
        if name in home:
            raise DataError(
                f"Class '{name}' is both in {home[name]} and in {split}; a class belongs to one split, remove one."
            )
        home[name] = split
    return pairs
