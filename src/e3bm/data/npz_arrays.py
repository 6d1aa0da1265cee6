"""An array inside a .npz file, streamed: numpy would load it whole."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from typing import cast

import numpy as np
from jaxtyping import Shaped
from numpy.lib import format as npy

from e3bm.data.archive_limits import READ_ERRORS, refuse_bomb
from e3bm.data.file_tree import FileTree
from e3bm.data.pickle_file import BLOCK_BYTES, cut_rows, seek_rows
from e3bm.data.pickled_values import StoredArray, StoredBytes
from e3bm.errors import DataError

LONGEST_HEADER = 10_000


class NpzArray:
    """One named array of a .npz file; arrays of Python objects are refused, for they are pickles."""

    def __init__(self, tree: FileTree, name: str, key: str) -> None:
        self.tree, self.name, self.key = tree, name, key
        self.array = StoredArray()
        try:
            with tree.open(name) as file, zipfile.ZipFile(file) as archive:
                member = f"{key}.npy"
                if member not in archive.namelist():
                    found = ", ".join(archive.namelist()[:5]) or "nothing"
                    raise DataError(f"{self.shown} holds {found}, expected an array named '{key}'.")
                about = archive.getinfo(member)
                refuse_bomb(tree.where, f"{name}/{member}", about.compress_size, about.file_size)
                with archive.open(member) as stream:
                    version = npy.read_magic(stream)
                    reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                    shape, fortran, dtype = reader(stream, max_header_size=LONGEST_HEADER)
                    self._start = stream.tell()
        except (*READ_ERRORS, ValueError, SyntaxError, TypeError, RuntimeError) as error:
            raise DataError(f"{self.shown} is damaged or not an npz file ({error}); fetch it again.") from error
        if dtype.hasobject or dtype.names or (fortran and len(shape) > 1):
            raise DataError(f"{self.shown} holds {dtype} stored in a way that no known data set uses; it is refused.")
        self.array.dtype, self.array.shape = dtype, tuple(int(n) for n in shape)
        self.array.content = StoredBytes(self._start, about.file_size - self._start, False)
        if int(np.prod(self.array.shape, dtype=object)) * dtype.itemsize != about.file_size - self._start:
            raise DataError(f"{self.shown} does not hold as many numbers as its shape {shape} says; fetch it again.")

    @property
    def shown(self) -> str:
        """The name for messages."""
        return f"'{self.name}' in {self.tree.where}"

    def rows(self, array: StoredArray, start: int = 0) -> Iterator[Shaped[np.ndarray, "..."]]:
        """The entries along the first dimension, one after another, a block of the file at a time."""
        shape = (array.shape[0] - start, *array.shape[1:])
        yield from cut_rows(
            self._blocks(start * int(np.prod(shape[1:])) * array.dtype.itemsize), array.dtype, shape, self.shown
        )

    def rows_at(self, array: StoredArray, places: Sequence[int]) -> Iterator[Shaped[np.ndarray, "..."]]:
        """Some of the entries, at ascending places."""
        with self._stream() as stream:
            yield from seek_rows(stream, self._start, array, places, self.shown)

    def whole(self) -> Shaped[np.ndarray, "..."]:
        """A small array at once."""
        return np.frombuffer(b"".join(self._blocks(0)), self.array.dtype).reshape(self.array.shape)

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
            raise DataError(f"{self.shown} is damaged ({error}); fetch it again.") from error
