"""Images as they lie in files and arrays, handed out one after another and never all at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from e3bm.data.read.array_files import NpzArray, PickleFile, stored_blocks
from e3bm.data.read.decode import LARGEST_IMAGE_FILE
from e3bm.data.read.file_tree import FileTree
from e3bm.data.read.unpickle import StoredArray, StoredBytes
from e3bm.errors import DataError

Payload = bytes | np.ndarray | DataError
"""An encoded image, decoded pixels, or why the record could not even be read."""


@runtime_checkable
class Records(Protocol):
    """A sequence of stored images that is read forward from any place."""

    @property
    def pixel_shape(self) -> tuple[int, ...] | None:
        """Height, width, channels where the images are stored as pixels; None where they are encoded."""
        ...

    def __len__(self) -> int: ...

    def name_of(self, index: int) -> str:
        """The name of an image for people."""
        ...

    def read(self, start: int = 0) -> Iterator[Payload]:
        """The images from ``start`` on."""
        ...

    def pick(self, places: Sequence[int]) -> Iterator[Payload]:
        """Some images, at ascending places, without reading those between them where the storage allows it."""
        ...


@dataclass(frozen=True)
class FileRecords:
    """Image files of a tree."""

    tree: FileTree
    names: Sequence[str]
    pixel_shape: None = None

    def __len__(self) -> int:
        return len(self.names)

    def name_of(self, index: int) -> str:
        return self.names[index]

    def read(self, start: int = 0) -> Iterator[Payload]:
        for index in range(start, len(self.names)):
            yield self._payload(index)

    def pick(self, places: Sequence[int]) -> Iterator[Payload]:
        return map(self._payload, places)

    def _payload(self, index: int) -> Payload:
        try:
            return self.tree.read(self.names[index], LARGEST_IMAGE_FILE)
        except DataError as error:
            return error


@dataclass(frozen=True)
class EncodedRecords:
    """A pickled list of encoded images."""

    file: PickleFile
    images: Sequence[bytes | StoredBytes]
    pixel_shape: None = None

    def __len__(self) -> int:
        return len(self.images)

    def name_of(self, index: int) -> str:
        return f"{self.file.name}[{index}]"

    def read(self, start: int = 0) -> Iterator[Payload]:
        return self.pick(range(start, len(self.images)))

    def pick(self, places: Sequence[int]) -> Iterator[Payload]:
        with self.file.tree.open(self.file.name) as stream:
            for index in places:
                image = self.images[index]
                if isinstance(image, bytes):
                    yield image
                elif image.length > LARGEST_IMAGE_FILE:
                    yield DataError(f"it has {image.length:,} bytes, more than an image may have")
                else:
                    yield b"".join(stored_blocks(stream, image, self.file.location))


@dataclass(frozen=True)
class ArrayRecords:
    """A stored array of pixels [N, H, W, C], [N, C, H, W], [N, H, W] or CIFAR's rows of 3072."""

    file: PickleFile | NpzArray
    array: StoredArray
    pixel_shape: tuple[int, int, int]
    channels_first: bool

    def __len__(self) -> int:
        return self.array.shape[0]

    def name_of(self, index: int) -> str:
        return f"{self.file.name}[{index}]"

    def read(self, start: int = 0) -> Iterator[Payload]:
        return map(self._image, self.file.rows(self.array, start))

    def pick(self, places: Sequence[int]) -> Iterator[Payload]:
        return map(self._image, self.file.rows_at(self.array, places))

    def _image(self, row: np.ndarray) -> UInt8[np.ndarray, "H W C"]:
        height, width, channels = self.pixel_shape
        if self.channels_first:
            return row.reshape(channels, height, width).transpose(1, 2, 0)
        return row.reshape(height, width, channels)


def array_records(file: PickleFile | NpzArray, array: object) -> ArrayRecords:
    """Stored pixels, if they are unsigned bytes in one of the known shapes."""
    if not isinstance(array, StoredArray):
        raise DataError(f"{file.location} holds {type(array).__name__} where an array of pixels was expected.")
    if array.dtype != np.uint8:
        raise DataError(f"{file.location} holds pixels of type {array.dtype}, expected uint8 from 0 to 255.")
    match array.shape:
        case (_, 3072):
            return ArrayRecords(file, array, (32, 32, 3), True)
        case (_, height, width, (1 | 3) as channels) if height > 3 and width > 3:
            return ArrayRecords(file, array, (height, width, channels), False)
        case (_, (1 | 3) as channels, height, width) if height > 3 and width > 3:
            return ArrayRecords(file, array, (height, width, channels), True)
        case (_, height, width) if height > 3 and width > 3:
            return ArrayRecords(file, array, (height, width, 1), False)
    raise DataError(
        f"{file.location} holds an array of shape {array.shape}, expected [images, height, width, 3], "
        "[images, 3, height, width] or CIFAR's [images, 3072]."
    )


@dataclass(frozen=True)
class JoinedRecords:
    """Several sequences one after another; stored pixels must agree in shape."""

    parts: tuple[Records, ...]

    def __post_init__(self) -> None:
        shapes = {part.pixel_shape: part for part in self.parts}
        if len(shapes) > 1:
            (one, first), (other, second), *_ = shapes.items()
            raise DataError(
                f"{first.name_of(0)} holds images of shape {one} and {second.name_of(0)} of {other}; "
                "all splits of a data set must have one size."
            )

    @property
    def pixel_shape(self) -> tuple[int, ...] | None:
        return self.parts[0].pixel_shape

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def name_of(self, index: int) -> str:
        for part in self.parts:
            if index < len(part):
                return part.name_of(index)
            index -= len(part)
        raise IndexError(index)

    def read(self, start: int = 0) -> Iterator[Payload]:
        for part in self.parts:
            if start < len(part):
                yield from part.read(start)
            start = max(start - len(part), 0)

    def pick(self, places: Sequence[int]) -> Iterator[Payload]:
        first = 0
        for part in self.parts:
            yield from part.pick([place - first for place in places if first <= place < first + len(part)])
            first += len(part)


@dataclass(frozen=True)
class MemoryRecords:
    """Images that are in memory or mapped already."""

    images: UInt8[np.ndarray, "N H W C"]
    name: str

    @property
    def pixel_shape(self) -> tuple[int, ...] | None:
        return self.images.shape[1:]

    def __len__(self) -> int:
        return len(self.images)

    def name_of(self, index: int) -> str:
        return f"{self.name}[{index}]"

    def read(self, start: int = 0) -> Iterator[Payload]:
        for index in range(start, len(self.images)):
            yield self.images[index]

    def pick(self, places: Sequence[int]) -> Iterator[Payload]:
        return (self.images[place] for place in places)
