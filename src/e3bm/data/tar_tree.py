"""A tar file read in place, plain or compressed."""

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from e3bm.data.archive_limits import READ_ERRORS, check_length, damaged, refuse_bomb
from e3bm.data.file_tree import LARGEST_FILE_IN_MEMORY, MOST_FILES, is_junk, safe_name, too_large
from e3bm.errors import DataError

COMPRESSIONS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class TarTree:
    """A tar file, plain or compressed; a compressed one is listed and read in its stored order."""

    kind = "tar"

    def __init__(self, path: Path) -> None:
        self.where = path
        self._file, self.sequential = _open_plain(path)
        self._places: dict[str, tuple[int, int]] = {}
        try:
            self.folders, self._fingerprint = self._list()
        except READ_ERRORS as error:
            self._file.close()
            raise damaged(path, "tar", error) from error
        except DataError:
            self._file.close()
            raise
        self.names = tuple(self._places if self.sequential else sorted(self._places))

    def _list(self) -> tuple[frozenset[str], str]:
        path, about, folders = self.where, self.where.stat(), set[str]()
        digest = hashlib.sha256(f"{about.st_size}\0{about.st_mtime_ns}\n".encode())
        for member in _tar_members(path, self._file):
            name = safe_name(member.name, path)
            if member.isdir():
                folders.add(name)
                continue
            if is_junk(name):
                continue
            if name in self._places:
                raise DataError(f"{path} holds '{name}' twice; pack it again without the copy.")
            self._places[name] = (member.offset_data, member.size)
            digest.update(f"{name}\0{member.size}\n".encode())
        return frozenset(folders), digest.hexdigest()

    def size(self, name: str) -> int:
        return self._places[name][1]

    def read(self, name: str, limit: int = LARGEST_FILE_IN_MEMORY) -> bytes:
        offset, size = self._places[name]
        if size > limit:
            raise too_large(self.where, name, size, limit)
        try:
            self._file.seek(offset)
            content = self._file.read(size)
        except READ_ERRORS as error:
            raise DataError(f"'{name}' in {self.where} is damaged: {error}.") from error
        return check_length(self.where, name, content, size)

    def open(self, name: str) -> BufferedIOBase:
        offset, size = self._places[name]
        return io.BufferedReader(_Window(_open_plain(self.where)[0], offset, size), 1 << 18)

    def fingerprint(self) -> str:
        return self._fingerprint

    def close(self) -> None:
        self._file.close()


class _Window(io.RawIOBase):
    """A stretch of a larger stream as a stream of its own."""

    def __init__(self, file: BufferedIOBase, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = min(max(base + offset, 0), self._size)
        return self._at

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        self._file.seek(self._start + self._at)
        content = self._file.read(min(len(buffer), self._size - self._at))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def _tar_members(path: Path, file: BufferedIOBase) -> Iterator[tarfile.TarInfo]:
    packed, count = path.stat().st_size, 0
    file.seek(0)
    archive: Any = tarfile.TarFile(fileobj=file, mode="r", errors="surrogateescape")
    while (member := archive.next()) is not None:
        # The library would keep every header it has seen; a large archive has most of a million.
        archive.members.clear()
        end, count = member.offset_data + member.size, count + 1
        refuse_bomb(path, member.name, packed, end)
        if count > MOST_FILES:
            raise DataError(f"{path} holds more than {MOST_FILES:,} files; point at the data set itself.")
        if not (member.isreg() or member.isdir()) or member.issparse():
            raise DataError(f"'{member.name}' in {path} is a link or a device; the archive is refused.")
        yield member
    file.seek(archive.offset)
    ending = file.read(512)
    if len(ending) < 512 or ending.strip(b"\0"):
        raise tarfile.ReadError("its end mark is missing, so files are lost")


def _open_plain(path: Path) -> tuple[BufferedIOBase, bool]:
    """The tar stream without its compression, and whether it was compressed."""
    with path.open("rb") as file:
        start = file.read(8)
    for magic, opener in COMPRESSIONS.items():
        if start.startswith(magic):
            return opener(path, "rb"), True
    return path.open("rb"), False
