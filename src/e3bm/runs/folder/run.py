"""Reading a run: its kind, settings, inputs, logs, results and answers, from a run folder or from kept results.

A model is not touched here, and nothing is written: reports, tables and tests read runs through this module alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import Field

from e3bm.errors import CheckpointError, E3BMError, SettingsError
from e3bm.runs.folder.answers import RESULTS_FILE, read_answers, result_rows
from e3bm.runs.folder.files import read_json
from e3bm.runs.folder.run_folder import RunFolder, noted_inputs
from e3bm.runs.folder.upgrade import VERSION, upgraded, upgraded_result
from e3bm.runs.result import Result, read_result
from e3bm.runs.settings import PretrainSettings, TrainSettings
from e3bm.runs.system import baseline_system_of, is_alone, system_of
from e3bm.settings import Settings, digest_of, read_settings

Kind = Literal["train", "pretrain", "ensemble", "prior"]
Record = dict[str, Any]
Answers = Callable[[Result], Sequence[int] | None]
BEGINNINGS = ("config.json", "environment.json", "metrics.jsonl")  # a folder with one of these was meant to be a run
LARGEST = 1e300  # beyond it numbers are damage: a whole number of JSON may have any length
DATA, BACKBONE = "data set", "pre-trained backbone"  # names of what a run reads


class EnsembleSettings(Settings):
    """Models that answer together, by the mean of their probabilities."""

    members: tuple[Path, ...] = Field(min_length=2)
    """Run folders of `e3bm train` that differ in their seed only."""


AnyRunSettings = TrainSettings | PretrainSettings | EnsembleSettings
SETTINGS: dict[str, type[AnyRunSettings]] = {
    "train": TrainSettings,
    "pretrain": PretrainSettings,
    "ensemble": EnsembleSettings,
}


class InputShape(NamedTuple):
    """What a run's images are when its model sees them."""

    channels: int
    image_size: int


@dataclass(frozen=True)
class Run:
    """One run, read once; ``missing`` has a sentence for each thing that a report would want and did not find."""

    path: Path
    """Its folder, or the place and name that it is kept under."""
    kind: Kind
    settings: AnyRunSettings | None = None
    """None for a prior, whose settings its own package reads, and where they cannot be read."""
    trained: TrainSettings | None = None
    """How it was meta-trained; an ensemble as its first member was."""
    written: Record = field(default_factory=dict)
    """Its settings as plain values, in the form of today."""
    settings_digest: str = ""
    """Of exactly the settings that the run wrote when it began."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Digests of what it read, by name; several where a rounded copy counts as the first."""
    input_shape: InputShape | None = None
    environment: Record = field(default_factory=dict)
    metrics: tuple[Record, ...] = ()
    schedules: tuple[Record, ...] = ()
    test_log: tuple[Record, ...] = ()
    results: tuple[Result, ...] = ()
    answers: Answers = lambda result: None
    """How many queries of each episode of a result were answered rightly; None where that was not kept."""
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @cached_property
    def title(self) -> str:
        """What tables call it."""
        if self.kind == "pretrain":
            return "pretraining"
        if isinstance(self.settings, EnsembleSettings) and self.trained:
            return f"{len(self.settings.members)}x {self.trained.title}"
        return self.settings.title if isinstance(self.settings, TrainSettings) else self.name

    @cached_property
    def system(self) -> str:
        """The same for runs that differ in their seed only."""
        if isinstance(self.settings, EnsembleSettings):
            return f"{len(self.settings.members)}x {system_of(self.trained)}" if self.trained else self.name
        return system_of(self.settings) if self.settings else self.name

    @cached_property
    def baseline(self) -> str:
        """The system that this one is compared with: the method alone, or the single model of an ensemble."""
        if isinstance(self.settings, EnsembleSettings):
            return system_of(self.trained) if self.trained else self.system
        return baseline_system_of(self.settings) if self.settings else self.system

    @property
    def alone(self) -> bool:
        """Whether this is a method alone: constant rate, only the last epoch votes."""
        return isinstance(self.settings, TrainSettings) and is_alone(self.settings)

    @property
    def family(self) -> str:
        """The base method, which a baseline and its E3BM version share."""
        return str(self.setting("method.name", self.title.split("+")[0])).lower()

    def setting(self, path: str, default: Any = None) -> Any:
        """A setting by its dotted name, or the default where the run does not have it."""
        place: Any = self.written
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
    def progress(self) -> tuple[float | None, float | None]:
        """How far the run is and how far it should go: meta-steps, or whole epochs of pretraining."""
        if self.kind == "pretrain":  # epochs are logged from 0; a validation stands at the end of one
            epochs = [(line, line["epoch"]) for line in self.metrics if finite(line.get("epoch"))]
            done = [epoch + (line.get("split") == "val") for line, epoch in epochs]
        else:
            done = [line["step"] for line in self.metrics if finite(line.get("step"))]
        if self.kind == "train" and done == [0]:  # nothing to train: validated once, as it is
            return 0, 0
        wanted = self.setting("epochs" if self.kind == "pretrain" else "optimiser.steps")
        return (max(done) if done else None), (wanted if finite(wanted) else None)

    @property
    def finished(self) -> bool:
        """Whether it has had all its steps or epochs; an ensemble has none of its own."""
        done, wanted = self.progress
        return self.kind == "ensemble" or (done is not None and wanted is not None and done >= wanted)

    @property
    def seconds(self) -> float | None:
        """Time of training so far: the mean of the steps that were timed times all steps, and all validations."""
        steps = [line["step"] for line in self.metrics if finite(line.get("step"))]
        timed = [seconds for _, seconds in self.curve("train", "seconds")]
        if not steps or not timed:
            return None
        validations = sum(seconds for _, seconds in self.curve("val", "seconds"))
        return float(max(steps) * sum(timed) / len(timed) + validations)


def read_run(path: Path) -> Run:
    """The run in a folder; one that is damaged or of a newer format is refused with the reason."""
    return _read(path, strict=True)


def read_what_is_there(path: Path) -> Run:
    """The same for reports: what is missing or damaged becomes a sentence of the run, not an error."""
    return _read(path, strict=False)


def assemble(
    path: Path,
    config: Mapping[str, Any],
    trained: Callable[[Path], TrainSettings | None],
    rows: Sequence[Record],
    *,
    strict: bool = True,
    **parts: Any,
) -> Run:
    """A run from the plain values that a folder or a table of kept runs has of it.

    ``trained`` gives the settings of an ensemble's member by its path. Not ``strict``: what cannot be understood is
    left out, and said.
    """
    missing: list[str] = list(parts.pop("missing", ()))

    def tried(work: Callable[[], Any], instead: Any) -> Any:
        try:
            return work()
        except E3BMError as error:
            if strict:
                raise
            missing.append(str(error).removesuffix("."))
            return instead

    kind = str(config.get("kind"))
    if kind not in get_args(Kind):
        tried(lambda: _refuse(f"{path / 'config.json'} is of a run of the unknown kind '{kind}'."), None)
        kind = "train"
    raw = config.get("settings")
    first: Record = dict(raw) if isinstance(raw, dict) else {}
    written: Record = upgraded({**config, "kind": kind, "settings": first})["settings"]
    settings = tried(lambda: read_settings(SETTINGS[kind], written), None) if written and kind in SETTINGS else None
    member = settings if isinstance(settings, TrainSettings) else None
    if isinstance(settings, EnsembleSettings):
        member = tried(lambda: trained(settings.members[0]), None)
    shape = config.get("input_shape")
    run = Run(
        path=path,
        kind=kind,  # type: ignore[arg-type]  # checked above
        settings=settings,
        trained=member,
        written=written,
        settings_digest=digest_of(first),
        inputs=noted_inputs(config),
        input_shape=tried(lambda: _shape(path, shape), None) if shape else None,
        **parts,
    )
    labelled = {"system": run.system, "baseline": run.baseline} | ({"method": run.title} if run.trained else {})
    found = []
    for row in rows:
        result = tried(lambda row=row: read_result(upgraded_result(row), str(path / "results.json")), None)  # type: ignore[misc]
        found += [result.model_copy(update=labelled)] if result else []
    return replace(run, results=tuple(found), missing=tuple(missing))


def _read(path: Path, *, strict: bool) -> Run:
    folder, missing = RunFolder(path), []

    def of_file(name: str, empty: Any, read: Callable[[], Any]) -> Any:
        if not (path / name).exists():
            missing.append(f"{name} is missing")
            return empty
        try:
            content = read()
        except E3BMError:
            if strict:
                raise
            content = None
        if not isinstance(content, type(empty)) or (name.endswith(".jsonl") and not content):
            missing.append(f"{name} is empty or damaged")
            return empty
        return content

    def lines(name: str) -> Any:
        return of_file(f"{name}.jsonl", [], lambda: list(folder.lines(name)))

    config = folder.written() if strict else of_file("config.json", {}, lambda: read_json(path / "config.json"))
    version = config.get("version", 1)
    if not strict and (not isinstance(version, int) or version > VERSION):
        missing.append(f"config.json is of version {version!s:.20}, newer than this e3bm")
        config = {**config, "version": VERSION}
    environment = of_file("environment.json", {}, lambda: read_json(path / "environment.json"))
    metrics = lines("metrics")
    trains = config.get("kind") != "pretrain"
    schedules = lines("schedules") if trains else []
    results = trains or (path / RESULTS_FILE).exists()
    rows = of_file(RESULTS_FILE, [], lambda: result_rows(path, strict=strict)) if results else []
    test_log = lines("test_log") if (path / "test_log.jsonl").exists() else []
    run = assemble(
        path,
        config,
        lambda member: _trained(beside(path, member)),
        rows,
        strict=strict,
        environment=environment,
        metrics=tuple(metrics),
        schedules=tuple(schedules),
        test_log=tuple(test_log),
        answers=partial(read_answers, path),
        missing=missing,
    )
    if isinstance(run.settings, TrainSettings) and run.settings.inner is None:  # nothing to schedule
        return replace(run, missing=tuple(each for each in run.missing if each != "schedules.jsonl is missing"))
    return run


def beside(run: Path, named: Path) -> Path:
    """A path that a run names, or what has its name beside the run: runs that moved together find one another."""
    nearby = run.parent / named.name
    return nearby if not named.exists() and nearby.exists() else named


def find_run_folders(paths: Sequence[Path]) -> list[Path]:
    """The run folders that were named, or that lie inside the folders that were named."""
    if not paths:
        raise SettingsError("A report needs at least one run folder; none was given.")
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise CheckpointError(f"There is no run folder {path}; give the --run folder of a training.")
        if any((path / name).exists() for name in BEGINNINGS):
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
    return all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < LARGEST for v in values)


def duration(seconds: Any) -> str:
    """Seconds in the words of a clock; a dash where they are not known."""
    if not finite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 60 else f"{hours:.1f} h"


def _trained(path: Path) -> TrainSettings | None:
    return _read(path, strict=True).trained


def _shape(path: Path, noted: Any) -> InputShape:
    if not isinstance(noted, list | tuple) or len(noted) != 2 or not all(isinstance(n, int) and n > 0 for n in noted):
        raise CheckpointError(f"{path / 'config.json'} is damaged: its input shape is not valid.")
    return InputShape(*noted)


def _refuse(sentence: str) -> None:
    raise CheckpointError(sentence)
