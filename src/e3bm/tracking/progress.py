"""How long work reports itself: whoever shows it (a terminal, a log, a test) implements this."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


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
