"""From a matplotlib figure to files and to a piece of a page: one look, same bytes for the same numbers."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from matplotlib import font_manager, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D

INK, MUTED, GRID, PAPER = "#20252d", "#616975", "#dde1e7", "#fefefe"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b0559a", "#c48a00", "#3d9bd9", "#8c564b", "#6f7681")
RAMP = ("#440154", "#3b528b", "#21908d", "#4fb848", "#d9a400")  # early to late epochs
NAMES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"}
NAMES |= {colour: f"series{i + 1}" for i, colour in enumerate(SERIES)}
NAMES |= {colour: f"ramp{i + 1}" for i, colour in enumerate(RAMP)}

WIDTH, HEIGHT, LEGEND_ROW = 4.5, 2.8, 0.19  # inches: one column of a page, the width of a phone
LABEL_LENGTH = 34
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.use_mathtext": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # names from files may hold a dollar sign
    "text.usetex": False,
    "svg.fonttype": "none",
    "figure.facecolor": "white",
    "axes.facecolor": "none",
    "savefig.facecolor": "auto",
    "savefig.transparent": False,
}


@dataclass(frozen=True)
class Drawing:
    """A figure as files, with the sentence that says how to read it."""

    name: str
    caption: str
    svg: str
    png: bytes

    def inline(self) -> str:
        """The SVG for use inside a page: own identifiers, colours by the page's variables, its font."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
        body = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"', "", body)
        body = re.sub(r' width="[^"]*pt" height="[^"]*pt"', ' aria-hidden="true"', body, count=1)
        body = body.replace("xlink:href=", "href=").replace("font-family: 'DejaVu Sans'", "font-family: inherit")
        body = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{self.name}-", body)
        for colour, name in NAMES.items():
            body = re.sub(rf"(fill|stroke): {colour}", rf"\1: var(--{name})", body)
        return re.sub(r"\s*\n\s*", " ", body.replace("fill: #ffffff", "fill: none")).strip()


def draw(name: str, caption: str, paint: Callable[[Axes], Sequence[Line2D]], height: float = HEIGHT) -> Drawing:
    """Paint one pair of axes and keep it as SVG and PNG; what ``paint`` returns goes to the legend below."""

    def compose(figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot()
        handles = list(paint(axes))
        if handles:
            columns = _columns([str(handle.get_label()) for handle in handles])
            rows = -(-len(handles) // columns)
            figure.set_figheight(height + LEGEND_ROW * rows)
            figure.legend(
                handles=handles, loc="outside lower center", ncols=columns, handlelength=2.2, columnspacing=1.2
            )

    return draw_figure(name, caption, compose, width=WIDTH, height=height)


def draw_figure(
    name: str, caption: str, compose: Callable[[Figure], None], *, width: float, height: float, dpi: int = 200
) -> Drawing:
    """A figure of that many inches, composed of any number of axes, as SVG and PNG."""
    with style.context(["default", {**STYLE, "svg.hashsalt": name}]):  # whatever the user's own defaults are
        figure = Figure(figsize=(width, height), dpi=dpi)
        FigureCanvasAgg(figure)
        compose(figure)
        svg, png = io.BytesIO(), io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(svg, format="svg", metadata=nothing)
        figure.set_layout_engine("none")  # the layout that was found for the first file serves the second too
        figure.savefig(png, format="png", metadata={"Software": None})
    return Drawing(name, caption, svg.getvalue().decode(), png.getvalue())


def legible(text: str, length: int = LABEL_LENGTH) -> str:
    """A label that the figure's font can write, on one line, cut in the middle where it is too long."""
    known = _characters()
    text = "".join(character if ord(character) in known else "?" for character in text).strip()
    if len(text) > length:
        text = f"{text[: length * 2 // 3 - 1]}…{text[-length // 3 :]}"
    return f" {text}" if text.startswith("_") else text or "unnamed"  # matplotlib hides labels that open with _


def _columns(labels: list[str]) -> int:
    """As many as fit side by side, with rows of equal length."""
    inches = 0.5 + 0.068 * max(map(len, labels))  # line, gaps and letters of one entry
    rows = -(-len(labels) // max(1, int(WIDTH / inches)))
    return -(-len(labels) // rows)


@cache
def _characters() -> frozenset[int]:
    return frozenset(code for code in FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap() if code >= 32)
