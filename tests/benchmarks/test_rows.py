"""What `make bench` writes."""

import json

import pytest
from benchmarks.__main__ import main, modules, write
from benchmarks.chart import factor
from benchmarks.rows import Row, Table, rows_markdown
from benchmarks.timing import Comparison, compare, relative_spread, taking_turns

KEYS = {"name", "ratio", "target", "met", "spread", "threads"}
ABOUT = {
    "packages": {"torch": "2"}, "processor": "p", "cores": 2, "vector_instructions": "v", "memory_gigabytes": 1.0,
    "python": "3", "sgemm_gflops_one_thread": 1.0, "load_average_at_begin": [0.0], "commit": "c",
}  # fmt: skip


@pytest.fixture
def rows():
    return [
        Row.of("fast", Comparison(12.0, 0.1, 24.0, 2.0), 10),
        Row.of("slow", Comparison(9.0, 0.1, 18.0, 2.0), 10),
        Row.at_most("small", 30.0, 100.0, 0.5, "MB"),
        Row.at_most("large", 60.0, 100.0, 0.5, "MB"),
        Row.at_least("strong", 80.0, 100.0, 0.75, "GFLOP/s"),
    ]


def test_the_files_have_what_is_promised(tmp_path, rows):
    table = Table("Growth", "about", ("of", "to"), (("M", 3.25),))
    text = write(rows, [table], ABOUT, tmp_path / "bench")
    found = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert [row["met"] for row in found] == [True, False, True, False, True]
    assert [row["ratio"] for row in found] == [12.0, 9.0, 0.3, 0.6, 0.8]
    assert all(set(row) >= KEYS for row in found)
    assert rows_markdown(rows) in text == (tmp_path / "bench" / "bench.md").read_text()
    assert "| M | 3.25 |" in text
    assert json.loads((tmp_path / "bench" / "tables.json").read_text())[0]["lines"] == [["M", 3.25]]
    assert (tmp_path / "bench" / "bench.png").read_bytes()[1:4] == b"PNG"
    svg = (tmp_path / "bench" / "bench.svg").read_text()
    assert all(f">{row.name}<" in svg for row in rows)


def test_above_one_is_met(rows):
    assert [factor(row) >= 1 for row in rows] == [row.met for row in rows]


def test_modules_that_measure_are_found():
    assert {"heads", "maml", "sib", "overhead", "backbone", "pipeline", "workers", "growth", "startup"} <= set(
        modules()
    )
    assert {"throughput", "peers"} <= set(modules())
    assert not {"timing", "rows", "scaling", "heads_reference"} & set(modules())


def test_a_quick_run_of_one_module_writes_everything(tmp_path, capsys):
    main(["--quick", "--only", "startup", "--out", str(tmp_path)])
    assert "e3bm --help" in capsys.readouterr().out
    assert json.loads((tmp_path / "machine.json").read_text())["seconds"]["startup"] > 0
    (row,) = json.loads((tmp_path / "bench.json").read_text())
    assert row["sense"] == "<="


def test_a_comparison_calls_both_sides_in_turn():
    calls = []
    result = compare(lambda: calls.append("slow"), lambda: calls.append("fast"), repeats=3)
    assert calls == ["slow", "fast"] + ["slow", "fast", "fast", "fast"] * 3
    assert result.slow_ms >= 0
    calls.clear()
    times = taking_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b"] * 3
    assert {name: len(found) for name, found in times.items()} == {"a": 2, "b": 2}


def test_spread_is_half_the_quartile_distance():
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0], 3.0) == pytest.approx(1 / 3)
    assert relative_spread([2.0], 2.0) == 0.0
