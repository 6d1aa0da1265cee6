"""How far a long piece of work is, told to whoever asked."""

import time
from collections.abc import Callable
from dataclasses import dataclass

SECONDS_BETWEEN = 0.1
"""Between two reports, except for the last."""


@dataclass(frozen=True)
class Progress:
    """A moment of a long piece of work."""

    stage: str
    done: int
    total: int
    """What ``done`` counts towards; 0 where nobody knows."""
    unit: str
    seconds: float
    seconds_left: float | None
    """A guess from the speed so far, None where there is nothing to guess from."""


ProgressCallback = Callable[[Progress], None]


class Reporter:
    """Tells a callback about progress, not more often than a person can read."""

    def __init__(self, callback: ProgressCallback | None, stage: str, total: int, unit: str = "images") -> None:
        self._callback, self._stage, self._total, self._unit = callback, stage, total, unit
        self._start, self._last, self._first = time.monotonic(), 0.0, 0

    def begin_at(self, done: int) -> None:
        """Work that an earlier run has done already and that says nothing about today's speed."""
        self._first = done

    def at(self, done: int) -> None:
        """Tell where the work is; the end is always told."""
        now = time.monotonic()
        if self._callback is None or (now - self._last < SECONDS_BETWEEN and done != self._total):
            return
        self._last = now
        elapsed, fresh = now - self._start, done - self._first
        left = elapsed * (self._total - done) / fresh if self._total and fresh > 0 else None
        self._callback(Progress(self._stage, done, self._total, self._unit, elapsed, left))
