"""Figures about how far a classifier can be trusted, from plain numbers: reliability, thresholds, sets, votes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from e3bm.report.drawing import HEIGHT, MUTED, SERIES, Drawing, draw


@dataclass(frozen=True)
class ReliabilityPoint:
    """Answers of about the same confidence: their number, the share that is right and its interval, from 0 to 1."""

    confidence: float
    right: float
    low: float
    high: float
    count: int


def paint_reliability(axes: Axes, points: Sequence[ReliabilityPoint], colour: str = SERIES[0]) -> None:
    """Share of right answers against confidence, with intervals; on the diagonal confidence is what it says."""
    axes.plot([0, 100], [0, 100], color=MUTED, lw=0.9, ls=":", zorder=1)
    largest = max((one.count for one in points), default=1)
    across, up = [100 * one.confidence for one in points], [100 * one.right for one in points]
    ends = [[100 * (one.right - one.low) for one in points], [100 * (one.high - one.right) for one in points]]
    axes.errorbar(across, up, yerr=ends, color=colour, lw=1.3, elinewidth=0.8, zorder=3)
    sizes = [6 + 60 * one.count / largest for one in points]
    axes.scatter(across, up, s=sizes, color=colour, linewidths=0, zorder=4)
    axes.set(xlabel="confidence (%)", ylabel="right answers (%)", xlim=(0, 102), ylim=(0, 104))


def paint_votes(axes: Axes, votes: Sequence[float], rates: Sequence[float]) -> None:
    """The vote and the learning rate of every epoch of an ensemble, side by side as shares of their largest."""
    for values, colour, name, shift in ((votes, SERIES[0], "vote v", -0.2), (rates, SERIES[1], "rate α", 0.2)):
        largest = max(map(abs, values)) or 1.0
        places = [number + 1 + shift for number in range(len(values))]
        axes.bar(
            places, [value / largest for value in values], 0.38, color=colour, label=f"{name} (1 is {largest:.3g})"
        )
    axes.axhline(0, color=MUTED, lw=0.7)
    axes.set(xlabel="epoch", ylabel="share of the largest", xticks=range(1, len(votes) + 1))
    axes.legend()


def reliability_drawing(points: Sequence[ReliabilityPoint]) -> Drawing:
    """Reliability for a page."""

    def paint(axes: Axes) -> list[Line2D]:
        paint_reliability(axes, points)
        return []

    caption = (
        "How often answers of some confidence are right, with 95 % intervals. On the dotted diagonal confidence is "
        "what it says, below it the model is too sure, above it too unsure. Dots grow with the number of answers."
    )
    return draw("reliability", caption, paint, height=HEIGHT + 0.3)


def threshold_drawing(
    thresholds: Sequence[float], kept: Sequence[float], caught: Sequence[float], in_use: float
) -> Drawing:
    """What each threshold of `unknown` keeps of known examples and catches of strangers, from 0 to 1."""

    def paint(axes: Axes) -> list[Line2D]:
        handles = []
        for values, colour, dash, name in (
            (kept, SERIES[0], "-", "known photos kept"),
            (caught, SERIES[1], "--", "strangers caught"),
        ):
            if len(values):
                (line,) = axes.step(
                    thresholds, [100 * one for one in values], where="post", color=colour, ls=dash, label=name
                )
                handles.append(line)
        handles.append(axes.axvline(in_use, color=MUTED, lw=0.9, ls=":", label="threshold in use"))
        axes.set(xlabel="threshold of the known score", ylabel="photos (%)", ylim=(0, 104))
        return handles

    caption = (
        "What every threshold of `unknown` would keep of photos of the classes, and catch of photos of other classes."
    )
    return draw("thresholds", caption, paint, height=HEIGHT)


def coverage_drawing(asked: Sequence[float], covered: Sequence[float], sizes: Sequence[float]) -> Drawing:
    """Coverage that was asked for against coverage that was found; set sizes are written beside the points."""

    def paint(axes: Axes) -> list[Line2D]:
        across, up = [100 * one for one in asked], [100 * one for one in covered]
        low = min(*across, *up) - 4
        axes.plot([low, 100], [low, 100], color=MUTED, lw=0.9, ls=":")
        axes.plot(across, up, color=SERIES[0], lw=1.3, marker="o", ms=4)
        for x, y, size in zip(across, up, sizes, strict=True):
            axes.annotate(f"{size:.1f}", (x, y), (0, 5), textcoords="offset points", ha="center", fontsize=8)
        axes.set(xlabel="coverage asked for (%)", ylabel="covered (%)", xlim=(low, 101.5), ylim=(low, 107))
        return []

    caption = "Prediction sets: how often they hold the right class, and (written beside) their mean number of classes."
    return draw("coverage", caption, paint, height=HEIGHT)


@dataclass(frozen=True)
class Plot:
    """A plot in the manner of scikit-learn's displays: its axes and its figure."""

    ax_: Any
    figure_: Any


def plot_reliability(points: Sequence[ReliabilityPoint], ax: Any = None) -> Plot:
    """Draw reliability into given axes, or into a new figure of pyplot."""
    axes = _axes(ax)
    paint_reliability(axes, points)
    return Plot(axes, axes.figure)


def plot_votes(votes: Sequence[float], rates: Sequence[float], ax: Any = None) -> Plot:
    """Draw the votes and rates of every epoch into given axes, or into a new figure of pyplot."""
    axes = _axes(ax)
    paint_votes(axes, votes, rates)
    return Plot(axes, axes.figure)


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots()[1]
