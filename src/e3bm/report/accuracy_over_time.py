"""What accuracy costs: every row of a comparison over the seconds that one model of it was trained.

Above, a panel for inductive and one for transductive rows, with numbers that keep clear of each other; below, the same
rows by rank with their whole names.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from e3bm.errors import SettingsError
from e3bm.report.drawing import GRID, INK, MUTED, PAPER, SERIES, Drawing, draw_figure, legible
from e3bm.report.result_words import asked_words, data_words, method_words
from e3bm.report.training_figures import ROUND_STEPS
from e3bm.runs.folder.files import write_bytes
from e3bm.runs.folder.run import duration
from e3bm.runs.result import Result

COLOURS = {"inductive": SERIES[0], "transductive": SERIES[1]}
TICKS = (1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 360000.0)  # seconds
UNTRAINED = "none"
# Inches of the page, of its panels, and of what is written beside them.
WIDTH, PANEL, ROW, LEFT, RIGHT, TOP, BETWEEN = 8.6, 3.9, 0.165, 0.6, 0.15, 0.3, 0.75
LETTER = 0.058  # inches of a letter of a name
SMALL = 7.5  # points of names and numbers
LABEL = (5.4, 8.5)  # points of width of a digit and of height of a number
POINT = 3.5  # points around a marker that numbers keep clear of


def accuracy_over_time(results: Sequence[Result], name: str = "accuracy_over_time") -> Drawing:
    """Numbered points in two panels, and the rows of the table with their names; what has nothing to train is left."""
    rows = list(enumerate(results, 1))
    groups = {setting: [row for row in rows if row[1].setting == setting] for setting in COLOURS}
    groups = {setting: found for setting, found in groups.items() if found}
    names = [legible(f"{method_words(result)} · {result.backbone}", 90) for result in results]
    seconds = _Seconds(results)
    ranked = ROW * (len(rows) + 1)
    height = TOP + PANEL + BETWEEN + ranked + 0.5

    def compose(figure: Figure) -> None:
        def axes(left: float, top: float, width: float, tall: float) -> Axes:
            return figure.add_axes((left / WIDTH, 1 - (top + tall) / height, width / WIDTH, tall / height))

        bounds = _bounds(results)
        each = (WIDTH - LEFT - RIGHT - 0.3 * (len(groups) - 1)) / len(groups)
        for place, (setting, found) in enumerate(groups.items()):
            panel = axes(LEFT + place * (each + 0.3), TOP, each, PANEL)
            seconds.paint(panel)
            panel.set_title(setting, loc="left")
            panel.set(ylim=bounds, xlabel="training of one model")
            panel.yaxis.set_major_locator(MaxNLocator(nbins=9, steps=ROUND_STEPS))
            panel.set_ylabel("accuracy (%)") if place == 0 else panel.tick_params(labelleft=False)
            _scatter(panel, found, seconds)
        begin = LEFT + 0.15 + LETTER * max(map(len, names))
        wide = (WIDTH - RIGHT - begin - 0.2) / 2
        top = TOP + PANEL + BETWEEN
        accuracies, times = axes(begin, top, wide, ranked), axes(begin + wide + 0.2, top, wide, ranked)
        seconds.paint(times, every=2)
        _ranks(accuracies, times, results, names, seconds)

    first = results[0]
    caption = (
        f"Accuracy on {data_words(first)}, {asked_words(first)}, with its 95 % interval, over the time that one model "
        f"was trained, without the pre-training of its backbone ({UNTRAINED}: nothing is trained). "
        "Blue: inductive, orange: transductive; filled: with E3BM. Numbers are rows of the table, best first; "
        "the dashed line joins rows that nothing in their panel beats in less time, which are bold below."
    )
    return draw_figure(name, caption, compose, width=WIDTH, height=height)


def write_figure(results: Sequence[Result], path: Path) -> None:
    """Draw a comparison into a .png or .svg file."""
    if path.suffix not in (".png", ".svg"):
        raise SettingsError(f"A figure is a .png or .svg file, found '{path.name}'.")
    drawing = accuracy_over_time(results, path.stem)
    write_bytes(path, drawing.png if path.suffix == ".png" else drawing.svg.encode())


class _Seconds:
    """The axis of training times: logarithmic, with a place at its left for what has nothing to train."""

    def __init__(self, results: Sequence[Result]) -> None:
        trained = [own for own in map(_seconds, results) if own > 0]
        self.left, self.longest = min(trained, default=1.0) / 3, max(trained, default=1.0)

    def of(self, result: Result) -> float:
        return _seconds(result) or self.left

    def paint(self, axes: Axes, *, every: int = 1) -> None:
        """On a narrow panel only every second time is written, the longest among them."""
        axes.set_xscale("log")
        axes.set_xlim(self.left / 2, self.longest * 2.5)
        within = [tick for tick in TICKS if 3 * self.left < tick < 2.5 * self.longest][::-every][::-1]
        axes.set_xticks([self.left, *within], [UNTRAINED, *(duration(tick).replace(".0", "") for tick in within)])
        axes.minorticks_off()
        axes.axvline(self.left * 1.6, color=MUTED, lw=0.7, ls=":")


def front(results: Sequence[Result]) -> list[Result]:
    """Those that no other beats in as little time, the quickest first."""
    best: list[Result] = []
    for result in sorted(results, key=lambda each: (_seconds(each), -each.accuracy)):
        if not best or result.accuracy > best[-1].accuracy:
            best.append(result)
    return best


def _seconds(result: Result) -> float:
    return result.train_seconds / len(result.seeds or (0,))


def _bounds(results: Sequence[Result]) -> tuple[float, float]:
    ends = [result.accuracy + sign * result.ci for result in results for sign in (-1, 1)]
    space = 0.05 * (max(ends) - min(ends)) + 0.1
    return min(ends) - space, max(ends) + space


def _look(result: Result) -> dict[str, Any]:
    colour = COLOURS[result.setting]
    return {"color": colour, "mfc": PAPER if result.hyperprior == "none" else colour, "marker": "o", "ms": 4.5}


def _scatter(axes: Axes, rows: Sequence[tuple[int, Result]], seconds: _Seconds) -> None:
    """Points, the front of those that nothing beats in less time, and a number beside each point."""
    best = front([result for _, result in rows])
    axes.plot([seconds.of(each) for each in best], [each.accuracy for each in best], "--", color=MUTED, lw=0.9)
    for _, result in rows:
        axes.errorbar(seconds.of(result), result.accuracy, result.ci, lw=0.8, capsize=1.5, zorder=3, **_look(result))
    scale = 72 / axes.figure.dpi
    places = [axes.transData.transform((seconds.of(result), result.accuracy)) * scale for _, result in rows]
    frame = axes.get_window_extent()
    inside = tuple(value * scale for value in (frame.x0, frame.y0, frame.x1, frame.y1))
    offsets = clear_offsets([(float(x), float(y)) for x, y in places], [len(str(n)) for n, _ in rows], inside)
    for (number, result), offset in zip(rows, offsets, strict=True):
        axes.annotate(
            str(number), (seconds.of(result), result.accuracy), xytext=offset, textcoords="offset points",
            fontsize=SMALL, color=INK, ha="center", va="center", fontweight="bold" if result in best else "normal",
            arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.4, "shrinkA": 0, "shrinkB": 2}, zorder=4,
        )  # fmt: skip


Box = tuple[float, float, float, float]


def clear_offsets(
    places: Sequence[tuple[float, float]], digits: Sequence[int], inside: Box
) -> list[tuple[float, float]]:
    """Where to write a number beside each point, in points from it: near, in the frame, clear of points and numbers."""
    taken = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in places]
    found = []
    for (x, y), count in zip(places, digits, strict=True):
        wide, tall = LABEL[0] * count / 2 + 0.5, LABEL[1] / 2
        boxes = {
            offset: (x + offset[0] - wide, y + offset[1] - tall, x + offset[0] + wide, y + offset[1] + tall)
            for offset in _around()
        }
        within = [offset for offset, box in boxes.items() if _contains(inside, box)] or [(0.0, 9.0)]
        clear = [offset for offset in within if not any(_overlap(boxes[offset], other) for other in taken)]
        best = (clear or within)[0]
        taken.append(boxes.get(best, (x, y, x, y)))
        found.append(best)
    return found


def _around() -> Iterator[tuple[float, float]]:
    """Offsets from the nearest ones outwards, the upper right first."""
    for radius in range(9, 90, 4):
        for turn in range(16):
            angle = math.pi / 4 + (turn + 1) // 2 * (-1) ** turn * math.pi / 8
            yield radius * math.cos(angle), radius * math.sin(angle)


def _contains(outer: Box, box: Box) -> bool:
    return outer[0] <= box[0] and outer[1] <= box[1] and box[2] <= outer[2] and box[3] <= outer[3]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _ranks(accuracies: Axes, times: Axes, results: Sequence[Result], names: Sequence[str], seconds: _Seconds) -> None:
    """A line for each row: its name, its accuracy with the interval, and how long it was trained."""
    best = [each for setting in COLOURS for each in front([other for other in results if other.setting == setting])]
    numbers = range(1, len(results) + 1)
    for axes in (accuracies, times):
        axes.set_ylim(len(results) + 0.7, 0.3)
        axes.set_yticks([])
        axes.hlines(numbers, 0, 1, transform=axes.get_yaxis_transform(), color=GRID, lw=0.5, zorder=0)
        axes.spines["left"].set_visible(False)
    accuracies.set(xlim=_bounds(results), xlabel="accuracy (%)")
    accuracies.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND_STEPS))
    times.set_xlabel("training of one model")
    times.tick_params(axis="x", labelsize=SMALL)
    for number, result, name in zip(numbers, results, names, strict=True):
        accuracies.errorbar(result.accuracy, number, xerr=result.ci, lw=0.9, capsize=1.5, zorder=3, **_look(result))
        times.plot(seconds.of(result), number, ls="", zorder=3, **_look(result))
        weight = "bold" if any(result is each for each in best) else "normal"
        look: dict[str, Any] = {"fontsize": SMALL, "va": "center", "fontweight": weight}
        beside = accuracies.get_yaxis_transform()
        accuracies.annotate(
            str(number), (0, number), xycoords=beside, textcoords="offset points", ha="right",
            xytext=(-72 * LETTER * max(map(len, names)) - 4, 0), **look,
        )  # fmt: skip
        accuracies.annotate(
            name, (0, number), xycoords=beside, textcoords="offset points", ha="left",
            xytext=(-72 * LETTER * max(map(len, names)), 0), **look,
        )  # fmt: skip
