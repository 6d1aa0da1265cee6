"""A folder or archive of photos, a subfolder for each class."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e3bm.data.archives import open_tree
from e3bm.data.decode import is_image_name
from e3bm.data.file_tree import FileTree, FolderTree
from e3bm.data.layouts.base import KnownClasses, split_word
from e3bm.data.layouts.folders import ClassFolders
from e3bm.data.photo import StoredPhoto
from e3bm.data.records import FileRecords
from e3bm.errors import DataError

ADVICE = "expected a subfolder for each class, with photos in it"


@contextmanager
def photos_by_class(source: Path) -> Iterator[dict[str, list[StoredPhoto]]]:
    """The photos of every class; an archive stays open inside of the block."""
    if not source.exists():
        raise DataError(f"There is no folder {source}; {ADVICE}.")
    tree = open_tree(source)
    try:
        yield _listed(tree)
    finally:
        tree.close()


def photos_in(folder: Path) -> list[StoredPhoto]:
    """Every photo in a folder and below it."""
    tree = FolderTree(folder)
    return [StoredPhoto(tree, name) for name in tree.names if is_image_name(name)]


def _listed(tree: FileTree) -> dict[str, list[StoredPhoto]]:
    if tree.kind == "file":
        raise DataError(f"{tree.where} is a single file; {ADVICE}.")
    if not any(map(is_image_name, tree.names)):
        found = f"{len(tree.names)} files, none of them an image" if tree.names else "no files"
        raise DataError(f"{tree.where} holds {found}; {ADVICE}.")
    listing = ClassFolders().find(tree, KnownClasses())
    assert listing is not None
    assert isinstance(listing.records, FileRecords)
    splits = [name for name in listing.class_names if split_word(name)]
    if len(splits) == len(listing.class_names):
        raise DataError(
            f"The subfolders of {tree.where} are {' and '.join(splits)}, which are parts of a data set and no classes; "
            f"point at one of them, such as {tree.where / splits[0]}."
        )
    found_photos: dict[str, list[StoredPhoto]] = {name: [] for name in listing.class_names}
    for name, label in zip(listing.records.names, listing.labels, strict=True):
        found_photos[listing.class_names[int(label)]].append(StoredPhoto(tree, name))
    return found_photos
