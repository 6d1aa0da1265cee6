"""Systems in kept results: seeds taken together, and differences paired afresh from kept answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from e3bm.runs.evaluation.comparison import Measured, together
from e3bm.runs.evaluation.metrics import mean_and_interval
from e3bm.runs.folder.run import Run
from e3bm.runs.result import Protocol, Result
from e3bm.runs.system import baseline_of

ROUNDING = 1e-6  # of sums over thousands of episodes in double precision


@dataclass(frozen=True)
class Entry:
    """One system on one list of episodes: a run and its result for every seed."""

    runs: tuple[Run, ...]
    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """The result of the first seed, for the labels that all seeds share."""
        return self.results[0]

    @property
    def protocol(self) -> Protocol:
        """Entries with the same protocol may be compared."""
        return self.first.protocol

    @property
    def seeds(self) -> list[int]:
        return [int(result.seed) for result in self.results]

    @cached_property
    def tested(self) -> list[Measured]:
        """Results with the accuracy of every episode, where the answers were kept."""
        return [_tested(run, result) for run, result in zip(self.runs, self.results, strict=True)]

    def together(self, baseline: "Entry | None" = None) -> Result:
        """All seeds as one result, and its difference to a baseline on the same episodes."""
        if baseline is None or baseline.protocol != self.protocol:
            return together(self.tested)
        found = together(self.tested, baseline.tested)
        named = None if found.paired_with is None else ", ".join(run.path.name for run in baseline.runs)
        return found.but(paired_with=named)


def _tested(run: Run, result: Result) -> Measured:
    right = run.answers(result)
    if right is None:
        return Measured(result, None)
    return Measured(result, torch.tensor(right, dtype=torch.double) * (100.0 / (result.ways * result.queries)))


def recomputed(run: Run) -> list[str]:
    """Accuracies and intervals of a run that do not follow from its answers, and answers that were not kept."""
    faults = []
    for result in run.results:
        found = _tested(run, result).accuracy
        where = f"{run.path}, {' '.join(result.protocol)[:40]}"
        if found is None:
            faults.append(f"{where}: the answers were not kept")
            continue
        mean, interval = mean_and_interval(found)
        if max(abs(mean - result.accuracy), abs(interval - result.ci)) > ROUNDING:
            stated = f"{result.accuracy:.3f} +- {result.ci:.3f}"
            faults.append(f"{where}: the answers give {mean:.3f} +- {interval:.3f}, not {stated}")
    return faults


def entries(runs: Iterable[Run]) -> list[Entry]:
    """Results of runs that differ in their seed only, on the same episodes, taken together."""
    systems: dict[tuple[Any, ...], dict[int | str, tuple[Run, Result]]] = {}
    for run in runs:
        for result in run.results:
            # A seed counts once: of two folders with the same run the later one stands.
            systems.setdefault((result.system, result.protocol), {})[result.seed] = (run, result)
    return [
        Entry(tuple(run for run, _ in members.values()), tuple(result for _, result in members.values()))
        for members in systems.values()
    ]


def baseline_entry(entry: Entry, among: Sequence[Entry]) -> Entry | None:
    """The method alone on the same episodes, or the single model of an ensemble."""
    found = baseline_of(entry.first, [other.first for other in among])
    return next((other for other in among if other.first is found), None)
