"""The tables of a report and of the command line: results, their protocol and cost, and the runs behind them."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from e3bm.report.result_words import (
    NONE,
    asked_words,
    data_words,
    episodes_words,
    partner_words,
    seed_words,
    task_words,
)
from e3bm.report.table_format import Cell, Table
from e3bm.runs.folder.run import Run, duration, finite
from e3bm.runs.result import Result
from e3bm.runs.system import baseline_of

__all__ = ["METRIC_COLUMNS", "Cell", "Table", "details_table", "plus_minus", "results_table", "runs_table"]

# Metrics that are shown: the name in a result, and how many digits.
METRIC_COLUMNS: dict[str, tuple[str, int]] = {"NLL": ("nll", 3)}
# Shown where any row has them: what a factor on the scores, fitted on validation classes, makes of NLL and ECE.
CALIBRATED_COLUMNS: dict[str, tuple[str, int]] = {
    "calibrated NLL": ("calibrated_nll", 3),
    "calibrated ECE %": ("calibrated_ece", 2),
}
DETAILS = (
    "Method", "Run", "Backbone", "M", "Order", "Seed", "Commit",
    "Parameters", "+param", "Test time", "+time", "Train time", "+train",
)  # fmt: skip
RUNS = (
    "Run", "Method", "Data", "Backbone", "M", "Order", "Steps", "Validation %", "Seed", "Commit", "Time"
)  # fmt: skip
STAR = "* the 95 % interval of the paired difference excludes zero."
DAGGER = "† queries share batch statistics in BatchNorm: transductive in fact, whatever the setting says."
OTHER_EPISODES = "Rows with another hash answered other episodes and are not comparable one by one."
TIMES = (
    "+param, +time and +train are against the method alone; times are measured once and not exact, and of several seeds"
    " they are the mean."
)


def results_table(results: Sequence[Result]) -> Table:
    """Accuracy with its interval, calibration and paired difference; what all rows share is said once, above."""
    shared: dict[str, Callable[[Result], str]] = {
        "Data": data_words,
        "Task": asked_words,
        "Episodes": episodes_words,
    }
    spoken = [name for name, words in shared.items() if len({words(result) for result in results}) == 1]
    caption = ", ".join(shared[name](results[0]) for name in spoken)
    columns: dict[str, Callable[[Result], Cell]] = {"Method": lambda result: Cell(result.method)}
    columns |= {name: _words(words) for name, words in shared.items() if name not in spoken}
    columns |= {
        "Accuracy %": lambda result: _number(plus_minus(result.accuracy, result.ci)),
        "Difference %": lambda result: _difference(result, results),
        **{name: _metric(*shown) for name, shown in METRIC_COLUMNS.items()},
        "ECE %": lambda result: _number(_decimal(result.ece, 2)),
        **{name: _metric(*shown) for name, shown in CALIBRATED_COLUMNS.items() if _any_has(results, shown[0])},
        "Setting": _setting,
        "BatchNorm": lambda result: Cell(result.batchnorm + " †" * result.transductive_batchnorm),
        "Hyperprior": lambda result: Cell(result.hyperprior or NONE),
    }
    if len({seed_words(result) for result in results}) > 1 or any(result.seeds for result in results):
        columns["Seed"] = _words(seed_words)
    cells = tuple(tuple(cell(result) for cell in columns.values()) for result in results)
    lists: dict[tuple[Any, ...], set[str]] = {}
    for each in results:
        lists.setdefault((each.dataset, each.split, each.task), set()).add(each.episodes_hash)
    notes = [
        (STAR, any(result.excludes_zero for result in results)),
        (DAGGER, any(result.transductive_batchnorm for result in results)),
        (OTHER_EPISODES, any(len(found) > 1 for found in lists.values())),
    ]
    return Table(tuple(columns), cells, caption, tuple(note for note, needed in notes if needed))


def details_table(results: Sequence[Result]) -> Table:
    """What else an honest number carries, and what E3BM costs over its baseline."""
    cells = []
    for result in results:
        baseline = baseline_of(result, results)
        texts = (result.method, result.run, result.backbone, result.epochs or None, result.order)
        costs = [f"{result.parameters:,}", _increase(result, baseline, lambda each: each.parameters, 2)]
        costs += [duration(result.seconds), _increase(result, baseline, lambda each: each.seconds, 1)]
        costs += [duration(result.train_seconds), _increase(result, baseline, lambda each: each.train_seconds, 1)]
        cells.append(
            (
                *(Cell(NONE if text is None else str(text)) for text in texts),
                Cell(seed_words(result)),
                Cell(_commit(result.commit)),
                *map(_number, costs),
            )
        )
    compared = any(baseline_of(result, results) for result in results)
    changed = any(result.commit.endswith("+") for result in results)
    notes = ((TIMES,) if compared else ()) + (("A commit with a + had changes beside it.",) if changed else ())
    return Table(DETAILS, tuple(cells), "", notes)


def runs_table(runs: Sequence[Run]) -> Table:
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
                _number(plus_minus(best.get("accuracy"), best.get("ci"))),
                _number(str(run.setting("seed", NONE))),
                Cell(_commit(run.environment.get("commit"))),
                _number(duration(run.seconds)),  # an estimate: not every step is logged
            )
        )
    return Table(RUNS, tuple(rows))


def _setting(result: Result) -> Cell:
    flag = result.transductive_batchnorm and result.setting != "transductive"
    return Cell(result.setting + " †" * result.transductive_batchnorm, flag=flag)


def _any_has(results: Sequence[Result], metric: str) -> bool:
    return any(metric in result.metrics for result in results)


def _metric(name: str, digits: int) -> Callable[[Result], Cell]:
    return lambda result: _number(_decimal(result.metrics.get(name), digits))


def _difference(result: Result, results: Sequence[Result]) -> Cell:
    if result.paired_difference is None:
        return Cell(NONE)
    interval = "" if result.paired_ci is None else f" ± {result.paired_ci:.2f}"
    words = f"{result.paired_difference:+.2f}{interval}" + " *" * result.excludes_zero
    return Cell(f"{words} vs {partner_words(result, results)}", strong=result.excludes_zero)


def _backbone(run: Run) -> str:
    name, width = run.setting("backbone.name"), run.setting("backbone.width", 1)
    if name is None:
        return NONE
    return (
        f"{name}" + (f" x{width:g}" if finite(width) and width != 1 else "") + f", {run.setting('backbone.adapt', '?')}"
    )


def _commit(name: Any) -> str:
    """Short enough for a table; the page's foot has all of it."""
    return re.sub(r"^([0-9a-f]{8})[0-9a-f]+(\+?)$", r"\1\2", str(name or NONE))


def _words(words: Callable[[Result], str]) -> Callable[[Result], Cell]:
    return lambda result: Cell(words(result))


def _number(text: str) -> Cell:
    return Cell(text, number=True)


def _decimal(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if finite(value) else NONE


def plus_minus(value: Any, interval: Any) -> str:
    """A number and its interval, with two digits."""
    return _decimal(value, 2) + (f" ± {interval:.2f}" if finite(value, interval) else "")


def _increase(result: Result, baseline: Result | None, cost: Callable[[Result], float], digits: int) -> str:
    """Percent over the baseline."""
    if baseline is None or not cost(baseline) > 0:
        return NONE
    return f"{100 * (cost(result) / cost(baseline) - 1):+.{digits}f} %"


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,g}" if value < 1e6 else f"{value:,.0f}"
