"""The tables that `e3bm reproduce` prints: the paper, the published code and ours side by side."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from e3bm.paper.reproduce import CostRow
from e3bm.paper.side_by_side import Row
from e3bm.paper.timed_cost import TimedCost
from e3bm.report.result_words import NONE
from e3bm.report.table_format import Cell, Table
from e3bm.runs.folder.run import finite

COLUMNS = (
    "Method", "Backbone", "Data", "Task", "Paper %", "Published code %", "Ours %", "Difference", "Our backbone",
    "Seeds", "Episodes", "Budget", "Differences from the published recipe", "Run",
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
NOT_RUN = (
    "– under Ours: not run here, so there is no kept run. Presets that would run it (`e3bm train --preset NAME`; "
    "five trained apart: `e3bm reproduce S2 --row '5x MAML' --run-missing`; those named paper- are the published "
    "recipes, days on two cores):"
)
BUDGET = (
    "Budget: steps and time of one training, the mean over seeds, without validations; of runs that answer together "
    "the sum. The pre-training of a backbone is the budget of the nearest class mean on it, and of no other row."
)
TIMES = "Our times are CPU time of one task on this machine: only their ratios mean something."


def reproduction_table(rows: Sequence[Row]) -> Table:
    """Accuracies; rows without a run of ours have a dash."""
    results = [row.ours.result for row in rows if row.ours]
    notes = [
        (STAR, any(result.excludes_zero for result in results)),
        (DAGGER, any(result.transductive_batchnorm for result in results)),
        (BACKBONES_DIFFER, bool(results)),
        (BUDGET, bool(results)),
        (_missing_words(rows), any(row.ours is None for row in rows)),
    ]
    return Table(COLUMNS, tuple(map(cells_of, rows)), "", tuple(note for note, needed in notes if needed))


def _missing_words(rows: Sequence[Row]) -> str:
    """Why rows have a dash, and which presets would run them; those that differ in data and shots only are one."""
    found: dict[tuple[str, str | None], tuple[dict[str, None], dict[str, None]]] = {}
    for row in rows:
        if row.ours is None:
            general = row.preset and row.preset.replace(f"-{row.dataset}-{row.shots}shot", "-DATA-SHOTSshot")
            data, shots = found.setdefault((row.method, general), ({}, {}))
            data[row.dataset], shots[str(row.shots)] = None, None
    words = []
    for (method, preset), (data, shots) in found.items():
        name = preset and preset.replace("DATA", _one_of(data)).replace("SHOTS", _one_of(shots))
        words.append(f"{method}: {name}" if name else f"{method}: none")
    return f"{NOT_RUN} {'; '.join(words)}."


def _one_of(names: Collection[str]) -> str:
    return ",".join(names).join("{}" if len(names) > 1 else ("", ""))


def reproduction_text(rows: Sequence[Row], width: int | None) -> str:
    """The table for a terminal of so many columns; a narrow one does without what --json has as well."""
    table = reproduction_table(rows)
    text = table.text(width)
    if width is None or max(map(len, text.splitlines())) <= width:
        return text
    dropped = ["Run", "Episodes", "Seeds", "Our backbone", *["Data"] * (len({row.dataset for row in rows}) == 1)]
    dropped += ["Published code %"] * all(row.published_code is None for row in rows)
    table = replace(table, notes=(*table.notes, f"Left out to fit: {', '.join(dropped)} (--json has them)."))
    return table.without(*dropped).text(width)


def cost_table(rows: Sequence[CostRow]) -> Table:
    """Table S3."""
    cells = tuple(
        (
            Cell(row.method),
            Cell(row.backbone),
            _number(f"{row.paper:,}"),
            _number(f"{row.ours:,}"),
            _number(_decimal(row.paper_minutes, 1)),
            _number(_decimal(row.paper_time_percent, 1)),
            _number(_decimal(row.time_percent, 2)),
            _number(_decimal(row.seconds_per_100_epochs, 3)),
            Cell(row.run or NONE),
        )
        for row in rows
    )
    return Table(COST_COLUMNS, cells, "", (TIMES,) if any(row.run for row in rows) else ())


def timed_table(rows: Sequence[TimedCost]) -> Table:
    """What a preset costs beside its method alone."""
    cells = tuple(
        (
            Cell(row.system),
            Cell(row.backbone),
            _number(f"{row.parameters:,}"),
            _number(f"{row.percent:.3f}" if row.e3bm_parameters else NONE),
            _number(_decimal(row.encode_seconds, 4)),
            _number(_decimal(row.adapt_seconds, 4)),
            _number(_decimal(row.time_percent, 2)),
            _number(_decimal(row.seconds_per_100_epochs, 4)),
            _number(_decimal(row.train_time_percent, 1)),
            _number(_decimal(row.memory_bytes and row.memory_bytes / 1e6, 2)),
            _number(_decimal(row.memory_percent, 1)),
            Cell(row.note),
        )
        for row in rows
    )
    return Table(TIMED_COLUMNS, cells, "One task of the preset, CPU seconds of this process.", (TIMES,))


def cells_of(row: Row) -> tuple[Cell, ...]:
    """One row of a reproduction, in the order of its columns."""
    result = row.ours.result if row.ours else None
    difference = NONE
    if result and result.paired_difference is not None and result.paired_ci is not None:
        difference = f"{result.paired_difference:+.2f} ± {result.paired_ci:.2f}" + " *" * result.excludes_zero
    method = row.method + (f" ({row.paper_hyperprior})" if row.method.endswith("+E3BM") else "")
    words = {"frozen": ", frozen", "scale_shift": ", scaled", "full_pretrained": ", pre-trained"}
    return (
        Cell(method + " †" * bool(result and result.transductive_batchnorm)),
        Cell(row.backbone),
        Cell(row.dataset),
        Cell(f"{row.ways}-way {row.shots}-shot"),
        _number(_plus_minus(row.paper, row.paper_ci)),
        _number(_plus_minus(row.published_code, row.published_code_ci)),
        _number(_plus_minus(result and result.accuracy, result and result.ci, 2)),
        Cell(difference, strong=bool(result and result.excludes_zero)),
        Cell(f"{result.backbone}{words.get(row.ours.adapted, '')}" if result and row.ours else NONE),
        Cell(", ".join(map(str, row.ours.seeds)) if row.ours else NONE),
        Cell(f"{result.episodes:,} x Q={result.queries} ({result.episodes_hash[:8]})" if result else NONE),
        Cell(row.ours.budget if row.ours else NONE),
        Cell((row.ours.distance if row.ours else None) or NONE),
        Cell(_common(row.ours.runs) if row.ours else NONE),
    )


def _common(runs: Sequence[str]) -> str:
    """Runs that differ in their seed only, as one name."""
    together = {re.sub(r"-s\d+$", "-s*", run) for run in runs}
    return together.pop() if len(together) == 1 and len(runs) > 1 else ", ".join(runs)


def _plus_minus(value: Any, interval: Any, digits: int = 1) -> str:
    return _decimal(value, digits) + (f" ± {interval:.{digits}f}" if finite(value, interval) else "")


def _decimal(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if finite(value) else NONE


def _number(text: str) -> Cell:
    return Cell(text, number=True)
