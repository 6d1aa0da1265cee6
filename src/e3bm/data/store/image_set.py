"""What the sampler and the loaders need of a data set, and a view in which a turned class is a class of its own."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, UInt8

from e3bm.errors import DataError

QUARTER_TURNS = 4


@runtime_checkable
class ImageSet(Protocol):
    """Images by position, classes by number, splits by name."""

    @property
    def name(self) -> str: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def splits(self) -> dict[str, tuple[int, ...]]: ...

    @property
    def image_shape(self) -> tuple[int, int, int]: ...

    @property
    def digest(self) -> str: ...

    def __len__(self) -> int: ...

    def indices_of(self, class_number: int) -> Int64[np.ndarray, " n"]:
        """The positions of all images of one class."""
        ...

    def gather(self, positions: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W C"]:
        """The images at these positions, as a copy of their own."""
        ...


@dataclass(frozen=True, eq=False)
class RotatedClasses:
    """A data set in which the classes of some splits also appear turned by 90, 180 and 270 degrees, as new classes.

    Turn r of image p has position p + r N, turn r of class c has number c + r C; nothing is stored twice.
    """

    base: ImageSet
    rotated_splits: tuple[str, ...] = ("train",)

    def __post_init__(self) -> None:
        height, width, _ = self.base.image_shape
        if height != width:
            raise DataError(f"Only square images can be turned by 90 degrees; found {height} x {width}.")
        for split in self.rotated_splits:
            if split not in self.base.splits:
                raise DataError(f"There is no split '{split}'; the splits are {', '.join(self.base.splits)}.")

    @property
    def name(self) -> str:
        return f"{self.base.name}+rotations"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.base.image_shape

    @property
    def digest(self) -> str:
        return f"{self.base.digest}+rotations"

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        names = self.base.class_names
        turned = [f"{name} turned {90 * turn}" for turn in range(1, QUARTER_TURNS) for name in names]
        return (*names, *turned)

    @cached_property
    def splits(self) -> dict[str, tuple[int, ...]]:
        classes = len(self.base.class_names)
        return {
            split: tuple(
                number + turn * classes
                for turn in range(QUARTER_TURNS if split in self.rotated_splits else 1)
                for number in members
            )
            for split, members in self.base.splits.items()
        }

    def __len__(self) -> int:
        return QUARTER_TURNS * len(self.base)

    def indices_of(self, class_number: int) -> Int64[np.ndarray, " n"]:
        """The positions of all images of one class, turned or not."""
        turn, number = divmod(class_number, len(self.base.class_names))
        return self.base.indices_of(number) + turn * len(self.base)

    def gather(self, positions: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W C"]:
        """The images at these positions, turned counter-clockwise."""
        turns, places = np.divmod(positions, len(self.base))
        images = self.base.gather(places)
        for turn in range(1, QUARTER_TURNS):
            chosen = turns == turn
            images[chosen] = np.rot90(images[chosen], k=turn, axes=(1, 2))
        return images
