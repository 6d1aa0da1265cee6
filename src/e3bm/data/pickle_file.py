"""A pickle inside a tree: its structure at once, its long arrays piece by piece."""

import codecs
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from typing import Any

import numpy as np
from jaxtyping import Shaped

from e3bm.data.archive_limits import READ_ERRORS
from e3bm.data.file_tree import FileTree
from e3bm.data.pickled_values import StoredArray, StoredBytes, as_text
from e3bm.data.unpickle import unpickle
from e3bm.errors import DataError

BLOCK_BYTES = 1 << 22
LARGEST_WHOLE_ARRAY = 256 << 20


class PickleFile:
    """One pickle; the stream that reads long byte strings goes forward only, unless asked to go back."""

    def __init__(self, tree: FileTree, name: str) -> None:
        self.tree, self.name = tree, name
        with tree.open(name) as file:
            self.content: Any = unpickle(file, tree.size(name), self.shown)

    @property
    def shown(self) -> str:
        """The name for messages."""
        return f"'{self.name}' in {self.tree.where}"

    def keys(self) -> dict[str, Any]:
        """The content as a dictionary with text keys, empty if it is something else."""
        if not isinstance(self.content, dict):
            return {}
        return {as_text(key): value for key, value in self.content.items()}

    def whole(self, value: Any) -> Any:
        """A value read completely: an array as numpy's, a long byte string as bytes, anything else as it is."""
        if isinstance(value, StoredBytes):
            with self.tree.open(self.name) as file:
                return b"".join(stored_blocks(file, value, self.shown))
        if not isinstance(value, StoredArray):
            return value
        if isinstance(value.content, list):
            return value.content
        size = int(np.prod(value.shape, dtype=object)) * value.dtype.itemsize
        if size > LARGEST_WHOLE_ARRAY:
            raise DataError(f"{self.shown} holds labels of {size:,} bytes, more than any known data set has.")
        return np.frombuffer(self.whole(value.content), value.dtype).reshape(value.shape)

    def rows(self, array: StoredArray, start: int = 0) -> Iterator[Shaped[np.ndarray, "..."]]:
        """The array's entries along its first dimension, one after another, a block of the file at a time."""
        if isinstance(array.content, list):
            raise DataError(f"{self.shown} holds a list of objects where an array of numbers was expected.")
        row_shape, count = array.shape[1:], array.shape[0]
        row_bytes = int(np.prod(row_shape)) * array.dtype.itemsize
        if row_bytes == 0:
            raise DataError(f"{self.shown} holds images of shape {row_shape}, which have no pixels.")
        if isinstance(array.content, bytes):
            yield from np.frombuffer(array.content, array.dtype).reshape(array.shape)[start:]
            return
        with self.tree.open(self.name) as file:
            blocks = stored_blocks(file, array.content, self.shown, start * row_bytes)
            yield from cut_rows(blocks, array.dtype, (count - start, *row_shape), self.shown)

    def rows_at(self, array: StoredArray, places: Sequence[int]) -> Iterator[Shaped[np.ndarray, "..."]]:
        """Some of the array's entries, at ascending places."""
        content = array.content
        if not isinstance(content, StoredBytes) or content.utf8:
            wanted = set(places)
            yield from (row for place, row in enumerate(self.rows(array)) if place in wanted)
            return
        with self.tree.open(self.name) as file:
            yield from seek_rows(file, content.offset, array, places, self.shown)


def seek_rows(
    file: BufferedIOBase, offset: int, array: StoredArray, places: Sequence[int], shown: str
) -> Iterator[Shaped[np.ndarray, "..."]]:
    """Rows at ascending places of an array that begins at an offset of a stream."""
    row_bytes = int(np.prod(array.shape[1:])) * array.dtype.itemsize
    try:
        for place in places:
            file.seek(offset + place * row_bytes)
            yield np.frombuffer(file.read(row_bytes), array.dtype).reshape(array.shape[1:])
    except (*READ_ERRORS, ValueError) as error:
        raise DataError(f"{shown} is damaged ({error}); fetch it again.") from error


def cut_rows(
    blocks: Iterator[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], shown: str
) -> Iterator[Shaped[np.ndarray, "..."]]:
    """Blocks of bytes as the rows of an array of this type and shape."""
    row_bytes, rest, given = int(np.prod(shape[1:])) * dtype.itemsize, b"", 0
    for block in blocks:
        rest += block
        whole = len(rest) // row_bytes
        yield from np.frombuffer(rest[: whole * row_bytes], dtype).reshape(whole, *shape[1:])
        rest, given = rest[whole * row_bytes :], given + whole
    if given != shape[0] or rest:
        raise DataError(f"{shown} holds {given} images where its shape says {shape[0]}; fetch it again.")


def stored_blocks(file: BufferedIOBase, stored: StoredBytes, shown: str, skip: int = 0) -> Iterator[bytes]:
    """A long byte string in blocks, without its first ``skip`` bytes."""
    try:
        file.seek(stored.offset if stored.utf8 else stored.offset + skip)
        left = stored.length if stored.utf8 else stored.length - skip
        decoder = codecs.getincrementaldecoder("utf-8")()
        while left > 0:
            block = file.read(min(BLOCK_BYTES, left))
            if not block:
                raise EOFError("it ends too early")
            left -= len(block)
            if stored.utf8:
                block = decoder.decode(block, final=left == 0).encode("latin1")
                block, skip = block[skip:], max(skip - len(block), 0)
            if block:
                yield block
    except (*READ_ERRORS, UnicodeError) as error:
        raise DataError(f"{shown} is damaged ({error}); fetch it again.") from error
