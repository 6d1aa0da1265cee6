"""What a report reads of a run folder: whatever is there, and a sentence for each thing that is not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e3bm.errors import CheckpointError, E3BMError, SettingsError
from e3bm.runs.folder.files import read_json
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TrainSettings
from e3bm.settings import read_settings

Record = dict[str, Any]
RUN_FILES = ("config.json", "environment.json", "metrics.jsonl", "schedules.jsonl", "results.json")


@dataclass(frozen=True)
class RunData:
    """One run's files, read once; nothing in here has been trusted to be complete."""

    name: str
    kind: str
    title: str
    settings: Record = field(default_factory=dict)
    environment: Record = field(default_factory=dict)
    metrics: tuple[Record, ...] = ()
    schedules: tuple[Record, ...] = ()
    results: tuple[Record, ...] = ()
    test_openings: int = 0
    missing: tuple[str, ...] = ()

    def setting(self, path: str, default: Any = None) -> Any:
        """A setting by its dotted name, or the default where the file does not have it."""
        place: Any = self.settings
        for part in path.split("."):
            if not isinstance(place, dict) or part not in place:
                return default
            place = place[part]
        return default if place is None else place

    def curve(self, split: str, quantity: str) -> list[tuple[float, float]]:
        """Step and value of the logged lines of one split; lines without a finite value are passed over."""
        lines = (line for line in self.metrics if line.get("split") == split)
        return [(line["step"], line[quantity]) for line in lines if finite(line.get("step"), line.get(quantity))]

    @property
    def best(self) -> Record | None:
        """The validation whose checkpoint was kept."""
        lines = [line for line in self.metrics if line.get("split") == "val" and finite(line.get("accuracy"))]
        marked = [line for line in lines if line.get("best") is True]
        return marked[-1] if marked else max(lines, key=lambda line: float(line["accuracy"]), default=None)

    @property
    def family(self) -> str:
        """The base method, which a baseline and its E3BM version share."""
        return str(self.setting("method.name", self.title.split("+")[0])).lower()

    @property
    def plain(self) -> bool:
        """Whether this is a method alone: constant rate, only the last epoch votes."""
        return (self.setting("hyperprior.rate"), self.setting("hyperprior.weight")) == ("constant", "last")

    @property
    def progress(self) -> tuple[float | None, float | None]:
        """How far the run is and how far it should go: meta-steps, or whole epochs of pretraining."""
        if self.kind == "pretrain":  # epochs are logged from 0; a validation stands at the end of one
            epochs = [(line, line["epoch"]) for line in self.metrics if finite(line.get("epoch"))]
            done = [epoch + (line.get("split") == "val") for line, epoch in epochs]
        else:
            done = [line["step"] for line in self.metrics if finite(line.get("step"))]
        wanted = self.setting("epochs" if self.kind == "pretrain" else "optimiser.steps")
        return (max(done) if done else None), (wanted if finite(wanted) else None)

    @property
    def seconds(self) -> float | None:
        """Time of training so far: the mean of the steps that were timed times all steps, and all validations."""
        steps = [line["step"] for line in self.metrics if finite(line.get("step"))]
        timed = [seconds for _, seconds in self.curve("train", "seconds")]
        if not steps or not timed:
            return None
        validations = sum(seconds for _, seconds in self.curve("val", "seconds"))
        return float(max(steps) * sum(timed) / len(timed) + validations)


def read_run(path: Path) -> RunData:
    """Everything readable in a run folder; what is missing or damaged becomes a sentence, not an error."""
    folder, missing = RunFolder(path), []

    def of_file(name: str, empty: Any, expected: type) -> Any:
        if not (path / name).exists():
            missing.append(f"{name} is missing")
            return empty
        try:
            content = read_json(path / name) if name.endswith(".json") else _lines(folder, Path(name).stem)
        except (E3BMError, OSError, ValueError):
            content = None
        if not isinstance(content, expected) or (name.endswith(".jsonl") and not content):
            missing.append(f"{name} is empty or damaged")
            return empty
        return content

    config = of_file("config.json", {}, dict)
    environment = of_file("environment.json", {}, dict)
    metrics = of_file("metrics.jsonl", [], list)
    settings = config.get("settings") if isinstance(config.get("settings"), dict) else {}
    kind = "pretrain" if config.get("kind") == "pretrain" else "train"
    trains = kind == "train"
    return RunData(
        name=path.resolve().name,
        kind=kind,
        title=_title(kind, settings, path.resolve().name),
        settings=settings,
        environment=environment,
        metrics=_records(metrics),
        schedules=_records(of_file("schedules.jsonl", [], list)) if trains else (),
        results=_records(of_file("results.json", [], list)) if trains or (path / "results.json").exists() else (),
        test_openings=len(_lines(folder, "test_log")),
        missing=tuple(missing),
    )


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders that were named, or that lie inside the folders that were named."""
    if not paths:
        raise SettingsError("A report needs at least one run folder; none was given.")
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise CheckpointError(f"There is no run folder {path}; give the --run folder of a training.")
        if any((path / name).exists() for name in RUN_FILES[:3]):
            inside = [path]
        else:
            inside = sorted(config.parent for config in path.rglob("config.json"))
            inside = [run for run in inside if not any(other in run.parents for other in inside)]
        if not inside:
            raise CheckpointError(f"{path} holds no run: there is no config.json in it or in a folder inside it.")
        found += [run for run in inside if run.resolve() not in {known.resolve() for known in found}]
    return found


def finite(*values: Any) -> bool:
    """Whether all of these are numbers that can be drawn."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)


def _lines(folder: RunFolder, name: str) -> list[Record]:
    try:
        return list(folder.lines(name))
    except (OSError, ValueError):  # unreadable, or not text
        return []


def _records(lines: Sequence[Any]) -> tuple[Record, ...]:
    return tuple(line for line in lines if isinstance(line, dict))


def _title(kind: str, settings: Record, name: str) -> str:
    if kind == "pretrain":
        return "pretraining"
    try:
        return read_settings(TrainSettings, settings).title if settings else name
    except SettingsError:
        return name
