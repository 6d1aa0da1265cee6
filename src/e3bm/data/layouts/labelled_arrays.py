"""tieredImageNet's forms: images in one file for each split, encoded or as pixels, and labels in another."""

from collections.abc import Callable
from typing import Any

from e3bm.data.file_tree import FileTree
from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.pickled_labels import label_numbers, named_labels, names_in
from e3bm.data.layouts.split_pickles import Part, split_files
from e3bm.data.listing import Listing, arrays_listing
from e3bm.data.npz_arrays import NpzArray
from e3bm.data.pickle_file import PickleFile
from e3bm.data.pickled_values import StoredArray, StoredBytes
from e3bm.data.records import EncodedRecords, Records, array_records
from e3bm.errors import DataError


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
    images = split_files(tree, endings, "image")
    if not images:
        return None
    labels = split_files(tree, ("_labels.pkl", "_labels.pickle"), "label")
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
        found = ", ".join(sorted(keys)[:6]) or f"a {type(file.content).__name__}"
        raise DataError(f"{file.shown} holds {found}; expected the key label_specific or labels.")
    labels = label_numbers(file, numbers, images)
    names = names_in(file, keys["label_specific_str"]) if "label_specific_str" in keys else None
    return named_labels(split, labels, dict(enumerate(names or [])), known)


def _encoded(tree: FileTree, name: str) -> Records:
    file = PickleFile(tree, name)
    listed = file.content.content if isinstance(file.content, StoredArray) else file.content
    if not isinstance(listed, list):
        raise DataError(f"{file.shown} holds a {type(listed).__name__}; expected a list of encoded images.")
    images: list[bytes | StoredBytes] = []
    for place, image in enumerate(listed):
        encoded = image.content if isinstance(image, StoredArray) and image.dtype.itemsize == 1 else image
        if not isinstance(encoded, bytes | StoredBytes):
            raise DataError(f"Entry {place} of {file.shown} is a {type(image).__name__}; expected an encoded image.")
        images.append(encoded)
    return EncodedRecords(file, images)


def _pixels(tree: FileTree, name: str) -> Records:
    array = NpzArray(tree, name, "images")
    return array_records(array, array.array)
