"""What a layout is, and the names under which splits go."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from e3bm.data.file_tree import FileTree
from e3bm.data.listing import Listing

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
