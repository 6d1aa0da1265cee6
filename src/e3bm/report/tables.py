"""The tables of a report and of the command line: results, their protocol and cost, and the runs behind them."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from e3bm.report.result_rows import (
    NONE,
    baseline_of,
    batch_statistics,
    data_words,
    episodes_words,
    excludes_zero,
    partner_words,
    seed_words,
    task_words,
)
from e3bm.report.run_data import Record, RunData, finite
from e3bm.report.table_format import Cell, Table

__all__ = ["Cell", "Table", "details_table", "results_table", "runs_table"]

DETAILS = (
    "Method", "Run", "Backbone", "M", "Order", "Seed", "Commit",
    "Parameters", "+param", "Test time", "+time", "Train time", "+train",
)  # fmt: skip
RUNS = (
    "Run", "Method", "Data", "Backbone", "M", "Order", "Steps", "Validation %", "Seed", "Commit", "Time"
)  # fmt: skip
STAR = "* the 95 % interval of the paired difference excludes zero."
DAGGER = "† queries share batch statistics in BatchNorm: transductive in fact, whatever the setting says."
UNLABELLED = "A result that is 'not stated' lacks the label that makes it comparable; test that run again."
OTHER_EPISODES = "Rows with another hash answered other episodes and are not comparable one by one."
TIMES = "+param, +time and +train are against the method alone; times are measured once and not exact."


def results_table(rows: Sequence[Record]) -> Table:
    """Accuracy with its interval, calibration and paired difference; what all rows share is said once, above."""
    shared: dict[str, Callable[[Record], str]] = {
        "Data": data_words,
        "Task": lambda row: task_words(row.get("ways"), row.get("shots"), row.get("queries")),
        "Episodes": episodes_words,
    }
    spoken = [name for name, words in shared.items() if len({words(row) for row in rows}) == 1]
    caption = ", ".join(shared[name](rows[0]) for name in spoken)
    columns: dict[str, Callable[[Record], Cell]] = {"Method": lambda row: Cell(str(row.get("method", NONE)))}
    columns |= {name: _words(words) for name, words in shared.items() if name not in spoken}
    columns |= {
        "Accuracy %": lambda row: _number(_plus_minus(row.get("accuracy"), row.get("ci"))),
        "Difference %": lambda row: _difference(row, rows),
        "NLL": lambda row: _number(_decimal(row.get("nll"), 3)),
        "ECE %": lambda row: _number(_decimal(row.get("ece"), 2)),
        "Setting": _setting,
        "BatchNorm": _batchnorm,
        "Hyperprior": lambda row: Cell(str(row.get("hyperprior") or NONE)),
    }
    if len({seed_words(row) for row in rows}) > 1 or any(row.get("seeds") for row in rows):
        columns["Seed"] = _words(seed_words)
    cells = tuple(tuple(cell(row) for cell in columns.values()) for row in rows)
    hashes = {tuple(str(row.get(key)) for key in ("dataset", "split", "ways", "shots")): set[str]() for row in rows}
    for row in rows:
        hashes[tuple(str(row.get(key)) for key in ("dataset", "split", "ways", "shots"))].add(episodes_words(row))
    notes = [
        (STAR, any(map(excludes_zero, rows))),
        (DAGGER, any(map(batch_statistics, rows))),
        (UNLABELLED, any("not stated" in cell.text for row in cells for cell in row)),
        (OTHER_EPISODES, any(len(found) > 1 for found in hashes.values())),
    ]
    return Table(tuple(columns), cells, caption, tuple(note for note, needed in notes if needed))


def details_table(rows: Sequence[Record], families: Mapping[str, str] = MappingProxyType({})) -> Table:
    """What else an honest number carries, and what E3BM costs over its baseline; ``families``: base method by run."""
    cells = []
    for row in rows:
        baseline = baseline_of(row, rows, families) or {}
        texts = [row.get(key) for key in ("method", "run", "backbone", "epochs", "order")]
        costs = [
            f"{row['parameters']:,}" if finite(row.get("parameters")) else NONE,
            _increase(row.get("parameters"), baseline.get("parameters"), 2),
            duration(row.get("seconds")),
            _increase(row.get("seconds"), baseline.get("seconds"), 1),
            duration(row.get("train_seconds")),
            _increase(row.get("train_seconds"), baseline.get("train_seconds"), 1),
        ]
        cells.append(
            (
                *(Cell(NONE if text is None else str(text)) for text in texts),
                Cell(seed_words(row)),
                Cell(_commit(row.get("commit"))),
                *map(_number, costs),
            )
        )
    compared = any(baseline_of(row, rows, families) for row in rows)
    changed = any(str(row.get("commit", "")).endswith("+") for row in rows)
    notes = ((TIMES,) if compared else ()) + (("A commit with a + had changes beside it.",) if changed else ())
    return Table(DETAILS, tuple(cells), "", notes)


def runs_table(runs: Sequence[RunData]) -> Table:
    """What was run, how far it came and what it took."""
    rows = []
    for run in runs:
        done, wanted = run.progress
        unfinished = done is None or (wanted is not None and done < wanted)
        unit = " epochs" if run.kind == "pretrain" else ""
        best = run.best or {}
        trains = run.kind == "train"
        task = task_words(run.setting("episode.ways"), run.setting("episode.shots"))
        steps = f"{_count(done)} of {_count(wanted)}" if unfinished else _count(done)
        rows.append(
            (
                Cell(run.name),
                Cell(run.title),
                Cell(f"{run.setting('data.dataset', NONE)}, {task}"),
                Cell(_backbone(run)),
                _number(str(run.setting("method.epochs", NONE)) if trains else NONE),
                Cell(str(run.setting("method.order", NONE)) if trains else NONE),
                Cell(f"{steps}{unit}" + (" (unfinished)" * unfinished), flag=unfinished),
                _number(_plus_minus(best.get("accuracy"), best.get("ci"))),
                _number(str(run.setting("seed", NONE))),
                Cell(_commit(run.environment.get("commit"))),
                _number(duration(run.seconds)),  # an estimate: not every step is logged
            )
        )
    return Table(RUNS, tuple(rows))


def duration(seconds: Any) -> str:
    """Seconds in the words of a clock."""
    if not finite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 60 else f"{hours:.1f} h"


def _setting(row: Record) -> Cell:
    stated = row.get("setting")
    flag = stated != "transductive" and (batch_statistics(row) or not stated)
    return Cell((str(stated) if stated else "not stated") + (" †" * batch_statistics(row)), flag=flag)


def _batchnorm(row: Record) -> Cell:
    stated = row.get("batchnorm")
    return Cell((str(stated) if stated else "not stated") + (" †" * batch_statistics(row)), flag=not stated)


def _difference(row: Record, rows: Sequence[Record]) -> Cell:
    difference, interval = row.get("paired_difference"), row.get("paired_ci")
    if not finite(difference):
        return Cell(NONE)
    clear = excludes_zero(row)
    words = f"{difference:+.2f}" + (f" ± {interval:.2f}" if finite(interval) else "") + (" *" * clear)
    return Cell(words + f" vs {partner_words(row, rows)}", strong=clear)


def _backbone(run: RunData) -> str:
    name, width = run.setting("backbone.name"), run.setting("backbone.width", 1)
    if name is None:
        return NONE
    return (
        f"{name}" + (f" x{width:g}" if finite(width) and width != 1 else "") + f", {run.setting('backbone.adapt', '?')}"
    )


def _commit(name: Any) -> str:
    """Short enough for a table; the page's foot has all of it."""
    return re.sub(r"^([0-9a-f]{8})[0-9a-f]+(\+?)$", r"\1\2", str(name or NONE))


def _words(words: Callable[[Record], str]) -> Callable[[Record], Cell]:
    return lambda row: Cell(words(row))


def _number(text: str) -> Cell:
    return Cell(text, number=True)


def _decimal(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if finite(value) else NONE


def _plus_minus(value: Any, interval: Any) -> str:
    return _decimal(value, 2) + (f" ± {interval:.2f}" if finite(value, interval) else "")


def _increase(value: Any, base: Any, digits: int) -> str:
    return f"{100 * (value / base - 1):+.{digits}f} %" if finite(value, base) and base > 0 else NONE


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,g}" if value < 1e6 else f"{value:,.0f}"
