"""A zip file read in place, one member at a time."""

import hashlib
import io
import zipfile
from io import BufferedIOBase
from pathlib import Path
from typing import cast

from e3bm.data.archive_limits import READ_ERRORS, check_length, damaged, refuse_bomb
from e3bm.data.file_tree import LARGEST_FILE_IN_MEMORY, MOST_FILES, is_junk, safe_name, too_large
from e3bm.errors import DataError


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
            if member.is_dir():
                folders.add(name)
                continue
            if is_junk(name):
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
        return check_length(self.where, name, content, size)

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
