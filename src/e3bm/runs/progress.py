"""How long work reports itself: whoever shows it (a terminal, a log, a test) implements this."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Told what is being done and how far it is."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """A piece of work of ``total`` units starts, or continues after ``done`` of them."""
        ...

    def advance(self, done: int, **numbers: float) -> None:
        """So many units are done by now; numbers are worth seeing (loss, accuracy, tasks_per_second)."""
        ...

    def end(self) -> None:
        """The piece of work is finished or stopped."""
        ...

    def say(self, sentence: str) -> None:
        """Something a person should read."""
        ...


class Silent:
    """Nobody watches."""

    def begin(self, title: str, total: int, done: int = 0) -> None: ...

    def advance(self, done: int, **numbers: float) -> None: ...

    def end(self) -> None: ...

    def say(self, sentence: str) -> None: ...


@contextmanager
def shown(progress: Progress, title: str, total: int, done: int = 0) -> Iterator[None]:
    """A piece of work that ends for whoever watches, also when it fails: a bar left standing would spoil a terminal."""
    progress.begin(title, total, done)
    try:
        yield
    finally:
        progress.end()


# Stopping politely: the step in hand is finished and saved, then the run ends.


_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


class Interrupted(Exception):
    """Somebody asked to stop; everything is saved."""


class Wish:
    """Whether somebody asked to stop, or the time is over."""

    def __init__(self) -> None:
        self.asked = False

    @property
    def stop(self) -> bool:
        return self.asked or time_is_over()


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Whatever runs in here is asked to stop after so many seconds; without a number it is not."""
    token = _deadline.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def time_is_over() -> bool:
    """Whether the time limit around this call has passed."""
    deadline = _deadline.get()
    return deadline is not None and time.monotonic() >= deadline


@contextmanager
def stop_politely() -> Iterator[Wish]:
    """Ctrl-C, SIGTERM and the end of a time limit set the wish; a second signal is taken at its word."""
    wish = Wish()

    def remember(number: int, frame: FrameType | None) -> None:
        if wish.asked:
            raise KeyboardInterrupt
        wish.asked = True

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


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Where nothing finishes a step first, SIGTERM ends a command as Ctrl-C does: with a sentence, children told."""

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
