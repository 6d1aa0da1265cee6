"""What results/ holds: runs with their rows, seeds taken together, and differences paired afresh from kept answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from e3bm.report.run_data import RunData, read_run
from e3bm.runs.evaluation.comparison import NOT_PAIRED, Tested, aggregate, baseline_group_of, group_of
from e3bm.runs.evaluation.ensemble import EnsembleSettings, beside, settings_beside
from e3bm.runs.evaluation.metrics import mean_and_interval, paired_difference
from e3bm.runs.folder.answers import read_answers
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import PretrainSettings, TrainSettings
from e3bm.settings import read_settings

Row = dict[str, Any]


@dataclass(frozen=True)
class KeptRun:
    """A run in results/, or still in runs/."""

    path: Path
    kind: str
    settings: TrainSettings | PretrainSettings | EnsembleSettings
    rows: tuple[Row, ...]

    @cached_property
    def trained(self) -> TrainSettings | None:
        """How it was meta-trained; an ensemble as its members were."""
        if isinstance(self.settings, EnsembleSettings):
            return settings_beside(RunFolder(beside(self.path, self.settings.members[0])))
        return self.settings if isinstance(self.settings, TrainSettings) else None

    @cached_property
    def group(self) -> str:
        """The same for runs that differ in their seed only."""
        if isinstance(self.settings, EnsembleSettings):
            assert self.trained is not None
            return f"{len(self.settings.members)}x {group_of(self.trained)}"
        return group_of(self.settings)

    @cached_property
    def baseline(self) -> str | None:
        """The group that this one is compared with."""
        if self.trained is None:
            return None
        found = baseline_group_of(self.trained)
        return found if found != self.group else None

    @cached_property
    def record(self) -> RunData:
        """Its logs."""
        return read_run(self.path)

    def accuracy(self, row: Row) -> Tensor | None:
        """Percent of right answers in every episode of one of its rows, where they were kept."""
        right = read_answers(self.path, row)
        if right is None:
            return None
        return torch.tensor(right, dtype=torch.double) * (100.0 / int(row["ways"] * row["queries"]))


@dataclass(frozen=True)
class Entry:
    """One system on one list of episodes: a run and its row for every seed."""

    runs: tuple[KeptRun, ...]
    rows: tuple[Row, ...]

    @property
    def protocol(self) -> tuple[Any, ...]:
        """Entries with the same protocol may be compared."""
        return protocol_of(self.rows[0])

    @property
    def seeds(self) -> list[int]:
        return [row["seed"] for row in self.rows]

    def accuracies(self, seeds: Iterable[int]) -> Tensor | None:
        """Accuracy of every episode, averaged over these seeds."""
        wanted = set(seeds)
        found = [run.accuracy(row) for run, row in zip(self.runs, self.rows, strict=True) if row["seed"] in wanted]
        kept = [each for each in found if each is not None]
        return torch.stack(kept).mean(0) if kept and len(kept) == len(found) else None

    def numbers(self) -> Row:
        """Accuracy and interval over episodes; over several seeds the mean of each episode comes first."""
        first = self.rows[0]
        if len(self.rows) == 1:
            return {"accuracy": first["accuracy"], "ci": first["ci"], "seeds": self.seeds, "seed_std": None}
        each, values = [row["accuracy"] for row in self.rows], self.accuracies(self.seeds)
        # Without the single answers the seeds' own intervals stand, which are wider than that of their mean.
        own = fmean(each), fmean(row["ci"] for row in self.rows)
        mean, interval = own if values is None else mean_and_interval(values)
        return {"accuracy": mean, "ci": interval, "seeds": self.seeds, "seed_std": stdev(each)}

    def paired(self, baseline: "Entry | None") -> Row:
        """The difference to a baseline on the same episodes, over the seeds that both have, or else over all."""
        if baseline is None or baseline.protocol != self.protocol:
            return dict(NOT_PAIRED)
        shared = set(self.seeds) & set(baseline.seeds)
        ours, theirs = self.accuracies(shared or self.seeds), baseline.accuracies(shared or baseline.seeds)
        if ours is None or theirs is None:
            return dict(NOT_PAIRED)
        difference, interval = paired_difference(ours, theirs)
        name = ", ".join(run.path.name for run in baseline.runs)
        return {"paired_with": name, "paired_difference": difference, "paired_ci": interval}

    def summary(self, baseline: "Entry | None") -> Row:
        """All seeds as one result row, for reports."""
        members = [
            Tested(row, answers, run.group, run.group)
            for run, row in zip(self.runs, self.rows, strict=True)
            if (answers := run.accuracy(row)) is not None
        ]
        together = aggregate(members)[0] if len(members) > 1 else self.rows[0]
        return together | self.paired(baseline)


def protocol_of(row: Row) -> tuple[Any, ...]:
    """Data, split and list of episodes."""
    return row["dataset"], row["split"], row["episodes_hash"]


def collect_runs(folder: Path, *, apart: Sequence[str] = ()) -> list[KeptRun]:
    """Every tested run below a folder, in the order of paths; subfolders named in ``apart`` are passed over."""
    found = []
    for config in sorted(folder.rglob("config.json")):
        run = RunFolder(config.parent)
        rows = run.results()
        if not rows or set(config.parent.relative_to(folder).parts[:-1]) & set(apart):
            continue
        config_values = run.config()
        settings = _read(config_values["kind"], config_values["settings"])
        found.append(KeptRun(config.parent, config_values["kind"], settings, tuple(rows)))
    return found


def _read(kind: str, values: dict[str, Any]) -> TrainSettings | PretrainSettings | EnsembleSettings:
    if kind == "pretrain":
        return read_settings(PretrainSettings, values)
    return read_settings(EnsembleSettings, values) if kind == "ensemble" else read_settings(TrainSettings, values)


def entries(runs: Sequence[KeptRun]) -> list[Entry]:
    """Rows of runs that differ in their seed only, on the same episodes, taken together."""
    groups: dict[tuple[Any, ...], dict[int, tuple[KeptRun, Row]]] = {}
    for run in runs:
        for row in run.rows:
            # A seed counts once: of two folders with the same run the later one stands.
            groups.setdefault((run.group, *protocol_of(row)), {})[row["seed"]] = (run, row)
    return [
        Entry(tuple(run for run, _ in members.values()), tuple(row for _, row in members.values()))
        for members in groups.values()
    ]


def baseline_of(entry: Entry, among: Sequence[Entry]) -> Entry | None:
    """The method alone on the same episodes, or the single model of an ensemble."""
    wanted = entry.runs[0].baseline
    return next((other for other in among if other.runs[0].group == wanted and other.protocol == entry.protocol), None)
