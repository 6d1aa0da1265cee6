"""A pickle inside a tree: its structure at once, its long arrays piece by piece."""

import codecs
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from typing import Any, cast

import numpy as np
from jaxtyping import Shaped
from numpy.lib import format as npy

from e3bm.data.read.archives import READ_ERRORS, refuse_bomb
from e3bm.data.read.file_tree import FileTree
from e3bm.data.read.unpickle import StoredArray, StoredBytes, as_text, unpickle
from e3bm.errors import DataError, some_of

BLOCK_BYTES = 1 << 22
LARGEST_WHOLE_ARRAY = 256 << 20
LONGEST_HEADER = 10_000
MOST_NAMED = 6  # of the arrays or keys of a file, in a message


class PickleFile:
    """One pickle; the stream that reads long byte strings goes forward only, unless asked to go back."""

    def __init__(self, tree: FileTree, name: str) -> None:
        self.tree, self.name = tree, name
        with tree.open(name) as file:
            self.content: Any = unpickle(file, tree.size(name), self.location)

    @property
    def location(self) -> str:
        """The name for messages."""
        return f"'{self.name}' in {self.tree.where}"

    def keys(self) -> dict[str, Any]:
        """The content as a dictionary with text keys, empty if it is something else."""
        if not isinstance(self.content, dict):
            return {}
        return {as_text(key): value for key, value in self.content.items()}

    def shown_keys(self) -> str:
        """What it holds, for messages: some of its keys, or what it is where it has none."""
        return some_of(sorted(self.keys()), MOST_NAMED) or f"a {type(self.content).__name__}"

    def whole(self, value: Any) -> Any:
        """A value read completely: an array as numpy's, a long byte string as bytes, anything else as it is."""
        if isinstance(value, StoredBytes):
            with self.tree.open(self.name) as file:
                return b"".join(stored_blocks(file, value, self.location))
        if not isinstance(value, StoredArray):
            return value
        if isinstance(value.content, list):
            return value.content
        size = math.prod(value.shape) * value.dtype.itemsize
        if size > LARGEST_WHOLE_ARRAY:
            raise DataError(f"{self.location} holds labels of {size:,} bytes, more than any known data set has.")
        return np.frombuffer(self.whole(value.content), value.dtype).reshape(value.shape)

    def rows(self, array: StoredArray, start: int = 0) -> Iterator[Shaped[np.ndarray, "..."]]:
        """The array's entries along its first dimension, one after another, a block of the file at a time."""
        if isinstance(array.content, list):
            raise DataError(f"{self.location} holds a list of objects where an array of numbers was expected.")
        row_shape, count = array.shape[1:], array.shape[0]
        row_bytes = int(np.prod(row_shape)) * array.dtype.itemsize
        if row_bytes == 0:
            raise DataError(f"{self.location} holds images of shape {row_shape}, which have no pixels.")
        if isinstance(array.content, bytes):
            yield from np.frombuffer(array.content, array.dtype).reshape(array.shape)[start:]
            return
        with self.tree.open(self.name) as file:
            blocks = stored_blocks(file, array.content, self.location, start * row_bytes)
            yield from _cut_rows(blocks, array.dtype, (count - start, *row_shape), self.location)

    def rows_at(self, array: StoredArray, places: Sequence[int]) -> Iterator[Shaped[np.ndarray, "..."]]:
        """Some of the array's entries, at ascending places."""
        content = array.content
        if not isinstance(content, StoredBytes) or content.utf8:
            wanted = set(places)
            yield from (row for place, row in enumerate(self.rows(array)) if place in wanted)
            return
        with self.tree.open(self.name) as file:
            yield from _seek_rows(file, content.offset, array, places, self.location)


class NpzArray:
    """One named array of a .npz file; arrays of Python objects are refused, for they are pickles."""

    def __init__(self, tree: FileTree, name: str, key: str) -> None:
        self.tree, self.name, self.key = tree, name, key
        self.array = StoredArray()
        try:
            with tree.open(name) as file, zipfile.ZipFile(file) as archive:
                member = f"{key}.npy"
                if member not in archive.namelist():
                    found = some_of(archive.namelist(), MOST_NAMED) or "nothing"
                    raise DataError(f"{self.location} holds {found}, expected an array named '{key}'.")
                about = archive.getinfo(member)
                refuse_bomb(tree.where, f"{name}/{member}", about.compress_size, about.file_size)
                with archive.open(member) as stream:
                    version = npy.read_magic(stream)
                    reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                    shape, fortran, dtype = reader(stream, max_header_size=LONGEST_HEADER)
                    self._start = stream.tell()
        except DataError:
            raise
        except Exception as error:  # NumPy reads the header as Python; there is hardly an error that it cannot raise
            why = _short(error)
            raise DataError(f"{self.location} is damaged or not an npz file ({why}); fetch it again.") from error
        if dtype.hasobject or dtype.names or (fortran and len(shape) > 1):
            raise DataError(
                f"{self.location} holds {dtype} stored in a way that no known data set uses; it is refused."
            )
        self.array.dtype, self.array.shape = dtype, tuple(int(n) for n in shape)
        self.array.content = StoredBytes(self._start, about.file_size - self._start, False)
        if math.prod(self.array.shape) * dtype.itemsize != about.file_size - self._start:
            raise DataError(f"{self.location} does not hold as many numbers as its shape {shape} says; fetch it again.")

    @property
    def location(self) -> str:
        """The name for messages."""
        return f"'{self.name}' in {self.tree.where}"

    def rows(self, array: StoredArray, start: int = 0) -> Iterator[Shaped[np.ndarray, "..."]]:
        """The entries along the first dimension, one after another, a block of the file at a time."""
        shape = (array.shape[0] - start, *array.shape[1:])
        yield from _cut_rows(
            self._blocks(start * int(np.prod(shape[1:])) * array.dtype.itemsize), array.dtype, shape, self.location
        )

    def rows_at(self, array: StoredArray, places: Sequence[int]) -> Iterator[Shaped[np.ndarray, "..."]]:
        """Some of the entries, at ascending places."""
        with self._stream() as stream:
            yield from _seek_rows(stream, self._start, array, places, self.location)

    @contextmanager
    def _stream(self) -> Iterator[BufferedIOBase]:
        member = f"{self.key}.npy"
        with self.tree.open(self.name) as file, zipfile.ZipFile(file) as archive, archive.open(member) as stream:
            yield cast(BufferedIOBase, stream)

    def _blocks(self, skip: int) -> Iterator[bytes]:
        try:
            with self._stream() as stream:
                stream.seek(self._start + skip)
                while block := stream.read(BLOCK_BYTES):
                    yield block
        except (*READ_ERRORS, RuntimeError) as error:
            raise DataError(f"{self.location} is damaged ({error}); fetch it again.") from error


def _short(error: BaseException) -> str:
    """What an error says, if it is short; a header that is wrong in every letter is not repeated."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:120]


def stored_blocks(file: BufferedIOBase, stored: StoredBytes, location: str, skip: int = 0) -> Iterator[bytes]:
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
        raise DataError(f"{location} is damaged ({error}); fetch it again.") from error


def _seek_rows(
    file: BufferedIOBase, offset: int, array: StoredArray, places: Sequence[int], location: str
) -> Iterator[Shaped[np.ndarray, "..."]]:
    """Rows at ascending places of an array that begins at an offset of a stream."""
    row_bytes = int(np.prod(array.shape[1:])) * array.dtype.itemsize
    try:
        for place in places:
            file.seek(offset + place * row_bytes)
            yield np.frombuffer(file.read(row_bytes), array.dtype).reshape(array.shape[1:])
    except (*READ_ERRORS, ValueError) as error:
        raise DataError(f"{location} is damaged ({error}); fetch it again.") from error


def _cut_rows(
    blocks: Iterator[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], location: str
) -> Iterator[Shaped[np.ndarray, "..."]]:
    """Blocks of bytes as the rows of an array of this type and shape."""
    row_bytes, rest, given = int(np.prod(shape[1:])) * dtype.itemsize, b"", 0
    for block in blocks:
        rest += block
        whole = len(rest) // row_bytes
        yield from np.frombuffer(rest[: whole * row_bytes], dtype).reshape(whole, *shape[1:])
        rest, given = rest[whole * row_bytes :], given + whole
    if given != shape[0] or rest:
        raise DataError(f"{location} holds {given} images where its shape says {shape[0]}; fetch it again.")
