"""A disk that fails at a chosen operation, by way of Python's audit events."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WRITES = {"open", "os.rename", "os.mkdir"}
_plan = {"folder": "", "left": -1, "count": 0}


def _hook(event, arguments):
    if _plan["left"] < 0 or event not in WRITES or not str(arguments[0]).startswith(_plan["folder"]):
        return
    # Reading never fails for want of room: `open` comes with its flags.
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    _plan["count"] += 1
    if _plan["left"] == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    _plan["left"] -= 1


sys.addaudithook(_hook)  # for as long as the process lives; silent without a plan


@contextmanager
def full_after(operations: int, folder) -> Iterator[None]:
    """The disk takes so many more writing operations on a folder, then none."""
    _plan.update(folder=str(folder), left=operations, count=0)
    try:
        yield
    finally:
        _plan.update(left=-1)


def operations_of(work, folder) -> int:
    """How many writing operations some work needs."""
    with full_after(10**9, folder):
        work()
    return _plan["count"]
