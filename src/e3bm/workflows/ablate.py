"""`e3bm ablate`: a list of settings through the same train and test, and one report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e3bm.errors import SettingsError
from e3bm.evaluation.ablation import Study, study_arms
from e3bm.settings import TestSettings, TrainSettings
from e3bm.tracking.progress import Progress, Silent
from e3bm.workflows.export import export_run
from e3bm.workflows.report import report
from e3bm.workflows.test import run_test
from e3bm.workflows.train_many import Job, train_many

TITLES: dict[Study, str] = {"rate": "Where α comes from", "weight": "Where v comes from", "hyperprior": "Hyperpriors",
                            "tuning": "Rates",
                            "choices": "Choices"}  # fmt: skip


@dataclass(frozen=True)
class Ablation:
    """What came out, and the page that shows it."""

    rows: list[dict[str, Any]]
    page: Path


def ablate(
    study: Study,
    settings: TrainSettings,
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    test: TestSettings | None = None,
    seconds: float | None = None,
    workers: int = 1,
    keep: Path | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Train every arm with every seed, test all on the same episodes, report; re-running continues.

    All arms have the same steps, tasks and seeds. ``settings`` are those of the method with E3BM; runs lie in
    ``folder/<arm>-s<seed>``, so that studies of the same method in one folder share the method alone. What must last
    of them goes to ``keep``, a folder in results/study.
    """
    progress = progress or Silent()
    jobs = study_jobs(study, settings, folder, seeds)
    ready = train_many(jobs, seconds=seconds, workers=workers, progress=progress)
    if not ready:
        raise SettingsError(f"No arm in {folder} has been trained yet; give the study more time.")
    rows = run_test(ready, test or TestSettings(), progress)
    if keep is not None:
        for run in ready:
            export_run(run, keep.parents[1], place=f"{keep.parent.name}/{keep.name}", compact=True)
    title = f"{TITLES[study]} of {settings.method.name.upper()}"
    page = report(ready, folder / f"report-{study}", title=title, rows=summary_rows(rows))
    return Ablation(rows, page)


def summary_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per arm: seeds taken together where there are several, in the order of the arms."""
    means = {name: row for row in rows if row["seeds"] for name in row["run"].split(", ")}
    shown: list[dict[str, Any]] = []
    for row in rows:
        if not row["seeds"]:
            best = means.get(row["run"], row)
            shown += [best] if best not in shown else []
    return shown


def study_jobs(study: Study, settings: TrainSettings, folder: Path, seeds: Sequence[int]) -> list[Job]:
    """The trainings of a study; an arm with frozen values comes after the one that learns them, seed by seed."""
    if settings.backbone.adapt != "full" and settings.backbone.pretrained is None:
        raise SettingsError(
            f"The backbone of this study is {settings.backbone.adapt.replace('_', '-and-')} and must have been "
            "trained: set --backbone.pretrained to a run of `e3bm pretrain`."
        )
    jobs = []
    for seed in seeds:
        for arm in study_arms(study, settings.method.name):
            learned = folder / f"{arm.learned_by}-s{seed}" if arm.learned_by else None
            name = arm.title.format(method=settings.method.name.upper())
            changed = arm.settings(settings.but(seed=seed, name=name), learned)
            jobs.append(Job(folder / f"{arm.name}-s{seed}", changed, learned))
    return jobs
