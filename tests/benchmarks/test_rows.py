"""What `make bench` writes."""

import json

from benchmarks.__main__ import modules, table, write
from benchmarks.rows import Row
from benchmarks.timing import Comparison, compare

KEYS = {"name", "ratio", "target", "met", "spread", "threads"}


def test_the_file_has_the_promised_keys(tmp_path):
    rows = [Row.of("fast", Comparison(12.0, 0.1, 24.0, 2.0), 10), Row.of("slow", Comparison(9.0, 0.1, 18.0, 2.0), 10)]
    write(rows, tmp_path / "bench")
    found = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert [row["met"] for row in found] == [True, False]
    assert all(set(row) >= KEYS for row in found)
    assert table(rows) in (tmp_path / "bench" / "bench.md").read_text()


def test_modules_with_rows_are_found():
    assert "heads" in modules()
    assert "timing" not in modules()


def test_a_comparison_calls_both_sides_in_turn():
    calls = []
    result = compare(lambda: calls.append("slow"), lambda: calls.append("fast"), repeats=3)
    assert calls == ["slow", "fast"] + ["slow", "fast", "fast", "fast"] * 3
    assert result.slow_ms >= 0
