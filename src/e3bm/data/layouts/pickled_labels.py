"""Labels as pickles store them: lists or arrays of numbers, and the names behind the numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from e3bm.data.layouts.base import KnownClasses
from e3bm.data.pickle_file import PickleFile
from e3bm.data.pickled_values import as_text
from e3bm.errors import DataError


def label_numbers(file: PickleFile, value: Any, images: int) -> Int64[np.ndarray, " N"]:
    """One whole number for each image, whatever they were stored as."""
    stored = file.whole(value)
    if isinstance(stored, tuple | range):
        stored = list(stored)
    if isinstance(stored, list) and not all(isinstance(one, int) and abs(one) < 1 << 40 for one in stored):
        raise DataError(f"{file.shown} holds labels that are no numbers; expected one whole number for each image.")
    if not isinstance(stored, list | np.ndarray):
        raise DataError(f"{file.shown} holds no list of labels; expected one whole number for each image.")
    labels = np.asarray(stored)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        if labels.dtype.kind in "iu" and labels.size == images:
            labels = labels.reshape(-1)
        else:
            raise DataError(f"{file.shown} holds labels of type {labels.dtype} and shape {labels.shape}.")
    if len(labels) != images:
        raise DataError(f"{file.shown} holds {len(labels):,} labels for {images:,} images; expected one for each.")
    return labels.astype(np.int64)


def names_in(file: PickleFile, value: Any) -> list[str] | None:
    """A stored list of class names, None if it is not one."""
    stored = file.whole(value)
    if isinstance(stored, np.ndarray) and stored.dtype.kind in "SU":
        stored = stored.tolist()
    if not isinstance(stored, list) or not all(isinstance(one, bytes | str) for one in stored):
        return None
    return [as_text(one) for one in stored]


def named_labels(
    split: str, labels: Int64[np.ndarray, " N"], names: dict[int, str], known: KnownClasses
) -> tuple[list[tuple[str, str]], bool]:
    """(split, class) of each image, and whether the names are the data set's own or had to be made up."""
    numbers = np.unique(labels).tolist()
    if not names and known.by_number:
        standard = {n: name for n, name in enumerate(known.by_number) if known.split_of.get(name) == split}
        # Numbers are taken for the data set's own only where they are exactly those of this split.
        if set(numbers) == set(standard):
            names = standard
    given = all(number in names for number in numbers)
    pairs = {number: (split, names[number] if given else f"{split}_{number:03d}") for number in numbers}
    if len({name for _, name in pairs.values()}) != len(pairs):
        raise DataError(f"Two label numbers of the {split} split have the same class name; expected one name for each.")
    return [pairs[int(number)] for number in labels], given


def index_lists(file: PickleFile, class_dict: Any, images: int) -> dict[str, Sequence[int]]:
    """Class names with the places of their images, checked to name every image exactly once."""
    if not isinstance(class_dict, dict) or not class_dict:
        raise DataError(f"{file.shown} holds no class_dict with the images of each class.")
    owner = np.full(images, -1, np.int64)
    found: dict[str, Sequence[int]] = {}
    for number, (key, value) in enumerate(class_dict.items()):
        name = as_text(key)
        stored = file.whole(value)
        places = np.asarray(list(stored) if isinstance(stored, range | tuple) else stored)
        if places.size == 0:
            raise DataError(f"Class '{name}' in {file.shown} has no images; fetch the file again.")
        if places.ndim != 1 or places.dtype.kind not in "iu" or places.min() < 0 or places.max() >= images:
            raise DataError(f"Class '{name}' in {file.shown} names images that are not among its {images:,}.")
        if (owner[places] >= 0).any() or len(np.unique(places)) != len(places) or name in found:
            raise DataError(f"Class '{name}' in {file.shown} claims an image that another class has, or one twice.")
        owner[places], found[name] = number, places.tolist()
    if (owner < 0).any():
        raise DataError(f"{int((owner < 0).sum()):,} images in {file.shown} belong to no class.")
    return found
