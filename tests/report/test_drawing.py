import re
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from e3bm.report.drawing import INK, SERIES, draw, legible


def paint(axes: Axes) -> list[Line2D]:
    axes.set(xlabel="step $x", ylabel="<b>&")
    axes.scatter([1, 2], [2, 3], color=SERIES[1])
    return axes.plot([1, 2, 3], [1, 4, 2], color=SERIES[0], label=legible("_a $ <i>"))


def test_same_numbers_same_bytes():
    assert draw("one", "How to read it.", paint) == draw("one", "How to read it.", paint)


def test_no_style_leaks_in_or_out():
    before = dict(matplotlib.rcParams)
    drawing = draw("one", "", paint)
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context(
        {"lines.linewidth": 9, "axes.facecolor": "black", "svg.fonttype": "path", "font.size": 30}
    ):
        assert draw("one", "", paint) == drawing


def test_files_are_an_svg_without_a_date_and_a_png():
    drawing = draw("one", "", paint)
    root = ElementTree.fromstring(drawing.svg)
    assert root.tag.endswith("svg")
    assert "date" not in drawing.svg.lower()
    assert drawing.png.startswith(b"\x89PNG")
    assert INK in drawing.svg
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"step $x", "<b>&", " _a $ <i>"} <= set(texts)


def test_inside_a_page_it_brings_nothing_that_reaches_out_or_clashes():
    body = draw("one", "", paint).inline()
    root = ElementTree.fromstring(body)
    identifiers = [element.get("id") for element in root.iter() if element.get("id")]
    assert identifiers
    assert len(set(identifiers)) == len(identifiers)
    assert all(identifier.startswith("one-") for identifier in identifiers)
    used = re.findall(r'(?:href="|url\()#([^")]+)', body)
    assert used
    assert set(used) <= set(identifiers)
    assert not re.search(r"https?:|<style|<script|<!DOCTYPE|<\?xml|DejaVu", body)


def test_colours_follow_the_page():
    body = draw("one", "", paint).inline()
    assert "var(--ink)" in body
    assert "var(--series1)" in body
    assert not re.findall(r"(?:fill|stroke): (#\w+)", body)


@pytest.mark.parametrize(
    ("text", "label"),
    [("MTL+E3BM", "MTL+E3BM"), ("_hidden", " _hidden"), ("鳥 α\n\x00v", "? α??v"), ("", "unnamed"), ("x" * 50, None)],
)
def test_labels_can_be_written_and_fit(text: str, label: str | None):
    assert legible(text) == (label if label is not None else "x" * 21 + "…" + "x" * 12)
    draw("one", "", lambda axes: axes.plot([1], [1], label=legible(text)))
