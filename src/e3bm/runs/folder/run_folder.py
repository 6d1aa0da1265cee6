"""The run folder: everything a run was, did and found, in files that anyone can read.

config.json        {"version": 2, "kind": "train" | "pretrain" | "ensemble" | "prior", "settings": {...},
                   "inputs": {name of what was read: its sha256}, "input_shape": [channels, pixels of a side]}
environment.json   versions, machine, commit
metrics.jsonl      one line per logged step: {"step", "split", "loss", "accuracy", ...}
schedules.jsonl    alpha and v over meta-training: {"step", "rates": [M], "weights": [M]}
checkpoints/       last.json and best.json point at folders with weights.safetensors and state.pt
results.json       list of test results (runs/result.py), newest of each kind, each with its right answers by episode
test_log.jsonl     every time the test split was opened

Every file carries the digests of what it holds (json_files.py), which are checked when it is read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from e3bm.errors import CheckpointError, SettingsError, install_command
from e3bm.json_files import append_line
from e3bm.runs.folder.environment import describe_environment
from e3bm.runs.folder.files import held, in_turn, read_json, read_lines, storage_errors, write_json, write_lines
from e3bm.runs.folder.upgrade import VERSION, upgraded
from e3bm.runs.settings import PretrainSettings, TrainSettings
from e3bm.settings import Settings, read_settings
from e3bm.storage import sweep

if TYPE_CHECKING:
    from e3bm.runs.engine import Engine  # torch, which reading a run does not need

Mirror = Callable[[str, Mapping[str, Any]], None]


class RunFolder:
    """Writes one run's files; `run.py` reads them."""

    def __init__(self, path: Path | str, mirrors: Sequence[Mirror] = ()) -> None:
        """Every line that is appended is shown to the mirrors, too."""
        self.path, self.mirrors = Path(path), mirrors

    @property
    def exists(self) -> bool:
        return (self.path / "config.json").exists()

    def check(self, kind: str, settings: Settings, inputs: Mapping[str, str]) -> None:
        """Refuse a folder that holds a run with other settings or inputs, or something that is not a run."""
        with storage_errors(self.path):
            if self.exists:
                self._check_same(kind, settings, inputs)
            elif self.path.exists():
                foreign = [entry.name for entry in self.path.iterdir() if not _is_beginning(entry.name)]
                if foreign:
                    raise CheckpointError(
                        f"{self.path} is not empty (it has {min(foreign)}) but does not hold a run; name another one."
                    )

    def create(
        self,
        kind: str,
        settings: Settings,
        inputs: Mapping[str, str],
        input_shape: tuple[int, int] | None = None,
    ) -> None:
        """Start a run here, or make sure that the one that is here is the same, down to what it reads."""
        self.check(kind, settings, inputs)
        if not self.exists:
            write_json(self.path / "environment.json", describe_environment())
            # Last: where this file is, there is a run.
            write_json(
                self.path / "config.json",
                {
                    "version": VERSION,
                    "kind": kind,
                    "settings": settings.model_dump(mode="json"),
                    "inputs": dict(inputs),
                    "input_shape": input_shape,
                },
            )
        sweep(self.path)

    def config(self) -> dict[str, Any]:
        """What config.json states, in the form of today."""
        return upgraded(self.written())

    def written(self) -> dict[str, Any]:
        """What config.json states, as it stands there, whatever version wrote it."""
        if not self.exists:
            raise CheckpointError(f"{self.path} holds no run: there is no config.json in it.")
        config = read_json(self.path / "config.json")
        if not isinstance(config, dict) or not {"kind", "settings"} <= config.keys():
            raise CheckpointError(f"{self.path / 'config.json'} is damaged: it has no kind and settings.")
        version = config.get("version", 1)
        if not isinstance(version, int) or not isinstance(config["settings"], dict):
            raise CheckpointError(f"{self.path / 'config.json'} is damaged: its version or settings are not valid.")
        if version > VERSION:
            raise CheckpointError(
                f"{self.path} holds a run of version {config['version']}; this e3bm reads up to {VERSION}. Use the "
                "e3bm that made it, or a newer one."
            )
        return config

    def _check_same(self, kind: str, settings: Settings, inputs: Mapping[str, str]) -> None:
        old = self.config()
        if old["kind"] != kind:
            raise CheckpointError(
                f"{self.path} holds a {old['kind']} run, not a {kind} run; give another --run folder."
            )
        # Read as settings first: what the older file does not have yet has its default.
        before = read_settings(type(settings), old["settings"])
        if isinstance(before, TrainSettings) and isinstance(settings, TrainSettings):
            there, wanted = before.method.name, settings.method.name
            if there != wanted:
                raise CheckpointError(
                    f"{self.path} holds a run of the method '{there}', not '{wanted}'; give another --run folder."
                )
        found = _differences(before.model_dump(mode="json"), settings.model_dump(mode="json"))
        if found:
            raise CheckpointError(
                f"{self.path} holds a run with other settings: {'; '.join(found)}. "
                "Give the same settings to continue it, or another --run folder."
            )
        self.check_inputs(inputs)

    def check_inputs(self, inputs: Mapping[str, str]) -> None:
        """Refuse to go on with other data or another backbone under the name that the run had them by."""
        known = noted_inputs(self.config())
        # A run that was kept with rounded weights lists their digest beside the first one.
        changed = [name for name, digest in inputs.items() if digest not in known.get(name, (digest,))]
        if changed:
            raise CheckpointError(
                f"Since the run in {self.path} began, its {' and its '.join(changed)} changed; restore the old one, "
                f"or train again in another --run folder."
            )

    def append(self, name: str, record: dict[str, Any]) -> None:
        """One more line in metrics, schedules or test_log."""
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            path = self.path / f"{name}.jsonl"
            path.touch()
            with in_turn(path):  # two tests of one run may log at the same moment
                append_line(path, record)
        for mirror in self.mirrors:
            mirror(name, record)

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The records of metrics, schedules or test_log; a line cut short by a crash is passed over."""
        path = self.path / f"{name}.jsonl"
        if path.exists():
            yield from (line for line in read_lines(path) if isinstance(line, dict))

    def rewind(self, step: int) -> None:
        """Drop what was logged after a checkpoint: those steps are taken again."""
        for name in ("metrics", "schedules"):
            kept = [line for line in self.lines(name) if isinstance(line.get("step"), int) and line["step"] <= step]
            if (self.path / f"{name}.jsonl").exists():
                write_lines(self.path / f"{name}.jsonl", kept)


def noted_inputs(config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Digests of what a run read, by name; several where a rounded copy counts as the first."""
    found = config.get("inputs")
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: tuple(map(str, known)) if isinstance(known, list) else (str(known),) for name, known in pairs}


def _is_beginning(name: str) -> bool:
    """Whether a file may be what a run left that was killed before it had its config.json."""
    return name == "environment.json" or (name.startswith(".") and name.endswith(".partial"))


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {before!r}, now {after!r}")
    return found


# The same numbers in TensorBoard, for those who like to watch there (the extra `e3bm[tensorboard]`).


class TensorBoard:
    """Shows every metrics and schedules line of a run as scalars in the run's folder ``tensorboard``."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingsError(f"TensorBoard is not installed; run: {install_command('tensorboard')}") from None
        self.folder = run / "tensorboard"
        self._open = SummaryWriter
        self._writer: Any = None

    def __call__(self, name: str, record: Mapping[str, Any]) -> None:
        if name not in ("metrics", "schedules"):
            return
        step = record["step"]
        if self._writer is None:
            # A continued run takes some steps again: what was shown of them before is hidden.
            self._writer = self._open(str(self.folder), purge_step=step)
        group = record.get("split", "schedule")
        for key, value in record.items():
            if isinstance(value, list):
                for epoch, each in enumerate(value, 1):
                    self._writer.add_scalar(f"{group}/{key}/{epoch:03d}", each, step)
            elif isinstance(value, int | float) and key != "step":
                self._writer.add_scalar(f"{group}/{key}", value, step)
        self._writer.flush()

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()


# How a training begins: its run folder, looked at by all processes and written by one.


@contextmanager
def opened(
    folder: Path,
    kind: str,
    settings: TrainSettings | PretrainSettings,
    inputs: Mapping[str, str],
    engine: "Engine",
    tensorboard: bool,
    input_shape: tuple[int, int],
) -> Iterator[RunFolder]:
    """The run folder, begun or continued, and kept from other trainings."""
    run = RunFolder(folder)
    run.check(kind, settings, inputs)
    engine.wait()  # nobody writes before all have looked, so that all come to the same answer
    if engine.leads:
        run.create(kind, settings, inputs, input_shape)
    with held(folder) if engine.leads else nullcontext():
        engine.wait()
        if not tensorboard or not engine.leads:
            yield run
            return
        with TensorBoard(folder) as mirror:
            yield RunFolder(folder, [mirror])
