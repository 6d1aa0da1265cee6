"""Stopping politely: the step in hand is finished and saved, then the run ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """Somebody asked to stop; everything is saved."""


class Wish:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.stop = False


@contextmanager
def stop_politely() -> Iterator[Wish]:
    """Ctrl-C and SIGTERM set the wish; a second signal is taken at its word."""
    wish = Wish()

    def remember(number: int, frame: FrameType | None) -> None:
        if wish.stop:
            raise KeyboardInterrupt
        wish.stop = True

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, remember)
    except ValueError:
        pass  # not the main thread: nobody can press Ctrl-C here
    try:
        yield wish
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
