"""docs/performance.md shows the numbers that results/bench holds, and no others."""

import json
import re

import pytest
from benchmarks.page import MARK, PAGE, RESULTS, filled, parts


def test_the_page_shows_what_was_measured():
    text = PAGE.read_text()
    assert filled(text, parts()) == text
    assert {name for _, name, _ in MARK.findall(text)} >= {"targets", "machine"}


def test_tables_stand_between_marks_only():
    outside = MARK.sub("", PAGE.read_text())
    assert not re.search(r"^\|", outside, re.MULTILINE)


@pytest.mark.skipif(not (RESULTS / "bench.json").exists(), reason="results/bench holds no run yet")
def test_what_is_kept_has_the_promised_keys():
    rows = json.loads((RESULTS / "bench.json").read_text())
    assert all({"name", "ratio", "target", "met", "spread", "threads"} <= set(row) for row in rows)
    for row in rows:
        reached = row["ratio"] >= row["target"] if row["sense"] == ">=" else row["ratio"] <= row["target"]
        assert reached == row["met"] or abs(row["ratio"] - row["target"]) < 0.006  # ratios are rounded
    for name in ("tables.json", "machine.json", "bench.md", "bench.svg", "bench.png"):
        assert (RESULTS / name).exists()


def test_a_missing_table_is_said():
    page = "<!-- table: Nothing -->\nold\n<!-- end -->\n"
    assert filled(page, {}) == "<!-- table: Nothing -->\nNot measured in this run.\n<!-- end -->\n"
    assert filled(page, {"Nothing": "| a |\n"}) == "<!-- table: Nothing -->\n| a |\n<!-- end -->\n"
