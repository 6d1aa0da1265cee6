"""Files that are either whole or absent, and locks between processes: what every room that writes builds on."""

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

LEFTOVERS = ".*.partial"
"""Files of writers that were killed before their rename."""


def write_whole(path: Path, *parts: bytes) -> None:
    """Write beside, flush to disk, then rename over: a reader finds the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


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
