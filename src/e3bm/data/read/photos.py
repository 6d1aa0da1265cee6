"""A photo in whatever form a user has it: a file, encoded bytes, a Pillow image, an array or a tensor."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from PIL import Image

from e3bm.array_types import UInt8
from e3bm.data.read.decode import (
    FIRST_BYTES,
    LARGEST_IMAGE_FILE,
    begins_like_an_image,
    check_pixels,
    decode_image,
    image_pixels,
    image_size,
    is_image_name,
    plain_image,
    why_not_an_image,
)
from e3bm.data.read.file_tree import ARCHIVE_SUFFIXES, FileTree
from e3bm.errors import DataError, some_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

WIDEST = 4
"""Of proportions more extreme than 1 to this only the middle is used, before anything is enlarged."""
SUBFOLDERS = "a subfolder for each class, with photos in it"
ADVICE = f"expected {SUBFOLDERS}"
ON_THE_WEB = "an address on the web, and only files on this machine are read; download it first"
MOST_NAMED = 50
"""Files of one kind that are named before the others are only counted."""


@dataclass(frozen=True)
class StoredPhoto:
    """A photo in a folder or an archive."""

    tree: FileTree
    name: str

    def __str__(self) -> str:
        return str(self.tree.where / self.name)


Photo: TypeAlias = Union[str, Path, bytes, StoredPhoto, Image.Image, np.ndarray, "torch.Tensor"]


def photo_pixels(photo: Photo, channels: int = 3) -> UInt8[np.ndarray, "H W C"]:
    """The photo as upright 8-bit pixels; errors begin with 'it', so that the caller can put the photo's name first."""
    return image_pixels(photo_image(photo, channels))


def photo_image(photo: Photo, channels: int = 3) -> Image.Image:
    """The same as an image of Pillow's, in RGB or grey."""
    if isinstance(photo, StoredPhoto):
        return _middle(decode_image(photo.tree.read(photo.name, LARGEST_IMAGE_FILE), channels))
    if isinstance(photo, str | Path):
        return _middle(decode_image(_content(Path(photo)), channels))
    if isinstance(photo, bytes | bytearray | memoryview):
        return _middle(decode_image(bytes(photo), channels))
    if isinstance(photo, Image.Image):
        return _middle(plain_image(photo, channels))
    if _is_tensor(photo):
        photo = photo.detach().cpu().numpy()
    if isinstance(photo, np.ndarray):
        return _middle(_from_array(photo, channels))
    raise DataError(
        f"it is of type {type(photo).__name__}; expected a path, bytes, a Pillow image or an array of uint8"
    )


def photo_name(photo: Photo, otherwise: str) -> str:
    """The path of a photo that has one."""
    named = isinstance(photo, str | Path | StoredPhoto) and str(photo).strip()
    return str(photo) if named else otherwise


def as_photos(photos: Photo | Iterable[Photo]) -> tuple[list[Photo], bool]:
    """A list of photos, and whether a single one was given."""
    if isinstance(photos, str | Path | bytes | bytearray | memoryview | StoredPhoto | Image.Image):
        return [photos], True  # type: ignore[list-item]  # bytes-like are as good as bytes
    if isinstance(photos, np.ndarray) or _is_tensor(photos):
        if photos.ndim in (2, 3):
            return [photos], True
        if photos.ndim != 4:
            raise DataError(
                f"An array of photos is [height, width, channels], or has the number of photos before these; "
                f"found shape {tuple(photos.shape)}."
            )
        return list(photos), False
    if isinstance(photos, Iterable):
        return list(photos), False
    raise DataError(
        f"A photo is a path, bytes, a Pillow image or an array of uint8, or a list of these; "
        f"found {type(photos).__name__}."
    )


def why_no_picture(photo: Photo) -> str | None:
    """What shows at once that a file is no picture: it is empty, or begins like none. None where a closer look is due.

    Photos of other forms than files are not looked at, nor those of an archive that can only be read from its start.
    """
    if not isinstance(photo, StoredPhoto | Path) or (isinstance(photo, StoredPhoto) and photo.tree.sequential):
        return None
    try:
        with photo.open("rb") if isinstance(photo, Path) else photo.tree.open(photo.name) as file:
            start = file.read(FIRST_BYTES)
            if begins_like_an_image(start):
                return None
            image_size(start + file.read(LARGEST_IMAGE_FILE))  # formats that have no beginning of their own
    except DataError as error:
        return str(error)
    except (OSError, ValueError):
        return None
    return None


def why_unreadable(photo: Photo) -> str | None:
    """Why a photo cannot be decoded; None where it can."""
    try:
        photo_image(photo)
    except DataError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class UnusedFile:
    """A file or folder in which there is no photo, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class PhotoFolder:
    """The photos of a folder or archive by class, and everything in it that is none."""

    by_class: dict[str, list[StoredPhoto]]
    unused: tuple[UnusedFile, ...]


@contextmanager
def photos_by_class(source: Path, *, one_class: bool = False) -> Iterator[PhotoFolder]:
    """The photos of every class; one is refused unless ``one_class``. An archive stays open inside of the block."""
    from e3bm.data.read.archives import open_tree  # not for those who ask about one photo

    if not source.exists():
        kind = "file" if source.name.lower().endswith(ARCHIVE_SUFFIXES) else "folder"
        raise DataError(f"There is no {kind} {source}; {ADVICE}.")
    tree = open_tree(source)
    try:
        found = _listed(tree, one_class)
        used = {photo.name for photos in found.values() for photo in photos}
        loose = [name for name in tree.names if is_image_name(name) and name not in used]
        yield PhotoFolder(found, _unused_files(tree, loose))
    finally:
        tree.close()


def holds_photos(source: Path) -> bool:
    """Whether it is a folder or an archive, where one photo might be meant."""
    return source.is_dir() or (source.name.lower().endswith(ARCHIVE_SUFFIXES) and source.is_file())


def photos_in(source: Path) -> tuple[list[StoredPhoto], tuple[UnusedFile, ...]]:
    """Every photo in a folder or an archive, and everything there that is none."""
    from e3bm.data.read.archives import open_tree  # not for those who ask about one photo

    tree = open_tree(source)
    return [StoredPhoto(tree, name) for name in tree.names if is_image_name(name)], _unused_files(tree)


def unused_sentences(unused: Iterable[UnusedFile]) -> list[str]:
    """A sentence for every reason, with the files it holds for; of very many only the first."""
    by_reason: dict[str, list[str]] = {}
    for one in unused:
        by_reason.setdefault(one.reason, []).append(one.path)
    sentences = []
    for reason, paths in by_reason.items():
        sentences.append(f"Not used ({reason}): {some_of(paths, MOST_NAMED)}.")
    return sentences


def _is_tensor(photo: object) -> "TypeIs[torch.Tensor]":
    """Whether it is a tensor: nobody has one who has not imported torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(photo, torch.Tensor)


def is_web_address(path: Path) -> bool:
    """Whether someone gave an address of the web where a file or folder of this machine was expected."""
    return path.parts[:1] in (("http:",), ("https:",)) and not path.exists()


def _content(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise DataError("it is a folder; give the photos in it, one by one or as a list")
        if is_web_address(path):
            raise DataError(f"it is {ON_THE_WEB}")
        if not path.exists():
            raise DataError("there is no such file")
        if not path.is_file():
            raise DataError("it is not an ordinary file")
        with path.open("rb") as file:
            content = file.read(LARGEST_IMAGE_FILE + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(content) > LARGEST_IMAGE_FILE:
        raise DataError(f"it has more than the {LARGEST_IMAGE_FILE:,} bytes that a photo may have")
    if not content:
        raise DataError("the file is empty")
    return content


def _from_array(array: np.ndarray, channels: int) -> Image.Image:
    if array.dtype != np.uint8:
        raise DataError(f"it is an array of {array.dtype}; expected uint8 from 0 to 255")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        raise DataError(f"it is an array of shape {array.shape}; expected [height, width, 3] (channels last)")
    check_pixels((array.shape[1], array.shape[0]))
    return plain_image(Image.fromarray(np.ascontiguousarray(array)), channels)


def _middle(image: Image.Image) -> Image.Image:
    # Enlarging a strip of 30,000 x 1 to a short side of 256 would take gigabytes; a crop keeps its middle anyway.
    width, height = image.size
    most = WIDEST * min(height, width)
    if max(image.size) <= most:
        return image
    top, left = max(height - most, 0) // 2, max(width - most, 0) // 2
    return image.crop((left, top, min(left + most, width), min(top + most, height)))


def _listed(tree: FileTree, one_class: bool) -> dict[str, list[StoredPhoto]]:
    if tree.kind == "file":
        raise DataError(f"{tree.where} is a single file; expected a folder (or zip or tar file) with {SUBFOLDERS}.")
    if not any(map(is_image_name, tree.names)):
        if not tree.names:
            raise DataError(f"{tree.where} holds no files; {ADVICE}.")
        found = f"{len(tree.names)} files and no photo" if len(tree.names) > 1 else "one file and no photo"
        first = f"{tree.names[0]}: {why_not_an_image(tree.names[0])}"
        raise DataError(f"{tree.where} holds {found} ({'the first, ' * (len(tree.names) > 1)}{first}); {ADVICE}.")
    from e3bm.data.layouts.base import KnownClasses, split_word
    from e3bm.data.layouts.folders import ClassFolders
    from e3bm.data.read.records import FileRecords

    listing = ClassFolders(empty_folders=True, loose_images=True, one_class=one_class).find(tree, KnownClasses())
    assert listing is not None
    assert isinstance(listing.records, FileRecords)
    splits = [name for name in listing.class_names if split_word(name)]
    if len(splits) == len(listing.class_names):
        wanted = "test" if one_class else "train"  # one class is enough for an evaluation only
        nearest = next((name for name in splits if split_word(name) == wanted), splits[0])
        raise DataError(
            f"The subfolders of {tree.where} are {' and '.join(splits)}, which are splits of a data set, not classes; "
            f"point at one of them, such as {tree.where / nearest}."
        )
    found_photos: dict[str, list[StoredPhoto]] = {name: [] for name in listing.class_names}
    for name, label in zip(listing.records.names, listing.labels, strict=True):
        found_photos[listing.class_names[int(label)]].append(StoredPhoto(tree, name))
    return found_photos


def _unused_files(tree: FileTree, loose: Iterable[str] = ()) -> tuple[UnusedFile, ...]:
    """What is not used: skipped files, other formats, ``loose`` photos, and folders without any, the outermost only."""
    reasons = dict(tree.skipped) | dict.fromkeys(loose, "not in a class folder")
    reasons |= {name: why_not_an_image(name) for name in tree.names if not is_image_name(name)}
    above = lambda name: {name[:place] for place, letter in enumerate(name) if letter == "/"}
    filled = set[str]().union(*map(above, tree.names))
    with_photos = set[str]().union(*(above(name) for name in tree.names if is_image_name(name)))
    without_photos = {folder for name in tree.folders for folder in (name, *above(name))} | filled
    without_photos -= with_photos | {""}  # a tar file may name its own root
    for folder in without_photos:
        if not above(folder) & without_photos and folder not in reasons:
            reasons[folder] = "a folder without photos" if folder in filled else "an empty folder"
    return tuple(UnusedFile(str(tree.where / name), reason) for name, reason in sorted(reasons.items()))
