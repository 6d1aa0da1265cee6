"""Data sets in pickles and npz files, one for each split, and CIFAR-100's own archive."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from e3bm.data.layouts.base import KnownClasses, Listing, arrays_listing, split_in_file_name
from e3bm.data.read.array_files import NpzArray, PickleFile
from e3bm.data.read.file_tree import FileTree
from e3bm.data.read.records import EncodedRecords, Records, array_records
from e3bm.data.read.unpickle import StoredArray, StoredBytes, as_text
from e3bm.errors import DataError

Part = tuple[list[tuple[str, str]], Records]
PICKLE_SUFFIXES = (".pickle", ".pkl", ".p")


class SplitPickles:
    """Pickles with data and labels (MetaOptNet's form), or with image_data and class_dict (the cache form)."""

    name, example = "split pickles", "*_train|val|test.pickle with data+labels or image_data+class_dict"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Read the structure of each split's pickle; the pixels stay where they are."""
        others = ("_labels.pkl", "_images_png.pkl", "_images.pkl")
        if any(name.lower().endswith(others) for name in tree.names):
            return None
        files = _split_files(tree, PICKLE_SUFFIXES, "pickle")
        if not files:
            return None
        parts: list[Part] = []
        kinds: set[str] = set()
        all_named = True
        for split in sorted(files, key=["train", "val", "test"].index):
            kind, part, named = _read(PickleFile(tree, files[split]), split, known)
            parts.append(part)
            kinds.add(kind)
            all_named = all_named and named
        return arrays_listing(" and ".join(sorted(kinds)), parts, names_known=all_named, red_first=False)


def _read(file: PickleFile, split: str, known: KnownClasses) -> tuple[str, Part, bool]:
    keys = file.keys()
    if "data" in keys and "labels" in keys:
        records = array_records(file, keys["data"])
        labels = _label_numbers(file, keys["labels"], len(records))
        names = _category_names(keys.get("label2catname"))
        members, named = _named_labels(split, labels, names, known)
        return "pickles with data and labels", (members, records), named
    if "image_data" in keys and "class_dict" in keys:
        records = array_records(file, keys["image_data"])
        members = [("", "")] * len(records)
        for name, places in _index_lists(file, keys["class_dict"], len(records)).items():
            for place in places:
                members[place] = (split, name)
        return "pickles with image_data and class_dict", (members, records), True
    raise DataError(
        f"{file.location} holds {file.shown_keys()}; expected the keys data and labels, or image_data and class_dict."
    )


def _category_names(value: object) -> dict[int, str]:
    if not isinstance(value, dict):
        return {}
    return {key: as_text(name) for key, name in value.items() if isinstance(key, int) and isinstance(name, bytes | str)}


class CifarArchive:
    """cifar-100-python: rows of 3072 bytes with fine labels; train and test together are the data set."""

    name, example = "CIFAR-100 archive", "cifar-100-python/train|test|meta (or cifar-100-python.tar.gz)"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Look for the two files without an ending in one folder."""
        present = set(tree.names)
        folders = [name[: -len("train")] for name in tree.names if name.split("/")[-1] == "train"]
        folder = next((one for one in folders if one + "test" in present), None)
        if folder is None:
            return None
        names = list(known.by_number)
        if folder + "meta" in present:
            meta = PickleFile(tree, folder + "meta")
            names = _names_in(meta, meta.keys().get("fine_label_names")) or names
        parts = [self._part(PickleFile(tree, folder + part), names, known) for part in ("train", "test")]
        return arrays_listing(self.name, parts)

    def _part(self, file: PickleFile, names: list[str], known: KnownClasses) -> Part:
        keys = file.keys()
        if "data" not in keys or "fine_labels" not in keys:
            raise DataError(
                f"{file.location} holds {file.shown_keys()}; expected CIFAR-100's keys data and fine_labels."
            )
        records = array_records(file, keys["data"])
        labels = _label_numbers(file, keys["fine_labels"], len(records))
        if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(names):
            raise DataError(f"{file.location} holds labels up to {labels.max()}; expected 0 to {len(names) - 1}.")
        unknown = sorted({names[label] for label in set(labels.tolist())} - set(known.split_of))
        if unknown:
            raise DataError(f"{file.location} holds the class '{unknown[0]}', which is not one of CIFAR-100's.")
        return [(known.split_of[names[label]], names[label]) for label in labels.tolist()], records


class PngPickles:
    """Ren's form: {split}_images_png.pkl, a list of encoded images, and {split}_labels.pkl."""

    name, example = "PNG pickles", "train|val|test_images_png.pkl and train|val|test_labels.pkl"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Read where each encoded image lies; the images stay in the file."""
        return _find(self.name, tree, known, ("_images_png.pkl", "_images_png.pickle"), _encoded)


class NpzImages:
    """MetaOptNet's form: {split}_images.npz with the array images, and {split}_labels.pkl."""

    name, example = "npz images", "train|val|test_images.npz and train|val|test_labels.pkl"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Read the arrays' headers; the pixels stay in the file."""
        return _find(self.name, tree, known, ("_images.npz",), _pixels)


def _find(
    layout: str, tree: FileTree, known: KnownClasses, endings: tuple[str, ...], read: Callable[[FileTree, str], Records]
) -> Listing | None:
    images = _split_files(tree, endings, "image")
    if not images:
        return None
    labels = _split_files(tree, ("_labels.pkl", "_labels.pickle"), "label")
    parts: list[Part] = []
    all_named = True
    for split in sorted(images, key=["train", "val", "test"].index):
        if split not in labels:
            raise DataError(f"{tree.where} holds '{images[split]}' but no {split}_labels.pkl; add the labels.")
        records = read(tree, images[split])
        members, named = _members(PickleFile(tree, labels[split]), split, len(records), known)
        parts.append((members, records))
        all_named = all_named and named
    return arrays_listing(layout, parts, names_known=all_named, red_first=False)


def _members(file: PickleFile, split: str, images: int, known: KnownClasses) -> tuple[list[tuple[str, str]], bool]:
    keys = file.keys()
    numbers: Any = next((keys[key] for key in ("label_specific", "labels") if key in keys), None)
    if numbers is None:
        raise DataError(f"{file.location} holds {file.shown_keys()}; expected the key label_specific or labels.")
    labels = _label_numbers(file, numbers, images)
    names = _names_in(file, keys["label_specific_str"]) if "label_specific_str" in keys else None
    return _named_labels(split, labels, dict(enumerate(names or [])), known)


def _encoded(tree: FileTree, name: str) -> Records:
    file = PickleFile(tree, name)
    listed = file.content.content if isinstance(file.content, StoredArray) else file.content
    if not isinstance(listed, list):
        raise DataError(f"{file.location} holds a {type(listed).__name__}; expected a list of encoded images.")
    images: list[bytes | StoredBytes] = []
    for place, image in enumerate(listed):
        encoded = image.content if isinstance(image, StoredArray) and image.dtype.itemsize == 1 else image
        if not isinstance(encoded, bytes | StoredBytes):
            raise DataError(f"Entry {place} of {file.location} is a {type(image).__name__}; expected an encoded image.")
        images.append(encoded)
    return EncodedRecords(file, images)


def _pixels(tree: FileTree, name: str) -> Records:
    array = NpzArray(tree, name, "images")
    return array_records(array, array.array)


def _split_files(tree: FileTree, endings: tuple[str, ...], what: str) -> dict[str, str]:
    """For each split the one file of a kind that names it."""
    found: dict[str, str] = {}
    for name in tree.names:
        split = split_in_file_name(name)
        if split is None or not name.lower().endswith(endings):
            continue
        if split in found:
            raise DataError(f"{tree.where} has two {what} files for {split}, '{found[split]}' and '{name}'; keep one.")
        found[split] = name
    return found


def _label_numbers(file: PickleFile, value: Any, images: int) -> Int64[np.ndarray, " N"]:
    """One whole number for each image, whatever they were stored as."""
    stored = file.whole(value)
    if not isinstance(stored, list | tuple | range | np.ndarray):
        raise DataError(f"{file.location} holds no list of labels; expected one whole number for each image.")
    # Counted before anything is made of it: a range of any length takes a few bytes.
    if not isinstance(stored, np.ndarray) and len(stored) != images:
        raise DataError(f"{file.location} holds {len(stored):,} labels for {images:,} images; expected one for each.")
    if not _are_numbers(stored):
        raise DataError(f"{file.location} holds labels that are not numbers; expected one whole number for each image.")
    labels = np.asarray(stored)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        if labels.dtype.kind in "iu" and labels.size == images:
            labels = labels.reshape(-1)
        else:
            raise DataError(
                f"{file.location} holds labels of type {labels.dtype} and shape {labels.shape}; expected "
                f"one whole number for each image."
            )
    if len(labels) != images:
        raise DataError(f"{file.location} holds {len(labels):,} labels for {images:,} images; expected one for each.")
    return labels.astype(np.int64)


def _are_numbers(stored: "list[Any] | tuple[Any, ...] | range | np.ndarray") -> bool:
    """Whether these are whole numbers; whatever else a list may nest is not followed."""
    if isinstance(stored, range | np.ndarray):
        return True
    return all(isinstance(one, int) and abs(one) < 1 << 40 for one in stored)


def _names_in(file: PickleFile, value: Any) -> list[str] | None:
    """A stored list of class names, None if it is not one."""
    stored = file.whole(value)
    if isinstance(stored, np.ndarray) and stored.dtype.kind in "SU":
        stored = stored.tolist()
    if not isinstance(stored, list) or not all(isinstance(one, bytes | str) for one in stored):
        return None
    return [as_text(one) for one in stored]


def _named_labels(
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


def _index_lists(file: PickleFile, class_dict: Any, images: int) -> dict[str, Sequence[int]]:
    """Class names with the places of their images, checked to name every image exactly once."""
    if not isinstance(class_dict, dict) or not class_dict:
        raise DataError(f"{file.location} holds no class_dict with the images of each class.")
    owner = np.full(images, -1, np.int64)
    found: dict[str, Sequence[int]] = {}
    for number, (key, value) in enumerate(class_dict.items()):
        name = as_text(key)
        stored = file.whole(value)
        listed = isinstance(stored, list | tuple | range | np.ndarray)
        if not listed or len(stored) > images or not _are_numbers(stored):
            raise DataError(f"Class '{name}' in {file.location} names images that are not among its {images:,}.")
        places = np.asarray(stored)
        if places.size == 0:
            raise DataError(f"Class '{name}' in {file.location} has no images; fetch the file again.")
        if places.ndim != 1 or places.dtype.kind not in "iu" or places.min() < 0 or places.max() >= images:
            raise DataError(f"Class '{name}' in {file.location} names images that are not among its {images:,}.")
        if (owner[places] >= 0).any() or len(np.unique(places)) != len(places) or name in found:
            raise DataError(f"Class '{name}' in {file.location} claims an image that another class has, or one twice.")
        owner[places], found[name] = number, places.tolist()
    if (owner < 0).any():
        raise DataError(
            f"{int((owner < 0).sum()):,} images in {file.location} belong to no class; fetch the file again."
        )
    return found
