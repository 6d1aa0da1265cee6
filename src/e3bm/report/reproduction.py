"""The tables that `e3bm reproduce` prints: the paper, the published code and ours side by side."""

import re
from collections.abc import Sequence
from typing import Any

from e3bm.report.result_rows import NONE, excludes_zero
from e3bm.report.run_data import Record, finite
from e3bm.report.table_format import Cell, Table

COLUMNS = (
    "Method", "Backbone", "Data", "Task", "Paper %", "Published code %", "Ours %", "Difference", "Our backbone",
    "Seeds", "Episodes", "Budget", "Run",
)  # fmt: skip
COST_COLUMNS = (
    "Method", "Backbone", "Paper, k parameters", "Ours, k parameters", "Paper, minutes", "Paper, +time %",
    "Ours, +time %", "Ours, s per 100 epochs", "Measured in",
)  # fmt: skip
TIMED_COLUMNS = (
    "System", "Backbone", "Parameters", "+param %", "Encode s", "Adapt s", "+time %", "s per 100 epochs",
    "+time % in training", "Memory MB", "+memory %", "Note",
)  # fmt: skip
STAR = "* the 95 % interval of the paired difference to the method alone excludes zero."
DAGGER = "† queries share batch statistics in BatchNorm: transductive in fact, whatever the row says."
BACKBONES_DIFFER = "Where our backbone is not the paper's, the two numbers are of different systems."
TIMES = "Our times are CPU time of one task on this machine: only their ratios mean something."


def reproduction_table(rows: Sequence[Record]) -> Table:
    """Accuracies; rows without a run of ours have a dash."""
    cells = tuple(_cells(row) for row in rows)
    notes = [
        (STAR, any(map(excludes_zero, rows))),
        (DAGGER, any(row.get("transductive_batchnorm") for row in rows)),
        (BACKBONES_DIFFER, any(row.get("our_backbone") for row in rows)),
    ]
    return Table(COLUMNS, cells, "", tuple(note for note, needed in notes if needed))


def cost_table(rows: Sequence[Record]) -> Table:
    """Table S3."""
    cells = tuple(
        (
            Cell(row["method"]),
            Cell(row["backbone"]),
            _number(f"{row['paper']:,}"),
            _number(f"{row['ours']:,}"),
            _number(_decimal(row["paper_minutes"], 1)),
            _number(_decimal(row["paper_time_percent"], 1)),
            _number(_decimal(row["time_percent"], 2)),
            _number(_decimal(row["seconds_per_100_epochs"], 3)),
            Cell(row["run"] or NONE),
        )
        for row in rows
    )
    return Table(COST_COLUMNS, cells, "", (TIMES,) if any(row["run"] for row in rows) else ())


def timed_table(rows: Sequence[Record]) -> Table:
    """What a preset costs beside its method alone."""
    cells = tuple(
        (
            Cell(row["system"]),
            Cell(row["backbone"]),
            _number(f"{row['parameters']:,}"),
            _number(f"{row['percent']:.3f}" if row["e3bm_parameters"] else NONE),
            _number(_decimal(row["encode_seconds"], 4)),
            _number(_decimal(row["adapt_seconds"], 4)),
            _number(_decimal(row["time_percent"], 2)),
            _number(_decimal(row["seconds_per_100_epochs"], 4)),
            _number(_decimal(row["train_time_percent"], 1)),
            _number(_decimal(row["memory_bytes"] and row["memory_bytes"] / 1e6, 2)),
            _number(_decimal(row["memory_percent"], 1)),
            Cell(row["note"]),
        )
        for row in rows
    )
    return Table(TIMED_COLUMNS, cells, "One task of the preset, CPU seconds of this process.", (TIMES,))


def _cells(row: Record) -> tuple[Cell, ...]:
    difference = NONE
    if finite(row["paired_difference"], row["paired_ci"]):
        difference = f"{row['paired_difference']:+.2f} ± {row['paired_ci']:.2f}" + " *" * excludes_zero(row)
    method = row["method"] + (f" ({row['paper_hyperprior']})" if "+" in row["method"] else "")
    episodes = NONE
    if row["episodes"]:
        episodes = f"{row['episodes']:,} x Q={row['queries']} ({row['episodes_hash'][:8]})"
    seeds = ", ".join(map(str, row["seeds"])) if row["seeds"] else NONE
    words = {"frozen": ", frozen", "scale_shift": ", scaled", "full_pretrained": ", pre-trained"}
    adapted = words.get(row["adapted"] or "", "")
    return (
        Cell(method + " †" * bool(row.get("transductive_batchnorm"))),
        Cell(row["backbone"]),
        Cell(row["dataset"]),
        Cell(f"{row['ways']}-way {row['shots']}-shot"),
        _number(_plus_minus(row["paper"], row.get("paper_ci"))),
        _number(_plus_minus(row["published_code"], row.get("published_code_ci"))),
        _number(_plus_minus(row["ours"], row["ci"], 2)),
        Cell(difference, strong=excludes_zero(row)),
        Cell(f"{row['our_backbone']}{adapted}" if row["our_backbone"] else NONE),
        Cell(seeds),
        Cell(episodes),
        Cell(row["budget"] or NONE),
        Cell(_common(row["run"] or NONE)),
    )


def _common(runs: str) -> str:
    """Runs that differ in their seed only, as one name."""
    together = {re.sub(r"-s\d+$", "-s*", run) for run in runs.split(", ")}
    return together.pop() if len(together) == 1 and ", " in runs else runs


def _plus_minus(value: Any, interval: Any, digits: int = 1) -> str:
    return _decimal(value, digits) + (f" ± {interval:.{digits}f}" if finite(value, interval) else "")


def _decimal(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if finite(value) else NONE


def _number(text: str) -> Cell:
    return Cell(text, number=True)
