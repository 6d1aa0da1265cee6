"""Figures at test: single learners against the ensemble, rates and weights per epoch, calibration, differences."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from e3bm.report.drawing import HEIGHT, INK, MUTED, PAPER, Drawing, draw, legible
from e3bm.report.result_words import partner_words
from e3bm.report.series import Drawn, Look
from e3bm.report.training_figures import ROUND_STEPS, SYMBOLS
from e3bm.runs.folder.run import finite
from e3bm.runs.result import Bins, Result


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
    omitted = ", ".join(part[0] for part in drawn if part not in voting) if voting else ""
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
    caption += f" ({omitted}: only the last epoch votes, not drawn)." if omitted else "."
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
        f"Reliability on {where}: on the dotted diagonal confidence is what it says, below it the model is too sure, "
        "above it too shy; dots grow with the number of answers."
    )
    return draw(name, caption, paint, height=HEIGHT + 0.5) if drawn else None


def difference_figure(name: str, where: str, series: Drawn) -> Drawing | None:
    """Paired differences with their intervals."""
    drawn = [part for part in series if finite(part[2].paired_difference, part[2].paired_ci)]
    results: list[Result] = [result for _, _, result in series]

    def paint(axes: Axes) -> list[Line2D]:
        places = list(range(len(drawn)))[::-1]
        axes.axvline(0, color=INK, lw=0.9)
        for place, (_, look, row) in zip(places, drawn, strict=True):
            assert row.paired_difference is not None  # chosen by it
            filled = look.colour if row.excludes_zero else PAPER
            axes.errorbar(
                row.paired_difference, place, xerr=row.paired_ci, fmt="o", ms=6, color=look.colour, mfc=filled,
                mew=1.3, capsize=3, lw=1.4, zorder=3,
            )  # fmt: skip
        names = [f"{legible(label, 26)}\nvs {legible(partner_words(row, results), 22)}" for label, _, row in drawn]
        axes.set_yticks(places, names)
        axes.set(xlabel="paired difference in accuracy (points)", ylim=(-0.6, len(drawn) - 0.4))
        axes.grid(visible=False, axis="y")
        return []

    caption = (
        f"Difference on the same episodes ({where}) with its 95 % interval: right of zero the first method is better; "
        "a filled dot marks an interval that excludes zero."
    )
    return draw(name, caption, paint, height=0.85 + 0.42 * len(drawn)) if drawn else None


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
    """Confidence and accuracy in percent, and count, of the bins that were used."""
    if reliability is None:
        return []
    columns = (reliability.confidence, reliability.accuracy, reliability.count)
    if not all(map(_finite, columns)):
        return []
    return [(100 * c, 100 * a, n) for c, a, n in zip(*columns, strict=True) if n > 0]
