"""Whatever the user points at, opened as one tree of files."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from e3bm.data.file_tree import FileTree, FolderTree, MergedTree, SingleFile
from e3bm.data.tar_tree import COMPRESSIONS, TarTree
from e3bm.data.zip_tree import ZipTree
from e3bm.errors import DataError

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
FOREIGN_SUFFIXES = (".rar", ".7z", ".zst", ".gz", ".bz2", ".xz")


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
            f"{path} is not an archive that can be read (it begins with {start[:4]!r}); expected a zip or tar file, "
            "so fetch it again or pack it as one."
        )
    return SingleFile(path)
