"""Figures at test: single learners against the ensemble, rates and weights per epoch, calibration.

The second half is about one classifier and plain numbers: its reliability, thresholds, prediction sets and votes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from e3bm.report.drawing import HEIGHT, MUTED, PAPER, SERIES, Drawing, draw, legible
from e3bm.report.series import Drawn, Look
from e3bm.report.training_figures import ROUND_STEPS, SYMBOLS
from e3bm.runs.folder.run import finite
from e3bm.runs.result import Bins

FEWEST_ANSWERS = 1 / 200  # of all: a bin with fewer shows nothing but chance


def epoch_accuracy_figure(name: str, where: str, series: Drawn) -> Drawing | None:
    """Accuracy of each epoch's learner alone, and of all together."""
    drawn = [(label, look, row, curve) for label, look, row in series if (curve := _finite(row.epoch_accuracy))]

    def paint(axes: Axes) -> list[Line2D]:
        handles = []
        longest = max(len(curve) for *_, curve in drawn)
        gap = max(1.0, 0.15 * longest)
        together = longest + 1.5 * gap
        for number, (label, look, row, values) in enumerate(drawn):
            (line,) = axes.plot(range(1, len(values) + 1), values, **_line(look, len(values)), label=label)
            shift = 0.7 * gap * ((number + 0.5) / len(drawn) - 0.5)
            place = together + shift
            axes.errorbar(
                place, row.accuracy, row.ci,
                fmt="D", ms=4.5, color=look.colour, mfc=_face(look), capsize=2, lw=1.1, zorder=4,
            )  # fmt: skip
            handles.append(line)
        axes.axvline(longest + 0.5 * gap, color=MUTED, lw=0.7, ls=":")
        round_numbers = MaxNLocator(nbins=5, integer=True).tick_values(1, longest)
        ticks = [1, *(int(tick) for tick in round_numbers if 1 + longest // 12 < tick <= longest)]
        axes.set_xticks([*ticks, together], [*map(str, ticks), "ensemble"])
        axes.set(xlabel="inner epoch m", ylabel="accuracy (%)", xlim=(1 - 0.4 * gap, together + 0.8 * gap))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND_STEPS))
        return handles

    caption = (
        f"Accuracy of each epoch's learner alone on {where}, and on the right (diamonds, with 95 % interval) what the "
        "method answers in the end; a diamond above its line means that voting together beats every single learner."
    )
    return draw(name, caption, paint) if drawn else None


def epoch_schedule_figure(name: str, where: str, series: Drawn, quantity: str) -> Drawing | None:
    """Mean alpha_m or v_m over the test tasks, by epoch."""
    curve = lambda row: _finite(row.rates if quantity == "rates" else row.weights)
    drawn = [(label, look, values) for label, look, row in series if (values := curve(row))]
    voting = [part for part in drawn if quantity != "weights" or any(part[2][:-1])]
    omitted = quantity == "weights" and bool(voting)
    drawn = voting or drawn  # a single 1 after many zeros would flatten all other lines
    words = SYMBOLS[quantity][1]

    def paint(axes: Axes) -> list[Line2D]:
        handles = []
        for label, look, values in drawn:
            (line,) = axes.plot(range(1, len(values) + 1), values, **_line(look, len(values)), label=label)
            handles.append(line)
        axes.set(xlabel="inner epoch m", ylabel=f"{words} (mean over tasks)")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND_STEPS))
        return handles

    reading = {
        "rates": "higher means a longer step at that epoch",
        "weights": "higher means more say in the vote, below zero a vote against",
    }
    caption = f"Mean {words} of each inner epoch over the tasks of {where}: {reading[quantity]}"
    caption += "; a method alone, whose last epoch decides, is not drawn." if omitted else "."
    return draw(name, caption, paint) if drawn else None


def reliability_figure(name: str, where: str, series: Drawn) -> Drawing | None:
    """How often answers of some confidence are right."""
    drawn = [(label, look, row, bins) for label, look, row in series if (bins := _bins(row.reliability))]

    def paint(axes: Axes) -> list[Line2D]:
        handles = []
        axes.plot([0, 100], [0, 100], color=MUTED, lw=0.9, ls=":", zorder=1)
        for label, look, row, bins in drawn:
            confidence, accuracy, count = zip(*bins, strict=True)
            error = f" (ECE {row.ece:.1f} %)" if finite(row.ece) else ""
            (line,) = axes.plot(
                confidence,
                accuracy,
                color=look.colour,
                ls=look.dash,
                lw=1.3,
                label=legible(label, 26) + error,
                zorder=3,
            )
            sizes = [6 + 60 * number / max(count) for number in count]
            axes.scatter(confidence, accuracy, s=sizes, color=look.colour, alpha=0.55, linewidths=0, zorder=3)
            handles.append(line)
        axes.set(xlabel="confidence (%)", ylabel="right answers (%)", xlim=(0, 102), ylim=(0, 104))
        axes.set_aspect("equal", adjustable="box")
        return handles

    caption = (
        f"Reliability on {where}: on the dotted diagonal, confidence matches accuracy, below it the model is "
        "overconfident, above it underconfident; larger dots stand for more answers, and bins with less than one "
        "answer in 200 are left out."
    )
    return draw(name, caption, paint, height=HEIGHT + 0.5) if drawn else None


def _line(look: Look, points: int) -> dict[str, Any]:
    shape = {"marker": "o" if points <= 30 else "", "ms": 4, "mfc": _face(look)}
    return {"color": look.colour, "ls": look.dash, "lw": 1.5, "zorder": 3, **shape}


def _face(look: Look) -> str:
    """Markers of a method alone are hollow, as its line is dashed."""
    return PAPER if look.dash == "--" else look.colour


def _finite(values: Sequence[float]) -> Sequence[float]:
    """The values of a curve that can be drawn, or none."""
    return values if values and finite(*values) else ()


def _bins(reliability: Bins | None) -> list[tuple[float, float, float]]:
    """Confidence and accuracy in percent, and count, of the bins that hold enough answers to say something."""
    if reliability is None:
        return []
    columns = (reliability.confidence, reliability.accuracy, reliability.count)
    if not all(map(_finite, columns)):
        return []
    fewest = sum(reliability.count) * FEWEST_ANSWERS
    return [(100 * c, 100 * a, n) for c, a, n in zip(*columns, strict=True) if n > 0 and n >= fewest]


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
        "How often answers of some confidence are right, with 95 % intervals. On the dotted diagonal, confidence "
        "matches accuracy; below it the model is overconfident, above it underconfident. Dots grow with the number of "
        "answers."
    )
    return draw("reliability", caption, paint, height=HEIGHT + 0.3)


def threshold_drawing(
    recalls: Sequence[float], kept: Sequence[float], caught: Sequence[float], in_use: float, noun: str = "example"
) -> Drawing:
    """What each setting of the recall keeps of known examples and catches of strangers, from 0 to 1.

    An example whose unknown score exceeds the recall is called unknown. ``noun`` is what an example is called.
    """

    def paint(axes: Axes) -> list[Line2D]:
        handles = []
        for values, colour, dash, name in (
            (kept, SERIES[0], "-", f"known {noun}s kept"),
            (caught, SERIES[1], "--", f"{noun}s of other classes caught"),
        ):
            if len(values):
                (line,) = axes.step(
                    recalls, [100 * one for one in values], where="pre", color=colour, ls=dash, label=name
                )
                handles.append(line)
        handles.append(axes.axvline(in_use, color=MUTED, lw=0.9, ls=":", label="recall in use"))
        ends = (recalls[0], recalls[-1])
        axes.plot(ends, [100 * one for one in ends], color=MUTED, lw=0.7, zorder=1)
        words = "recall (a larger unknown_score is called unknown)"
        axes.set(xlabel=words, ylabel=f"{noun}s (%)", ylim=(0, 104))
        return handles

    others = f", and how many {noun}s of other classes it would catch" if len(caught) else ""
    caption = (
        f"How many {noun}s of the classes every setting of the recall would keep{others}. On the grey line, it keeps "
        "the share that it is meant to keep."
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
