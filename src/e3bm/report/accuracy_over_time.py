"""What accuracy costs: every row of a comparison over the seconds that one model of it was trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from e3bm.errors import SettingsError
from e3bm.report.drawing import HEIGHT, INK, MUTED, PAPER, SERIES, Drawing, draw, legible
from e3bm.report.result_words import asked_words, data_words, method_words
from e3bm.report.training_figures import ROUND_STEPS
from e3bm.runs.folder.files import write_bytes
from e3bm.runs.folder.run import duration
from e3bm.runs.result import Result

COLOURS = {"inductive": SERIES[0], "transductive": SERIES[1]}
TICKS = (1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 360000.0)  # seconds
UNTRAINED = "none"
LETTERS = 24  # of a row's name in the legend


def accuracy_over_time(results: Sequence[Result], name: str = "accuracy_over_time") -> Drawing:
    """Numbered points, the names below; what has nothing to train stands at the left."""
    seconds = [_seconds(result) for result in results]
    trained = [each for each in seconds if each > 0]
    left = min(trained, default=1.0) / 3

    def paint(axes: Axes) -> list[Line2D]:
        axes.set_xscale("log")
        handles = []
        for number, (result, own) in enumerate(zip(results, seconds, strict=True), 1):
            place, colour = own if own > 0 else left, COLOURS[result.setting]
            look: dict[str, Any] = {
                "color": colour,
                "mfc": PAPER if result.hyperprior == "none" else colour,
                "marker": "o",
                "ms": 5,
            }
            axes.errorbar(place, result.accuracy, result.ci, lw=0.8, capsize=1.5, zorder=3, **look)
            where = (place, result.accuracy)
            axes.annotate(str(number), where, xytext=(4, 2), textcoords="offset points", fontsize=6.5, color=INK)
            label = legible(f"{number} {method_words(result)}", LETTERS)
            handles.append(Line2D([], [], ls="", label=label, **look))
        within = [tick for tick in TICKS if 3 * left < tick < 3 * max(trained, default=left)]
        axes.set_xticks([left, *within], [UNTRAINED, *(duration(tick).replace(".0", "") for tick in within)])
        axes.minorticks_off()
        axes.axvline(left * 1.6, color=MUTED, lw=0.7, ls=":")
        axes.set(xlabel="training of one model", ylabel="accuracy (%)")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=ROUND_STEPS))
        return handles

    first = results[0]
    caption = (
        f"Accuracy on {data_words(first)}, {asked_words(first)}, with its 95 % interval, over the time that one model "
        f"was trained, without the pre-training of its backbone ({UNTRAINED}: nothing is trained). "
        "Blue: inductive, orange: transductive; filled: with E3BM. Numbers are rows of the table, best first."
    )
    return draw(name, caption, paint, height=HEIGHT + 1.2)


def write_figure(results: Sequence[Result], path: Path) -> None:
    """Draw a comparison into a .png or .svg file."""
    if path.suffix not in (".png", ".svg"):
        raise SettingsError(f"A figure is a .png or .svg file, found '{path.name}'.")
    drawing = accuracy_over_time(results, path.stem)
    write_bytes(path, drawing.png if path.suffix == ".png" else drawing.svg.encode())


def _seconds(result: Result) -> float:
    return result.train_seconds / len(result.seeds or (0,))
