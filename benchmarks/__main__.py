"""python -m benchmarks [--quick] [--out results/bench] [--only heads]: measure every row, print and write the table."""

import argparse
import importlib
import json
import pkgutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

import benchmarks
from benchmarks.rows import Row

HEAD = """Each ratio is CPU time of the reference over ours, per task, inside one run; medians of interleaved repeats.
Only ratios count: times move from day to day and from machine to machine.

"""


def modules() -> list[str]:
    """The modules of this package that measure something: those with a function ``rows(quick)``."""
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__")
    return [name for name in names if callable(getattr(importlib.import_module(f"benchmarks.{name}"), "rows", None))]


def table(rows: Iterable[Row]) -> str:
    """The rows as markdown."""
    lines = [
        "| what | ratio | target | met | spread | reference, ms | ours, ms | threads |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.ratio:.2f} | {row.target:g} | {'yes' if row.met else 'no'} | {row.spread:.1%} "
        f"| {row.reference_ms:.3g} | {row.ours_ms:.3g} | {row.threads} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def write(rows: Sequence[Row], folder: Path) -> None:
    """bench.json and bench.md."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([row.as_json() for row in rows], indent=1)
    (folder / "bench.json").write_text(text + "\n", encoding="utf-8")
    (folder / "bench.md").write_text(HEAD + table(rows), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and fewer repeats")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder for bench.json and bench.md")
    parser.add_argument("--only", nargs="*", choices=modules(), help="measure these modules only")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    rows: list[Row] = []
    for name in chosen.only or modules():
        rows += importlib.import_module(f"benchmarks.{name}").rows(chosen.quick)
    write(rows, chosen.out)
    print(table(rows), end="")


if __name__ == "__main__":
    main()
