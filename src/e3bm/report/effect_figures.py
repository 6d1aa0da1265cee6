"""Figures that compare methods: accuracy beside NLL and ECE, and paired differences from one baseline at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from e3bm.report.drawing import INK, PAPER, Drawing, draw, legible
from e3bm.report.result_words import partner_words
from e3bm.report.series import Drawn, Look
from e3bm.report.training_figures import ROUND_STEPS
from e3bm.runs.folder.run import finite
from e3bm.runs.result import Result

FAR = 5  # times the median: a row that reaches further is marked at the edge instead of flattening the others
ROW, FRAME = 0.27, 0.75  # inches


@dataclass(frozen=True)
class Measure:
    """Something that is measured of every model."""

    name: str
    axis: str
    caption: str
    value: Callable[[Result], float | None]
    interval: Callable[[Result], float | None] = lambda result: None


MEASURES = (
    Measure(
        "accuracy",
        "accuracy (%)",
        "Accuracy with its 95 % interval: how often the answer is right; higher is better.",
        lambda result: result.accuracy,
        lambda result: result.ci,
    ),
    Measure(
        "nll",
        "NLL",
        "NLL, the negative log-likelihood: how little probability the right answer gets; lower is better.",
        lambda result: result.metrics.get("nll"),
    ),
    Measure(
        "ece",
        "ECE (%)",
        "ECE, the expected calibration error: how far confidence is from the share of right answers; lower is better.",
        lambda result: result.ece,
    ),
)
DIFFERENCES = (
    Measure(
        "difference",
        "difference in accuracy (points)",
        "Differences in accuracy on the same tasks, with their 95 % intervals: right of zero, the method beats the one "
        "named above the panel; a filled dot marks an interval that excludes zero, an arrow a row that lies outside.",
        lambda result: result.paired_difference,
        lambda result: result.paired_ci,
    ),
    Measure(
        "nll-difference",
        "difference in NLL",
        "Differences in NLL on the same tasks, with their 95 % intervals: left of zero, the method's probabilities are "
        "better than those of the one named above the panel; dots and arrows as for accuracy.",
        lambda result: result.metrics.get("nll_difference"),
        lambda result: result.metrics.get("nll_difference_ci"),
    ),
)


def level_figure(name: str, measure: Measure, series: Drawn) -> Drawing | None:
    """One measure of every model, a row each."""
    drawn = [(label, look, row) for label, look, row in series if finite(measure.value(row))]

    def paint(axes: Axes) -> list[Line2D]:
        places = _rows(axes, [label for label, _, _ in drawn])
        for place, (_, look, row) in zip(places, drawn, strict=True):
            _dot(axes, measure.value(row) or 0.0, place, measure.interval(row), look, hollow=look.dash == "--")
        axes.set(xlabel=measure.axis)
        axes.margins(x=0.08)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND_STEPS))
        return []

    return draw(name, measure.caption, paint, height=FRAME + ROW * len(drawn)) if drawn else None


def by_partner(series: Drawn) -> dict[str, Drawn]:
    """The rows that are compared with the same method, those with a method's own baseline first."""
    results = [result for _, _, result in series]
    groups: dict[str, Drawn] = {}
    for part in series:
        if finite(part[2].paired_difference, part[2].paired_ci):
            groups.setdefault(partner_words(part[2], results), []).append(part)
    own = lambda rows: any(row.hyperprior != "none" for _, _, row in rows)
    return dict(sorted(groups.items(), key=lambda group: not own(group[1])))


def difference_figure(name: str, measure: Measure, partner: str, rows: Drawn) -> Drawing | None:
    """Paired differences from one baseline; the scale is that of these rows alone."""
    drawn = []
    for label, look, row in rows:
        value, interval = measure.value(row), measure.interval(row)
        if value is not None and interval is not None and finite(value, interval):
            drawn.append((label, look, value, interval))

    def paint(axes: Axes) -> list[Line2D]:
        reach = _reach([abs(value) + interval for _, _, value, interval in drawn])
        axes.set_xlim(-reach, reach)
        axes.axvline(0, color=INK, lw=0.9)
        for place, (_, look, value, interval) in zip(_rows(axes, [part[0] for part in drawn]), drawn, strict=True):
            if abs(value) < reach:
                _dot(axes, value, place, interval, look, hollow=abs(value) <= interval)
            else:
                _arrow(axes, value, place, reach, look, measure)
        axes.set(xlabel=measure.axis)
        axes.set_title(f"against {legible(partner, 30)}", loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND_STEPS))
        return []

    return draw(name, measure.caption, paint, height=FRAME + 0.2 + ROW * len(drawn)) if drawn else None


def _reach(lengths: Sequence[float]) -> float:
    """How far an axis must go on both sides of zero to show all rows but those far beyond the others."""
    median = sorted(lengths)[(len(lengths) - 1) // 2]
    near = [length for length in lengths if length <= FAR * median]
    return 1.15 * (max(near, default=0.0) or max(lengths) or 1.0)


def _rows(axes: Axes, labels: Sequence[str]) -> list[int]:
    """A row for each label from the top down; their places on the axis."""
    places = list(range(len(labels)))[::-1]
    axes.set_yticks(places, [legible(label, 26) for label in labels])
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.grid(visible=False, axis="y")
    return places


def _dot(axes: Axes, value: float, place: int, interval: float | None, look: Look, *, hollow: bool) -> None:
    axes.errorbar(
        value, place, xerr=interval, fmt="o", ms=6, color=look.colour, mfc=PAPER if hollow else look.colour,
        mew=1.3, capsize=3, lw=1.4, zorder=3,
    )  # fmt: skip


def _arrow(axes: Axes, value: float, place: int, reach: float, look: Look, measure: Measure) -> None:
    """A row outside the axis: an arrow at the edge, with its number."""
    left = value < 0
    edge = -0.97 * reach if left else 0.97 * reach
    axes.plot([edge], [place], marker="<" if left else ">", ms=6, color=look.colour, zorder=3)
    digits = 3 if measure.name.startswith("nll") else 1
    axes.annotate(
        f"{value:+.{digits}f}", (edge, place), xytext=(7 if left else -7, 0), textcoords="offset points",
        ha="left" if left else "right", va="center", fontsize=8.5, color=INK,
    )  # fmt: skip
