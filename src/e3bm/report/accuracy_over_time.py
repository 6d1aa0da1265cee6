"""What accuracy costs: the rows of a comparison over the seconds that one model of each was trained.

A panel for rows whose queries are answered together and one for rows that answer each query by itself, in which the
best row of every method has its name; the others are grey. A list below has the named rows with their whole names; the
table has all.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from e3bm.errors import SettingsError
from e3bm.report.drawing import GRID, INK, MUTED, PAPER, SERIES, Drawing, draw_figure, legible
from e3bm.report.result_words import asked_words, data_words, method_words
from e3bm.report.training_figures import ROUND_STEPS
from e3bm.runs.folder.files import write_named
from e3bm.runs.folder.run import duration
from e3bm.runs.result import Result

COLOURS = {"transductive": SERIES[1], "inductive": SERIES[0]}
TITLES = {"transductive": "transductive: queries are used together", "inductive": "inductive: every query by itself"}
BATCH = " (†: in batch statistics)"
TICKS = (1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 360000.0)  # seconds
UNTRAINED = "none"
# Inches of the page, of a panel, of a row of the list, and of what is around them.
WIDTH, PANEL, ROW, LEFT, RIGHT, TOP, BETWEEN, LEGEND = 8.6, 3.1, 0.185, 0.6, 0.15, 0.3, 0.5, 0.75
DOTS = 110  # an inch: 950 pixels, shown as they are
SMALL = 8.0  # points of names
POINT, GREY = 4.0, 2.0  # points around a marker that names keep clear of


def accuracy_over_time(results: Sequence[Result], name: str = "accuracy_over_time") -> Drawing:
    """Named points in two panels above a list of their names; what has nothing to train is at the left."""
    named = best_of_methods(results)
    groups = {setting: [row for row in results if _setting(row) == setting] for setting in COLOURS}
    groups = {setting: found for setting, found in groups.items() if found}
    seconds = _Seconds(results)
    listed = ROW * (len(named) + 1)
    height = TOP + (PANEL + BETWEEN) * len(groups) + LEGEND + listed + 0.1

    def compose(figure: Figure) -> None:
        def axes(top: float, tall: float, left: float = LEFT) -> Axes:
            place = (left / WIDTH, 1 - (top + tall) / height, (WIDTH - left - RIGHT) / WIDTH, tall / height)
            return figure.add_axes(place)

        for number, (setting, found) in enumerate(groups.items()):
            panel = axes(TOP + number * (PANEL + BETWEEN), PANEL)
            seconds.paint(panel)
            daggers = any(row.transductive_batchnorm for row in found)
            panel.set_title(TITLES[setting] + BATCH * daggers, loc="left", color=COLOURS[setting])
            panel.set(ylim=_bounds(found), ylabel="accuracy (%)")
            panel.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=ROUND_STEPS))
            _scatter(panel, found, named, seconds)
        panel.set_xlabel("training of one model")
        top = TOP + (PANEL + BETWEEN) * len(groups)
        handles = _legend()
        place = (0.5, 1 - (top + 0.42) / height)
        figure.legend(handles=handles, loc="center", bbox_to_anchor=place, ncols=3, handlelength=2.2, columnspacing=1.4)
        _list(axes(top + LEGEND, listed, 0.15), named)

    first = results[0]
    caption = (
        f"Accuracy on {data_words(first)}, {asked_words(first)}, over the time that one model was trained, without the "
        f"pre-training of its backbone ({UNTRAINED}: nothing is trained). The best row of every method has its name "
        "and its 95 % interval; filled: with E3BM. The dashed line is the best accuracy that its panel has with as "
        "little training. †: queries share batch statistics, so rows are transductive in fact."
    )
    return draw_figure(name, caption, compose, width=WIDTH, height=height, dpi=DOTS)


def write_figure(results: Sequence[Result], path: Path) -> None:
    """Draw a comparison into a .png or .svg file."""
    if path.suffix not in (".png", ".svg"):
        raise SettingsError(f"A figure is a .png or .svg file, found '{path.name}'.")
    drawing = accuracy_over_time(results, path.stem)
    write_named(path, drawing.png if path.suffix == ".png" else drawing.svg.encode())


def best_of_methods(results: Sequence[Result]) -> list[Result]:
    """Of every method the row with the highest accuracy, with E3BM or without, whatever its options; best first."""
    best: dict[str, Result] = {}
    for result in sorted(results, key=lambda each: -each.accuracy):
        best.setdefault(re.sub(r" ?\+ ?E3BM$| \(.*?\)", "", result.method), result)
    return list(best.values())


class _Seconds:
    """The axis of training times: logarithmic, with a place at its left for what has nothing to train."""

    def __init__(self, results: Sequence[Result]) -> None:
        trained = [own for own in (result.train_seconds for result in results) if own > 0]
        self.left, self.longest = min(trained, default=1.0) / 3, max(trained, default=1.0)

    def of(self, result: Result) -> float:
        return result.train_seconds or self.left

    @property
    def ends(self) -> tuple[float, float]:
        return self.left / 2.5, self.longest * 2.5

    def paint(self, axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_xlim(*self.ends)
        within = [tick for tick in TICKS if 3 * self.left < tick < 2.5 * self.longest]
        axes.set_xticks([self.left, *within], [UNTRAINED, *(duration(tick).replace(".0", "") for tick in within)])
        axes.minorticks_off()
        axes.axvline(self.left * 1.9, color=MUTED, lw=0.7, ls=":")


def front(results: Sequence[Result]) -> list[Result]:
    """Those that no other beats in as little time, the quickest first."""
    best: list[Result] = []
    for result in sorted(results, key=lambda each: (each.train_seconds, -each.accuracy)):
        if not best or result.accuracy > best[-1].accuracy:
            best.append(result)
    return best


def _bounds(results: Sequence[Result]) -> tuple[float, float]:
    ends = [result.accuracy + sign * result.ci for result in results for sign in (-1, 1)]
    space = 0.07 * (max(ends) - min(ends)) + 0.1
    return min(ends) - space, max(ends) + space


def _setting(result: Result) -> str:
    """In fact: queries that share batch statistics are used together, whatever the setting says."""
    return "transductive" if result.answered_together else "inductive"


def _named(result: Result, words: str) -> str:
    return words + " †" * result.transductive_batchnorm


def _look(result: Result) -> dict[str, Any]:
    colour = COLOURS[_setting(result)]
    return {"color": colour, "mfc": PAPER if result.hyperprior == "none" else colour, "marker": "o", "ms": 5.5}


def _legend() -> list[Line2D]:
    """What markers and lines mean."""
    point: dict[str, Any] = {"ls": "", "marker": "o", "color": MUTED, "ms": 5.5}
    return [
        Line2D([], [], **point, label="best row of a method, with E3BM"),
        Line2D([], [], **point, mfc=PAPER, label="best row of a method, without"),
        Line2D([], [], ls="", marker="o", color=GRID, mec=MUTED, mew=0.4, ms=3, label="other rows of the table"),
        Line2D([], [], ls="--", color=MUTED, lw=1.0, label="best with as little training"),
        Line2D([], [], ls=":", color=MUTED, lw=0.9, label="left of it: nothing is trained"),
    ]


def _scatter(axes: Axes, rows: Sequence[Result], named: Sequence[Result], seconds: _Seconds) -> None:
    """Points, the line of what nothing beats with as little training, and a name beside the best of each method."""
    best = front(rows)
    line = [(seconds.of(each), each.accuracy) for each in best] + [(seconds.ends[1], best[-1].accuracy)]
    axes.plot(*zip(*line, strict=True), "--", color=MUTED, lw=1.0, drawstyle="steps-post")
    chosen = [row for row in rows if any(row is each for each in named)]
    others = [row for row in rows if not any(row is each for each in named)]
    axes.plot(
        [seconds.of(row) for row in others], [row.accuracy for row in others],
        ls="", marker="o", color=GRID, mec=MUTED, mew=0.4, ms=3, zorder=2,
    )  # fmt: skip
    for row in chosen:
        axes.errorbar(seconds.of(row), row.accuracy, row.ci, lw=0.9, capsize=1.5, zorder=3, **_look(row))
    scale = 72 / axes.figure.dpi
    frame = axes.get_window_extent()
    inside = (frame.x0 * scale, frame.y0 * scale, frame.x1 * scale, frame.y1 * scale)

    def place(x: float, y: float) -> Place:
        left, up = axes.transData.transform((x, y)) * scale
        return float(left), float(up)

    names = [_named(row, legible(row.method)) for row in chosen]
    widths = [float(TextPath((0, 0), name, size=SMALL).get_extents().width) for name in names]
    own, grey = ([place(seconds.of(row), row.accuracy) for row in part] for part in (chosen, others))
    steps = [(place(*one), place(*other)) for one, other in pairwise(line)]
    taken = [_box(*each, POINT) for each in own] + [_box(*each, GREY) for each in grey]
    taken += [(left, up - 1, right, up + 1) for (left, up), (right, _) in steps]
    offsets = clear_offsets(own, widths, inside, taken)
    for row, text, offset in zip(chosen, names, offsets, strict=True):
        axes.annotate(
            text, (seconds.of(row), row.accuracy), xytext=offset, textcoords="offset points",
            fontsize=SMALL, color=INK, ha="center", va="center",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.3, "alpha": 0.8},
            arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.5, "shrinkA": 0, "shrinkB": 3}, zorder=4,
        )  # fmt: skip


Box = tuple[float, float, float, float]
Place = tuple[float, float]


def clear_offsets(places: Sequence[Place], widths: Sequence[float], inside: Box, taken: Sequence[Box]) -> list[Place]:
    """Where to write a name of some width beside each point, in points from it: near, in the frame, clear of all."""
    taken, found = list(taken), []
    for (x, y), width in zip(places, widths, strict=True):
        wide, tall = width / 2 + 1, 0.62 * SMALL
        boxes = {
            (left, up): (x + left - wide, y + up - tall, x + left + wide, y + up + tall)
            for left, up in _around(wide, tall)
        }
        within = [offset for offset, box in boxes.items() if _contains(inside, box)] or [(0.0, 12.0)]
        clear = [offset for offset in within if not any(_overlap(boxes[offset], other) for other in taken)]
        best = (clear or within)[0]
        taken.append(boxes.get(best, (x, y, x, y)))
        found.append(best)
    return found


def _box(x: float, y: float, half: float) -> Box:
    return x - half, y - half, x + half, y + half


def _around(wide: float, tall: float) -> Iterator[Place]:
    """Offsets of a box of these halves from the nearest ones outwards, right and left first."""
    for gap in range(5, 130, 4):
        for turn in range(16):
            angle = (turn + 1) // 2 * (-1) ** turn * math.pi / 8
            yield (gap + wide) * math.cos(angle), (gap + tall) * math.sin(angle)


def _contains(outer: Box, box: Box) -> bool:
    return outer[0] <= box[0] and outer[1] <= box[1] and box[2] <= outer[2] and box[3] <= outer[3]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _list(axes: Axes, named: Sequence[Result]) -> None:
    """The named rows with their whole names, accuracies and times of training, best first."""
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(len(named) + 0.5, -0.5))
    cells = [("Best row of every method", "Backbone", "Accuracy %", "Training")]
    for row in named:
        trained = duration(row.train_seconds) if row.train_seconds else UNTRAINED
        cells.append(
            (
                _named(row, legible(method_words(row), 92)),
                legible(row.backbone),
                f"{row.accuracy:.2f} ± {row.ci:.2f}",
                trained,
            )
        )
    for number, (words, backbone, accuracy, trained) in enumerate(cells):
        look: dict[str, Any] = {"fontsize": SMALL, "va": "center", "fontweight": "normal" if number else "bold"}
        for x, text, side in ((0.02, words, "left"), (0.615, backbone, "left"), (0.895, accuracy, "right")):
            axes.text(x, number, text, ha=side, **look)
        axes.text(0.985, number, trained, ha="right", **look)
        if number:
            axes.plot(0.007, number, ls="", clip_on=False, **(_look(named[number - 1]) | {"ms": 4.5}))
            axes.axhline(number - 0.5, color=GRID, lw=0.5, zorder=0)
