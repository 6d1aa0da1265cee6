"""A folder or an archive seen as a flat list of files, read in place and never unpacked."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Protocol, runtime_checkable

from e3bm.errors import DataError

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
JUNK_FOLDERS = frozenset({"__MACOSX", "@eaDir"})
JUNK_FILES = frozenset({"Thumbs.db", "desktop.ini"})
LARGEST_FILE_IN_MEMORY = 256 << 20
MOST_FILES = 5_000_000


@runtime_checkable
class FileTree(Protocol):
    """Files by their relative names, with forward slashes; a layout asks no more of a folder or an archive."""

    @property
    def where(self) -> Path:
        """What the user pointed at."""
        ...

    @property
    def kind(self) -> str:
        """folder, file, zip or tar."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Every regular file: sorted, or in stored order where the tree is sequential."""
        ...

    @property
    def sequential(self) -> bool:
        """Whether going back in the stored order means reading from the start again, as in a compressed tar."""
        ...

    @property
    def folders(self) -> frozenset[str]:
        """Folders that are named themselves, so that an empty one can be seen."""
        ...

    @property
    def skipped(self) -> Mapping[str, str]:
        """Files and folders that are passed over, and why; what is inside of such a folder is not listed."""
        ...

    def size(self, name: str) -> int:
        """The number of bytes of a file."""
        ...

    def read(self, name: str, limit: int = LARGEST_FILE_IN_MEMORY) -> bytes:
        """A whole small file; larger than ``limit`` is an error."""
        ...

    def open(self, name: str) -> BufferedIOBase:
        """A seekable stream; going forward is always fast."""
        ...

    def fingerprint(self) -> str:
        """Changes when a file is added, removed or written anew."""
        ...

    def close(self) -> None:
        """Let go of open files."""
        ...


def safe_name(name: str, where: Path) -> str:
    """A member's name, if it stays inside its container and can be printed."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = ascii(name)
        raise DataError(f"{where} holds the name {shown}, which is not UTF-8; rename it and try again.") from error
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise DataError(f"{where} holds the name {name!r} with control characters; rename it and try again.")
    parts = name.split("/")
    windows_path = "\\" in name or (len(name) > 1 and name[1] == ":" and name[0].isalpha())
    if name.startswith("/") or ".." in parts or windows_path:
        raise DataError(f"{where} holds '{name}', a name that points outside of it; the archive is refused.")
    return "/".join(part for part in parts if part not in ("", "."))


def skipped_part(name: str) -> tuple[str, str] | None:
    """Of a name that is part of no data set, the file or folder to pass over and why; None for other names."""
    parts = name.split("/")
    for place, part in enumerate(parts):
        if part.startswith("."):
            return "/".join(parts[: place + 1]), "hidden"
        if part in JUNK_FOLDERS or part in JUNK_FILES:
            return "/".join(parts[: place + 1]), "left there by an operating system"
    return None


def too_large(where: Path, name: str, size: int, limit: int) -> DataError:
    """The error for a file that no known data set would hold."""
    return DataError(
        f"'{name}' in {where} has {size:,} bytes, more than the {limit:,} that a single image or list may have; "
        "remove it from the data."
    )


class FolderTree:
    """A folder on disk; linked folders are followed once."""

    kind, sequential = "folder", False

    def __init__(self, root: Path) -> None:
        self.where = root
        digest = hashlib.sha256()
        names: list[str] = []
        folders: set[str] = set()
        skipped: dict[str, str] = {}
        try:
            for name, about in sorted(_walk(root), key=lambda found: found[0]):
                if about is None:
                    folders.add(name)
                    continue
                if isinstance(about, str):
                    skipped[name] = about
                    continue
                names.append(name)
                digest.update(f"{name}\0{about[0]}\0{about[1]}\n".encode())
        except OSError as error:
            raise DataError(f"{error.filename or root} cannot be read: {error.strerror}.") from error
        self.names, self.folders, self.skipped = tuple(names), frozenset(folders), skipped
        self._fingerprint = digest.hexdigest()

    def size(self, name: str) -> int:
        return (self.where / name).stat().st_size

    def read(self, name: str, limit: int = LARGEST_FILE_IN_MEMORY) -> bytes:
        try:
            with (self.where / name).open("rb") as file:
                content = file.read(limit + 1)
        except OSError as error:
            raise DataError(f"{self.where / name} cannot be read: {error.strerror}.") from error
        if len(content) > limit:
            raise too_large(self.where, name, self.size(name), limit)
        return content

    def open(self, name: str) -> BufferedIOBase:
        return (self.where / name).open("rb")

    def fingerprint(self) -> str:
        return self._fingerprint

    def close(self) -> None:
        """Nothing is held open."""


class SingleFile:
    """One file on its own, for data sets that are handed round as a single pickle."""

    kind, sequential = "file", False

    def __init__(self, path: Path) -> None:
        self.where, self._path = path, path
        self.names, self.folders = (safe_name(path.name, path.parent),), frozenset[str]()
        self.skipped = dict[str, str]()

    def size(self, name: str) -> int:
        return self._path.stat().st_size

    def read(self, name: str, limit: int = LARGEST_FILE_IN_MEMORY) -> bytes:
        if self.size(name) > limit:
            raise too_large(self.where, name, self.size(name), limit)
        return self._path.read_bytes()

    def open(self, name: str) -> BufferedIOBase:
        return self._path.open("rb")

    def fingerprint(self) -> str:
        about = self._path.stat()
        return hashlib.sha256(f"{self._path.name}\0{about.st_size}\0{about.st_mtime_ns}".encode()).hexdigest()

    def close(self) -> None:
        """Nothing is held open."""


class MergedTree:
    """Several trees as if their files lay in one folder: a data set that comes as more than one archive."""

    def __init__(self, where: Path, trees: Iterable[FileTree]) -> None:
        self.where, self._trees = where, tuple(trees)
        self.kind = "+".join(sorted({tree.kind for tree in self._trees}))
        self.sequential = any(tree.sequential for tree in self._trees)
        home: dict[str, FileTree] = {}
        for tree in self._trees:
            for name in tree.names:
                if name in home:
                    raise DataError(
                        f"'{name}' is both in {home[name].where} and in {tree.where}; give only one of them."
                    )
                home[name] = tree
        self._home = home
        self.names = tuple(home)
        self.folders = frozenset().union(*(tree.folders for tree in self._trees))
        self.skipped = {name: reason for tree in self._trees for name, reason in tree.skipped.items()}

    def size(self, name: str) -> int:
        return self._home[name].size(name)

    def read(self, name: str, limit: int = LARGEST_FILE_IN_MEMORY) -> bytes:
        return self._home[name].read(name, limit)

    def open(self, name: str) -> BufferedIOBase:
        return self._home[name].open(name)

    def fingerprint(self) -> str:
        return hashlib.sha256(" ".join(sorted(tree.fingerprint() for tree in self._trees)).encode()).hexdigest()

    def close(self) -> None:
        for tree in self._trees:
            tree.close()


def _walk(root: Path) -> Iterator[tuple[str, tuple[int, int] | str | None]]:
    """Every file with its size and time, every folder with None, everything that is passed over with the reason."""
    waiting, seen, count = [("", root)], set[tuple[int, int]](), 0
    while waiting:
        prefix, folder = waiting.pop()
        about = folder.stat()
        if (about.st_dev, about.st_ino) in seen:
            yield prefix.removesuffix("/"), "the same folder as another one, by a link"
            continue
        seen.add((about.st_dev, about.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                name = safe_name(prefix + entry.name, root)
                skipped = skipped_part(name)
                if skipped is not None:
                    yield skipped
                elif entry.is_dir():
                    waiting.append((name + "/", Path(entry.path)))
                    yield name, None
                elif not entry.is_file():
                    # Reading a pipe or a socket could hang.
                    yield name, "a link that leads nowhere" if entry.is_symlink() else "not an ordinary file"
                else:
                    found = entry.stat()
                    yield name, (found.st_size, found.st_mtime_ns)
                    count += 1
                    if count > MOST_FILES:
                        raise DataError(f"{root} holds more than {MOST_FILES:,} files; point at the data set itself.")
