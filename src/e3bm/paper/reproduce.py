"""`e3bm reproduce`: the paper, the published code and our runs side by side; what is missing can be run."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from e3bm.errors import CheckpointError, SettingsError
from e3bm.paper.cost import cost
from e3bm.paper.presets import find_preset, presets
from e3bm.paper.run_missing import Effort, preset_name, run_missing, studied_arms
from e3bm.paper.side_by_side import (
    Row,
    feature_rows,
    figure_entries,
    figure_rows,
    is_finished,
    is_system,
    table_rows,
)
from e3bm.paper.tables import PAPER_DATASETS, PaperCost, PaperRow, paper_costs, paper_rows
from e3bm.paper.timed_cost import TimedCost, preset_cost
from e3bm.progress import Progress, Silent
from e3bm.report.page import write_report
from e3bm.runs.folder.environment import describe_environment
from e3bm.runs.folder.files import read_json, write_json
from e3bm.runs.kept.entries import Entry, baseline_entry, entries
from e3bm.runs.kept.pack import add_runs
from e3bm.runs.kept.store import open_results
from e3bm.runs.settings import TrainSettings

# Table S3: printed parameters and minutes beside our counts and measured ratios.


COSTS_FILE = "costs.json"
PRESETS = {
    "ResNet-25": "paper-mtl-resnet25-miniimagenet-1shot-lstm-inductive",
    "WRN-28-10": "paper-sib-wrn28_10-miniimagenet-1shot-lstm-transductive",
    "ResNet-12": "paper-mtl-resnet12-miniimagenet-1shot-lstm-inductive",
}
# What E3BM adds is counted for the parametrisation that comes nearest to the printed totals.
COUNTED = {
    ("MTL", "ResNet-25"): ("MTL", "resnet25"),
    ("MTL+E3BM", "ResNet-25"): ("MTL+E3BM (lstm-inductive)", "resnet25"),
    ("SIB", "WRN-28-10"): ("SIB", "wrn28_10_sib"),
    ("SIB+E3BM", "WRN-28-10"): ("SIB+E3BM (lstm-transductive)", "wrn28_10_sib"),
    ("ProtoNets", "ResNet-12"): ("ResNet-12", "resnet12"),
    ("MatchNets", "ResNet-12"): ("ResNet-12", "resnet12"),
    ("ProtoNets", "ResNet-25"): ("ResNet-25", "resnet25"),
    ("ProtoNets", "WRN-28-10"): ("WRN-28-10", "wrn28_10"),
}


@dataclass(frozen=True)
class CostRow:
    """A printed cost with ours beside it; ``paper`` and ``ours`` are parameters in thousands, truncated as printed."""

    method: str
    backbone: str
    paper: int
    ours: int
    parameters: int
    paper_minutes: float
    paper_time_percent: float | None
    time_percent: float | None = None
    seconds_per_100_epochs: float | None = None
    commit: str | None = None
    run: str | None = None
    """The file with the measured times."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the place in the paper under the names that other tables have for it."""
        none = {field.name: None for field in fields(Row)}
        unsaid = Row("S3", self.method, self.backbone, "miniimagenet", 5, 1, None).as_json()
        return none | unsaid | vars(self)


def cost_rows(results: Path, row: str | None, measure: bool, progress: Progress) -> list[CostRow]:
    """One row per printed system."""
    chosen = [each for each in paper_costs() if (row or "").lower() in each.method.lower()]
    if not chosen:
        known = dict.fromkeys(each.method for each in paper_costs())
        raise SettingsError(f"S3 has no such row; it has {', '.join(known)}.")
    if measure:
        for backbone in dict.fromkeys(each.backbone for each in chosen):
            _measure(results, PRESETS[backbone], progress)
    counts = {(found.system, found.backbone): found.parameters for found in reversed(cost())}
    return [_row(each, counts[COUNTED[each.method, each.backbone]], results) for each in chosen]


def _row(printed: PaperCost, parameters: int, results: Path) -> CostRow:
    preset = PRESETS[printed.backbone]
    measured = _measured(results).get(preset, {"rows": [], "environment": {}})
    timed = next((TimedCost(**found) for found in measured["rows"] if found["system"] == printed.method), None)
    alone = {each.method: each for each in paper_costs() if each.backbone == printed.backbone}.get(
        printed.method.removesuffix("+E3BM"), printed
    )
    return CostRow(
        method=printed.method,
        backbone=printed.backbone,
        paper=printed.parameters_k,
        ours=parameters // 1000,
        parameters=parameters,
        paper_minutes=printed.minutes,
        paper_time_percent=round(100 * (printed.minutes / alone.minutes - 1), 1) if alone != printed else None,
        time_percent=timed.time_percent if timed else None,
        seconds_per_100_epochs=timed.seconds_per_100_epochs if timed else None,
        commit=measured["environment"].get("commit"),
        run=f"{results / COSTS_FILE} {preset}" if timed else None,
    )


def _measured(results: Path) -> dict[str, Any]:
    path = results / COSTS_FILE
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged: it is not a table of costs. Restore it from a copy.")
    return found


def _measure(results: Path, name: str, progress: Progress) -> None:
    if name in _measured(results):
        return
    progress.say(f"Timing {name}: one task at a time, which takes minutes.")
    rows = [vars(row) for row in preset_cost(find_preset(name), repeats=3, training=False, progress=progress)]
    write_json(results / COSTS_FILE, _measured(results) | {name: {"environment": describe_environment(), "rows": rows}})


Target = Literal["T1", "T2", "S1", "S2", "S3", "F4"]


@dataclass(frozen=True)
class Request:
    """Which part of the paper, and what may be done for it."""

    target: Target
    dataset: str | None = None
    row: str | None = None
    shot: int | None = None
    results: Path = Path("results")
    keep: tuple[Path, ...] = ()
    """Measured run folders that are copied into results first."""
    effort: Effort | None = None
    """How to run what is missing; None: only show what is there."""


def reproduce(request: Request, progress: Progress | None = None) -> list[Row]:
    """One row per printed accuracy and system of ours, in the paper's order."""
    progress = progress or Silent()
    _check(request)
    if request.keep:
        add_runs(request.keep, request.results)
    wanted = wanted_rows(request)
    if request.effort is not None:
        _run_missing(request, wanted, request.effort, progress)
    found = kept_entries(request.results)
    if request.target == "F4":
        return figure_rows(wanted, found)
    rows = [made for row in wanted for made in table_rows(row, found) if made.paper is not None or made.ours]
    if request.target == "T1" and request.row is None:
        rows += feature_rows(request.dataset, request.shot, found)
    return rows


def reproduce_costs(request: Request, progress: Progress | None = None) -> list[CostRow]:
    """Table S3: one row per printed system."""
    _check(request)
    return cost_rows(request.results, request.row, request.effort is not None, progress or Silent())


def draw_figure(request: Request, out: Path) -> Path | None:
    """Figure 4 as a page: validation curves of all arms, and alpha and v over meta-training; None without runs."""
    found = kept_entries(request.results)
    arms = [entry for _, _, entry in figure_entries(wanted_rows(request), found)]
    runs = [run for entry in arms for run in entry.runs]
    results = [entry.together(baseline_entry(entry, found)) for entry in arms]
    return write_report(runs, out, title="Figure 4: ablations of MTL", results=results) if runs else None


def wanted_rows(request: Request) -> list[PaperRow]:
    """The rows that are asked for; Figure 4 is about MTL+E3BM as in Table 1.

    Table 1 has most systems of the field but few of them on FC100: there a row without a printed number counts too.
    """
    table, method = ("T1", "MTL+E3BM") if request.target == "F4" else (request.target, request.row)
    rows = paper_rows(
        table, dataset=request.dataset, shots=request.shot, method=method, unprinted=request.target == "T1"
    )
    if not rows:
        known = dict.fromkeys(row.method for row in paper_rows(table))
        raise SettingsError(f"{request.target} has no such row; it has {', '.join(known)}.")
    return rows


def kept_entries(results: Path) -> list[Entry]:
    """Everything in results that was tested on the test classes of the data that it was trained on, as in the paper."""
    return [
        entry
        for entry in entries(open_results(results).tabled())
        if entry.first.split == "test" and entry.first.trained_on == entry.first.dataset and not entry.first.uneven
    ]


def _run_missing(request: Request, wanted: Sequence[PaperRow], effort: Effort, progress: Progress) -> None:
    found = kept_entries(request.results)
    if request.target == "F4":
        done = {
            (place.dataset, place.shots, arm)
            for place, arm, entry in figure_entries(wanted, found)
            if is_finished(entry, effort.seeds)
        }
        arms = [(place, arm) for place in wanted for arm in studied_arms()]
        run_missing([], [each for each in arms if (each[0].dataset, each[0].shots, each[1]) not in done],
                    request.results, effort, progress)  # fmt: skip
        return
    # A row with E3BM is compared with its method alone, whether or not the table has that.
    alone = [replace(row, method=row.alone, hyperprior=None) for row in wanted if row.kind != "plain"]
    # Rows on different backbones may share a preset for two cores.
    rows = {preset_name(row, effort.scale): row for row in [*alone, *wanted]}
    missing = [
        row
        for name, row in rows.items()
        if (row.accuracy is not None or name in presets()) and not _is_complete(name, row, found, effort.seeds)
    ]
    run_missing(missing, [], request.results, effort, progress)


def _is_complete(preset: str, row: PaperRow, found: Sequence[Entry], seeds: int) -> bool:
    """Whether results has the row's system with the preset's backbone and head, with all seeds and all steps."""
    wanted = _build_of(find_preset(preset).train)
    return any(
        entry.runs[0].trained
        and is_system(entry, row)
        and is_finished(entry, seeds)
        and _build_of(entry.runs[0].trained) == wanted
        for entry in found
    )


def _build_of(settings: TrainSettings) -> tuple[object, ...]:
    backbone = settings.backbone
    return backbone.name, backbone.width, backbone.adapt, backbone.whitened, getattr(settings.method, "start", None)


def _check(request: Request) -> None:
    if request.target not in get_args(Target):
        raise SettingsError(f"There is no '{request.target}' to reproduce; there are {', '.join(get_args(Target))}.")
    if request.dataset is not None and request.dataset not in PAPER_DATASETS:
        raise SettingsError(f"The paper has no results on '{request.dataset}'; it has {', '.join(PAPER_DATASETS)}.")
    if request.effort is None and not request.keep and not request.results.exists():
        raise SettingsError(
            f"There is no folder {request.results}; name the folder of kept results with --results, "
            "or give a --budget to run what is missing."
        )
