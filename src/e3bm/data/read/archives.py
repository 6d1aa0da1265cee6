"""Whatever the user points at, opened as one tree of files."""

import bz2
import gzip
import hashlib
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from e3bm.data.read.decode import beginning
from e3bm.data.read.file_tree import (
    ARCHIVE_SUFFIXES,
    LARGEST_FILE_IN_MEMORY,
    MOST_FILES,
    FileTree,
    FolderTree,
    MergedTree,
    SingleFile,
    safe_name,
    skipped_part,
    too_large,
)
from e3bm.errors import DataError

FOREIGN_SUFFIXES = (".rar", ".7z", ".zst", ".gz", ".bz2", ".xz")
COMPRESSIONS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
# Pixels never shrink this much; what does is a few bytes made to fill a memory.
LARGEST_RATIO, RATIO_MATTERS_FROM = 200, 64 << 20
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, NotImplementedError)


def open_tree(paths: Path | Sequence[Path], archive_patterns: Sequence[str] = ()) -> FileTree:
    """What the user pointed at, as one tree: a folder, an archive, a file, or several of them.

    A folder that holds archives whose names fit ``archive_patterns`` is read as if they were unpacked in it.
    """
    given = [paths] if isinstance(paths, Path) else list(paths)
    if not given:
        raise DataError("No source was given; name a folder or an archive.")
    trees: list[FileTree] = []
    try:
        for path in given:
            trees += [_open_one(path)]
        folders = [tree for tree in trees if tree.kind == "folder"]
        inner = [tree.where / name for tree in folders for name in tree.names if _fits(name, archive_patterns)]
        for path in inner:
            trees += [_open_one(path)]
        return trees[0] if len(trees) == 1 else MergedTree(given[0], trees)
    except DataError:
        for tree in trees:
            tree.close()
        raise


def _fits(name: str, patterns: Sequence[str]) -> bool:
    file = name.rsplit("/", maxsplit=1)[-1].lower()
    return file.endswith(ARCHIVE_SUFFIXES) and any(fnmatch(file, pattern) for pattern in patterns)


def _open_one(path: Path) -> FileTree:
    try:
        if path.is_dir():
            return FolderTree(path)
        if not path.exists():
            raise DataError(f"{path} does not exist; give the folder or archive that holds the data.")
        if not path.is_file():
            raise DataError(f"{path} is neither a file nor a folder; give the folder or archive that holds the data.")
        with path.open("rb") as file:
            start = file.read(512)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    name = path.name.lower()
    if not start:
        raise DataError(f"{path} is empty; fetch it again.")
    if start.startswith(b"PK") and not name.endswith(".npz"):
        return ZipTree(path)
    if start[257:262] == b"ustar" or name.endswith(".tar") or any(start.startswith(magic) for magic in COMPRESSIONS):
        return TarTree(path)
    if name.endswith((*ARCHIVE_SUFFIXES, *FOREIGN_SUFFIXES)):
        raise DataError(
            f"{path} is not an archive that can be read{beginning(start)}; expected a zip or tar file, "
            "so fetch it again or pack it as one."
        )
    return SingleFile(path)


class ZipTree:
    """A zip file; members are inflated one at a time."""

    kind, sequential = "zip", False

    def __init__(self, path: Path) -> None:
        self.where = path
        try:
            self._zip = zipfile.ZipFile(path)
        except UnicodeDecodeError as error:
            raise DataError(f"{path} holds a name that is not UTF-8; pack it again with UTF-8 names.") from error
        except (*READ_ERRORS, ValueError) as error:
            raise damaged(path, "zip", error) from error
        self._members: dict[str, zipfile.ZipInfo] = {}
        self.skipped: dict[str, str] = {}
        try:
            self.folders, self._fingerprint = self._list()
        except DataError:
            self._zip.close()
            raise
        self.names = tuple(sorted(self._members))

    def _list(self) -> tuple[frozenset[str], str]:
        path, folders, digest = self.where, set[str](), hashlib.sha256()
        if len(self._zip.infolist()) > MOST_FILES:
            raise DataError(f"{path} holds more than {MOST_FILES:,} files; point at the data set itself.")
        for member in self._zip.infolist():
            name = safe_name(_zip_name(member, path), path)
            skipped = skipped_part(name)
            if skipped is not None:
                self.skipped.update([skipped])
                continue
            if member.is_dir():
                folders.add(name)
                continue
            if name in self._members:
                raise DataError(f"{path} holds '{name}' twice; pack it again without the copy.")
            _check_zip_member(member, name, path)
            self._members[name] = member
            digest.update(f"{name}\0{member.file_size}\0{member.CRC}\n".encode())
        return frozenset(folders), digest.hexdigest()

    def size(self, name: str) -> int:
        return self._members[name].file_size

    def read(self, name: str, limit: int = LARGEST_FILE_IN_MEMORY) -> bytes:
        size = self.size(name)
        if size > limit:
            raise too_large(self.where, name, size, limit)
        try:
            with self._zip.open(self._members[name]) as file:
                # Asking for one size only keeps a member that lies about its size from filling the memory.
                content = file.read(size) if size else b""
        except (*READ_ERRORS, RuntimeError) as error:
            raise DataError(f"'{name}' in {self.where} is damaged: {error}.") from error
        return _check_length(self.where, name, content, size)

    def open(self, name: str) -> BufferedIOBase:
        return io.BufferedReader(cast(io.RawIOBase, self._zip.open(self._members[name])), 1 << 18)

    def fingerprint(self) -> str:
        return self._fingerprint

    def close(self) -> None:
        self._zip.close()


def _zip_name(member: zipfile.ZipInfo, path: Path) -> str:
    if member.flag_bits & 0x800 or member.orig_filename.isascii():
        return member.orig_filename.replace("\0", "\1")
    try:
        # Many tools write UTF-8 without saying so; zipfile then took the bytes for the old DOS letters.
        return member.orig_filename.encode("cp437").decode("utf-8")
    except UnicodeError as error:
        shown = ascii(member.orig_filename)
        raise DataError(
            f"{path} holds the name {shown}, which is not UTF-8; pack it again with UTF-8 names."
        ) from error


def _check_zip_member(member: zipfile.ZipInfo, name: str, path: Path) -> None:
    if member.flag_bits & 0x1:
        raise DataError(f"'{name}' in {path} is encrypted; unlock the archive and pack it again without a password.")
    if (member.external_attr >> 16) & 0o170000 == 0o120000:
        raise DataError(f"'{name}' in {path} is a link; the archive is refused, pack it again with real files.")
    refuse_bomb(path, name, member.compress_size, member.file_size)


class TarTree:
    """A tar file, plain or compressed; a compressed one is listed and read in its stored order."""

    kind = "tar"

    def __init__(self, path: Path) -> None:
        self.where = path
        self._file, self.sequential = _open_uncompressed(path)
        self._places: dict[str, tuple[int, int]] = {}
        self.skipped: dict[str, str] = {}
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
            skipped = skipped_part(name)
            if skipped is not None:
                self.skipped.update([skipped])
                continue
            if member.is_folder:
                folders.add(name)
                continue
            if name in self._places:
                raise DataError(f"{path} holds '{name}' twice; pack it again without the copy.")
            self._places[name] = (member.offset, member.size)
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
        return _check_length(self.where, name, content, size)

    def open(self, name: str) -> BufferedIOBase:
        offset, size = self._places[name]
        return io.BufferedReader(_Window(_open_uncompressed(self.where)[0], offset, size), 1 << 18)

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


BLOCK = 512
LARGEST_HEADER = 1 << 20
NAME_HEADERS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
"""Members that say something of the next one."""
PLAIN_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


@dataclass(frozen=True)
class _TarMember:
    name: str
    is_folder: bool
    offset: int
    size: int


def _tar_members(path: Path, file: BufferedIOBase) -> Iterator[_TarMember]:
    """The files and folders of a tar stream.

    The library's own reader takes the whole of a header into memory, and a header may claim any size; this one uses the
    library for single blocks and bounds what stands between them.
    """
    packed, count, offset = path.stat().st_size, 0, 0
    long_name, stated_size = "", None
    while True:
        file.seek(offset)
        block = file.read(BLOCK)
        if block == bytes(BLOCK):
            return
        if len(block) < BLOCK:
            raise tarfile.ReadError("its end mark is missing, so files are lost")
        header, count = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape"), count + 1
        size = header.size if stated_size is None or header.type in NAME_HEADERS else stated_size
        if size < 0:
            raise tarfile.ReadError("a file has a negative size")
        start, offset = offset + BLOCK, offset + BLOCK + -(-size // BLOCK) * BLOCK
        refuse_bomb(path, header.name, packed, offset)
        if count > MOST_FILES:
            raise DataError(f"{path} holds more than {MOST_FILES:,} files; point at the data set itself.")
        if header.type in (*NAME_HEADERS, tarfile.XGLTYPE):
            if size > LARGEST_HEADER:
                raise DataError(
                    f"{path} holds a name or header of {size:,} bytes, which no real archive has; it is refused."
                )
            content = file.read(size) if header.type != tarfile.XGLTYPE else b""
            if header.type == tarfile.GNUTYPE_LONGNAME:
                long_name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                stated = _pax_records(content)
                long_name = stated.get("path", long_name)
                stated_size = _stated_size(stated)
            continue
        name = long_name or header.name
        is_folder = header.type == tarfile.DIRTYPE
        if not is_folder and header.type not in PLAIN_FILES:
            raise DataError(f"'{name}' in {path} is a link or a device; the archive is refused.")
        yield _TarMember(name, is_folder, start, size)
        long_name, stated_size = "", None


def _pax_records(content: bytes) -> dict[str, str]:
    """The records of an extended header: each is its own length, a key and a value."""
    found, at = {}, 0
    while at < len(content) and content[at] != 0:
        length = re.match(rb"(\d{1,7}) ", content[at : at + 8])
        end = at + int(length.group(1)) if length else 0
        if length is None or not at + len(length.group()) < end <= len(content) or content[end - 1 : end] != b"\n":
            raise tarfile.ReadError("an extended header is damaged")
        key, equals, value = content[at + len(length.group()) : end - 1].partition(b"=")
        if not equals:
            raise tarfile.ReadError("an extended header is damaged")
        found[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        at = end
    if any(key.startswith("GNU.sparse") for key in found):
        raise tarfile.ReadError("it holds a sparse file, which cannot be read")
    return found


def _stated_size(stated: Mapping[str, str]) -> int | None:
    if "size" not in stated:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", stated["size"]):
        raise tarfile.ReadError("an extended header is damaged")
    return int(stated["size"])


def _open_uncompressed(path: Path) -> tuple[BufferedIOBase, bool]:
    """The tar stream without its compression, and whether it was compressed."""
    with path.open("rb") as file:
        start = file.read(8)
    for magic, opener in COMPRESSIONS.items():
        if start.startswith(magic):
            return opener(path, "rb"), True
    return path.open("rb"), False


def refuse_bomb(path: Path, name: str, packed: int, full: int) -> None:
    """Stop where a few bytes would grow as no image does."""
    if full > RATIO_MATTERS_FROM and full > LARGEST_RATIO * max(packed, 1):
        raise DataError(
            f"'{name}' in {path} would grow from {packed:,} to {full:,} bytes, which no image does; the archive is "
            f"refused as a decompression bomb."
        )


def _check_length(path: Path, name: str, content: bytes, size: int) -> bytes:
    """The content, if it is as long as the archive says."""
    if len(content) != size:
        raise DataError(f"'{name}' in {path} is cut short: {len(content)} of {size} bytes; fetch the archive again.")
    return content


def damaged(path: Path, kind: str, error: BaseException) -> DataError:
    """The error for an archive that is cut short or is something else."""
    return DataError(f"{path} is damaged or not a {kind} file ({str(error).rstrip('.')}); fetch it again.")
