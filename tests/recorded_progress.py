"""A Progress that keeps what it was told, for tests."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """How far a stage was when it began or advanced."""

    stage: str
    done: int
    total: int


class RecordedProgress:
    """Keeps every moment in order; ``act`` may look at each one, and raise to stop the work."""

    def __init__(self, act: Callable[[Moment], None] | None = None) -> None:
        self.moments: list[Moment] = []
        self.ended: list[str] = []
        self._act, self._stage, self._total = act, "", 0

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self._stage, self._total = title, total
        self.advance(done)

    def advance(self, done: int, **numbers: float) -> None:
        self.moments.append(Moment(self._stage, done, self._total))
        if self._act is not None:
            self._act(self.moments[-1])

    def end(self) -> None:
        self.ended.append(self._stage)

    def say(self, sentence: str) -> None:
        """Nothing is said in the work that these tests follow."""

    def of(self, stage: str) -> list[Moment]:
        """The moments of one stage."""
        return [moment for moment in self.moments if moment.stage == stage]
