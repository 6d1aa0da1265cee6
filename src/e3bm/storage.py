"""Files that are either whole or absent, and locks between processes: what every room that writes builds on."""

import ctypes
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

LEFTOVERS = ".*.partial"
"""Files of writers that were killed before their rename."""
HERE, SWAP = -100, 2  # of Linux: the working directory, and the flag of renameat2 that swaps two names


def write_whole(path: Path, *parts: bytes) -> None:
    """Write beside, flush to disk, then rename over: a reader finds the old content or the new, never a part.

    What earlier writers of the same file left when they were killed is removed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("xb") as file:
            held = lock(temporary, wait=False)  # says to those who sweep that somebody is at work
            try:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
            finally:
                release(-1 if held is None else held)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sweep(path.parent, f".{path.name}.*.partial")


def sweep(folder: Path, pattern: str = LEFTOVERS) -> None:
    """Remove files that writers left which were killed before their rename; those of writers at work stay."""
    for leftover in folder.glob(pattern):
        with suppress(OSError):
            held = lock(leftover, wait=False)
            try:
                if held is not None:
                    leftover.unlink()
            finally:
                release(-1 if held is None else held)


def swap_folders(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, so that each name always has a whole one; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an old C library
        return False
    return bool(rename(HERE, os.fsencode(one), HERE, os.fsencode(other), SWAP) == 0)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder last through a power cut; where a system cannot, nothing happens."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lock(path: Path, *, wait: bool) -> int | None:
    """Keep a file or folder to this process until the descriptor is closed; None if another has it.

    -1 on a system without such locks; on a file system without them everybody has one.
    """
    if sys.platform == "win32":
        return -1
    import fcntl

    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # a file system without locks
    return descriptor


def release(descriptor: int) -> None:
    """Give a lock back."""
    if descriptor >= 0:
        os.close(descriptor)
