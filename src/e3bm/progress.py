"""How long work reports what it is doing and how far it is, to whoever shows it: a terminal, a log, a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Told which stage of the work has begun, how far it is, and when it ends."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """A stage of ``total`` units begins, or continues after ``done`` of them; 0 where the total is not known."""
        ...

    def advance(self, done: int, **numbers: float) -> None:
        """So many units are done by now; ``numbers`` are worth showing (loss, accuracy, tasks_per_second)."""
        ...

    def end(self) -> None:
        """The stage is finished or has failed."""
        ...

    def say(self, sentence: str) -> None:
        """Show a sentence that a person should read."""
        ...


class Silent:
    """Shows nothing."""

    def begin(self, title: str, total: int, done: int = 0) -> None: ...

    def advance(self, done: int, **numbers: float) -> None: ...

    def end(self) -> None: ...

    def say(self, sentence: str) -> None: ...


@contextmanager
def stage(progress: Progress, title: str, total: int, done: int = 0) -> Iterator[None]:
    """Begin a stage and end it with the block, also on an error: an open bar would spoil the terminal."""
    progress.begin(title, total, done)
    try:
        yield
    finally:
        progress.end()
