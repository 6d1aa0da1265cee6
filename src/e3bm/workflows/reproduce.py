"""`e3bm reproduce`: the paper, the published code and our runs side by side; what is missing can be run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from e3bm.errors import SettingsError
from e3bm.presets import find_preset
from e3bm.report.paper_tables import OUR_SYSTEMS, PAPER_DATASETS, PaperRow, paper_rows
from e3bm.settings import TrainSettings
from e3bm.tracking.progress import Progress, Silent
from e3bm.workflows.collect import Entry, Row, baseline_of, collect_runs, entries
from e3bm.workflows.export import export_run
from e3bm.workflows.report import report
from e3bm.workflows.run_missing import Effort, preset_name, run_missing, studied_arms
from e3bm.workflows.side_by_side import (
    feature_rows,
    figure_entries,
    figure_rows,
    is_finished,
    is_system,
    table_rows,
)

Target = Literal["T1", "T2", "S1", "S2", "S3", "F4"]
STUDY_FOLDER = "study"  # runs that tried settings out belong to no table


@dataclass(frozen=True)
class Request:
    """Which part of the paper, and what may be done for it."""

    target: Target
    dataset: str | None = None
    row: str | None = None
    shot: int | None = None
    results: Path = Path("results")
    keep: tuple[Path, ...] = ()
    """Tested run folders that are copied into results first."""
    effort: Effort | None = None
    """How to run what is missing; None: only show what is there."""


def reproduce(request: Request, progress: Progress | None = None) -> list[Row]:
    """One row per printed number and system of ours, in the paper's order."""
    progress = progress or Silent()
    _check(request)
    for run in request.keep:
        export_run(run, request.results)
    if request.target == "S3":
        from e3bm.workflows.reproduce_costs import cost_rows

        return cost_rows(request.results, request.row, request.effort is not None, progress)
    wanted = wanted_rows(request)
    if request.effort is not None:
        _run_missing(request, wanted, request.effort, progress)
    found = kept_entries(request.results)
    if request.target == "F4":
        return figure_rows(wanted, found)
    rows = [made for row in wanted for made in table_rows(row, found)]
    if request.target == "T1" and request.row is None:
        rows += feature_rows(request.dataset, request.shot, found)
    return rows


def draw_figure(request: Request, out: Path) -> Path | None:
    """Figure 4 as a page: validation curves of all arms, and alpha and v over meta-training; None without runs."""
    found = kept_entries(request.results)
    arms = [entry for _, _, entry in figure_entries(wanted_rows(request), found)]
    runs = [run.path for entry in arms for run in entry.runs]
    rows = [entry.summary(baseline_of(entry, found)) for entry in arms]
    return report(runs, out, title="Figure 4: ablations of MTL", rows=rows) if runs else None


def wanted_rows(request: Request) -> list[PaperRow]:
    """The printed numbers that are asked for, of systems that we have; Figure 4 is about MTL+E3BM as in Table 1."""
    table, method = ("T1", "MTL+E3BM") if request.target == "F4" else (request.target, request.row)
    rows = [
        row
        for row in paper_rows(table, dataset=request.dataset, shots=request.shot, method=method)
        if row.method in OUR_SYSTEMS
    ]
    if not rows:
        known = dict.fromkeys(row.method for row in paper_rows(table) if row.method in OUR_SYSTEMS)
        raise SettingsError(f"{request.target} has no such row; of systems that we have it has {', '.join(known)}.")
    return rows


def kept_entries(results: Path) -> list[Entry]:
    """Everything in results that was tested on the test classes of the data that it was trained on."""
    runs = collect_runs(results, apart=(STUDY_FOLDER,)) if results.exists() else []
    own = lambda row: row["split"] == "test" and row.get("trained_on", row["dataset"]) == row["dataset"]
    return [entry for entry in entries(runs) if own(entry.rows[0])]


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
    alone = [replace(row, method=row.base_method.upper(), hyperprior=None) for row in wanted if row.kind != "plain"]
    # Rows on different backbones may share a preset for two cores.
    rows = {preset_name(row, effort.scale): row for row in [*alone, *wanted]}
    missing = [row for name, row in rows.items() if not _is_complete(name, row, found, effort.seeds)]
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
    return backbone.name, backbone.width, backbone.adapt, backbone.levelled, settings.method.start


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
