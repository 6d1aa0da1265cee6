"""python -m benchmarks [--quick] [--out results/bench] [--only heads]: measure every row, print and write tables."""

import argparse
import importlib
import json
import pkgutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import benchmarks
from benchmarks import chart, machine
from benchmarks.rows import Row, Table, rows_markdown

HEAD = """# Benchmarks

Each ratio is of CPU time per task unless the row says otherwise, both sides taking turns inside one run; medians.
Spread is half the quartile distance of the repeats' ratios, as a share of the ratio. ≥: reference over this package. ≤:
this package over reference. Only ratios count: times move from day to day and from machine to machine.

"""
# First what needs a quiet machine least.
ORDER = (
    "heads",
    "sib",
    "maml",
    "workers",
    "overhead",
    "backbone",
    "pipeline",
    "growth",
    "startup",
    "photos",
    "throughput",
    "peers",
    "systems",
)


def modules() -> list[str]:
    """The modules of this package that measure something: those with ``rows(quick)`` or ``tables(quick)``."""
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__")
    found = [name for name in names if any(_measures(_module(name), kind) for kind in ("rows", "tables"))]
    return sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


def _measures(module: ModuleType, kind: str) -> bool:
    function = getattr(module, kind, None)
    return callable(function) and function.__module__ == module.__name__


def write(rows: Sequence[Row], tables: Sequence[Table], about: dict[str, Any], folder: Path) -> str:
    """bench.json, tables.json, machine.json, bench.md, bench.svg and bench.png; gives the text of bench.md."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "bench.json": [row.as_json() for row in rows],
        "tables.json": [table.as_json() for table in tables],
        "machine.json": about,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = HEAD + _machine_text(about) + rows_markdown(rows) + "".join("\n" + table.markdown() for table in tables)
    (folder / "bench.md").write_text(text, encoding="utf-8")
    if rows:
        chart.draw(rows, folder)
    return text


def _machine_text(about: dict[str, Any]) -> str:
    packages = about["packages"]
    return (
        f"{about['processor']}, {about['cores']} cores, {about['vector_instructions']}, "
        f"{about['memory_gigabytes']} GB; torch {packages['torch']}, Python {about['python']}; "
        f"{about['sgemm_gflops_one_thread']} GFLOP/s of sgemm on one thread; load average "
        f"{about['load_average_at_begin'][0]} at the start; {about.get('minutes', 0)} minutes; "
        f"commit {about['commit']}.\n\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rows, smaller sizes and fewer repeats: a check, no result"
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder for all files")
    parser.add_argument("--only", nargs="*", choices=modules(), help="measure these modules only")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    about, begun = machine.describe(), time.perf_counter()
    about["quick"] = chosen.quick
    rows: list[Row] = []
    tables: list[Table] = []
    for name in chosen.only or modules():
        module, started = _module(name), time.perf_counter()
        if _measures(module, "rows"):
            rows += module.rows(chosen.quick)
        if _measures(module, "tables"):
            tables += module.tables(chosen.quick)
        about.setdefault("seconds", {})[name] = round(time.perf_counter() - started, 3)
        about["minutes"] = round((time.perf_counter() - begun) / 60, 1)
        text = write(rows, tables, about, chosen.out)  # what is measured is kept, whatever happens to the rest
    print(text, end="")


if __name__ == "__main__":
    main()
