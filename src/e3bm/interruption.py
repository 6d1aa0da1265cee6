"""Stopping a run without losing work: the step at hand is finished and saved, then the run ends."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


class Interrupted(Exception):
    """The run was asked to stop, and has saved everything."""


class StopRequest:
    """Says whether the run should stop: a signal has come, or the time limit has passed."""

    def __init__(self) -> None:
        self.signalled = False

    @property
    def made(self) -> bool:
        """Whether to stop after the step at hand."""
        return self.signalled or time_is_over()


@contextmanager
def stop_politely() -> Iterator[StopRequest]:
    """Turn Ctrl-C and SIGTERM inside the block into a request to stop; a second signal interrupts at once."""
    request = StopRequest()

    def remember(number: int, frame: FrameType | None) -> None:
        if request.signalled:
            raise KeyboardInterrupt
        request.signalled = True

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, remember)
    except ValueError:
        pass  # only the main thread can receive signals
    try:
        yield request
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, for commands that have no step to finish first."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Ask whatever runs in the block to stop after so many seconds; None sets no limit."""
    token = _deadline.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def time_is_over() -> bool:
    """Whether the time limit around this call has passed."""
    deadline = _deadline.get()
    return deadline is not None and time.monotonic() >= deadline


def end_with(parent: int) -> None:
    """End this worker when its parent is gone: a killed one sends no word, and workers would wait for work for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
