"""A measured row and its file format."""

from dataclasses import asdict, dataclass

import torch

from benchmarks.timing import Comparison


@dataclass(frozen=True)
class Row:
    """One ratio with its target; ``threads`` are those the operators could use."""

    name: str
    ratio: float
    target: float
    met: bool
    spread: float
    threads: int
    reference_ms: float
    ours_ms: float

    @classmethod
    def of(cls, name: str, result: Comparison, target: float) -> "Row":
        """A row from a comparison; a larger ratio is better."""
        return cls(
            name,
            round(result.ratio, 2),
            target,
            result.ratio >= target,
            round(result.spread, 3),
            torch.get_num_threads(),
            round(result.slow_ms, 3),
            round(result.fast_ms, 3),
        )

    def as_json(self) -> dict[str, object]:
        """The row as bench.json holds it."""
        return asdict(self)
