"""The target table as a picture: how far each row is above or below its target."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.rows import Row
from e3bm.report.drawing import INK, MUTED, SERIES, STYLE

MET, MISSED = SERIES[2], SERIES[1]
ROW_HEIGHT = 0.21  # inches


def factor(row: Row) -> float:
    """What was reached over what was wanted; above 1 the target is met."""
    return row.ratio / row.target if row.sense == ">=" else row.target / max(row.ratio, 1e-9)


def draw(rows: Sequence[Row], folder: Path) -> None:
    """bench.svg and bench.png."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", {**STYLE, "svg.hashsalt": "bench"}]):
        figure = Figure(figsize=(10, 1.2 + ROW_HEIGHT * len(rows)), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        places = range(len(rows))
        colours = [MET if row.met else MISSED for row in rows]
        axes.barh(places, [factor(row) - 1 for row in rows], left=1, color=colours, height=0.62)
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_xscale("log", base=2)
        low, high = (min(0.4, *map(factor, rows)) / 1.1, max(2.0, *map(factor, rows)) * 1.6)
        axes.set_xlim(low, high)
        ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16) if low < tick < high]
        axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
        axes.set_yticks(places, [row.name.replace("`", "") for row in rows], fontsize=7.5)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        for place, row in zip(places, rows, strict=True):
            number, sign = (f"{row.ratio:.3g}", "≥") if row.sense == ">=" else (f"{row.ratio:.3f}", "≤")
            text = f" {number} (target {sign} {row.target:g})"
            axes.text(max(1.0, factor(row)), place, text, va="center", fontsize=7, color=INK if row.met else MISSED)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("reached over target: right of the line is met", color=MUTED)
        axes.set_title("Ratios inside one run, and their targets")
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "bench.svg", metadata=dict.fromkeys(("Date", "Creator")))
        figure.savefig(folder / "bench.png", metadata={"Software": None})
