"""Measured rows and tables, and their file formats."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from benchmarks.timing import Comparison

Sense = Literal[">=", "<="]


@dataclass(frozen=True)
class Row:
    """One ratio with its target; ``threads`` are those the operators could use.

    Where more is better the ratio is reference over ours, where less is better it is ours over reference; both sides
    are kept in ``unit``.
    """

    name: str
    ratio: float
    target: float
    met: bool
    spread: float
    threads: int
    sense: Sense
    reference: float
    ours: float
    unit: str

    @classmethod
    def of(cls, name: str, result: Comparison, target: float) -> "Row":
        """How many times faster we are, from a comparison in milliseconds of CPU time per task."""
        return cls._rounded(name, result.ratio, target, ">=", result.spread, result.slow_ms, result.fast_ms, "ms")

    @classmethod
    def at_most(
        cls, name: str, ours: float, reference: float, target: float, unit: str, *, spread: float = 0.0
    ) -> "Row":
        """A share of the reference that we should not exceed: memory, overhead, growth."""
        return cls._rounded(name, ours / reference, target, "<=", spread, reference, ours, unit)

    @classmethod
    def at_least(
        cls, name: str, ours: float, reference: float, target: float, unit: str, *, spread: float = 0.0
    ) -> "Row":
        """A multiple of the reference that we should reach, where more is better: operations per second."""
        return cls._rounded(name, ours / reference, target, ">=", spread, reference, ours, unit)

    @classmethod
    def _rounded(
        cls,
        name: str,
        ratio: float,
        target: float,
        sense: Sense,
        spread: float,
        reference: float,
        ours: float,
        unit: str,
    ) -> "Row":
        met = ratio >= target if sense == ">=" else ratio <= target
        digits = 2 if sense == ">=" else 4
        numbers = (float(f"{value:.4g}") for value in (reference, ours))
        return cls(
            name, round(ratio, digits), target, met, round(spread, 4), torch.get_num_threads(), sense, *numbers, unit
        )

    def as_json(self) -> dict[str, object]:
        """The row as bench.json holds it."""
        return asdict(self)


@dataclass(frozen=True)
class Table:
    """Numbers without a target: how something grows, or tasks per second."""

    name: str
    about: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str | float, ...], ...]

    def markdown(self) -> str:
        """The table under its name."""
        body = ["| " + " | ".join(_text(value) for value in line) + " |" for line in self.lines]
        head = "| " + " | ".join(self.columns) + " |"
        return "\n".join([f"## {self.name}", "", self.about, "", head, "|---" * len(self.columns) + "|", *body]) + "\n"

    def as_json(self) -> dict[str, object]:
        """The table as tables.json holds it."""
        return asdict(self)


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def rows_markdown(rows: Sequence[Row]) -> str:
    """The rows as a table, one line each."""
    lines = [
        "| what | ratio | target | met | spread | reference | this package | unit | threads |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = f"{row.ratio:.2f}" if row.sense == ">=" else f"{row.ratio:.3f}"
        sign = "≥" if row.sense == ">=" else "≤"
        lines.append(
            f"| {row.name} | {ratio} | {sign} {row.target:g} | {'yes' if row.met else 'no'} | {row.spread:.1%} "
            f"| {row.reference:.4g} | {row.ours:.4g} | {row.unit} | {row.threads} |"
        )
    return "\n".join(lines) + "\n"
