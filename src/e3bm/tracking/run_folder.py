"""The run folder: everything a run was, did and found, in files that anyone can read.

config.json        settings: {"kind": "train" | "pretrain", "settings": {...}}
environment.json   versions, machine, commit
metrics.jsonl      one line per logged step: {"step", "split", "loss", "accuracy", ...}
schedules.jsonl    alpha and v over meta-training: {"step", "rates": [M], "weights": [M]}
checkpoints/       last.json and best.json point at folders with weights.safetensors and state.pt
results.json       list of test results, newest of each kind
test_log.jsonl     every time the test split was opened
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e3bm.errors import CheckpointError
from e3bm.settings import Settings
from e3bm.tracking.environment import describe_environment
from e3bm.tracking.files import read_json, storage_errors, write_bytes, write_json


class RunFolder:
    """Reads and writes one run's files."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        return (self.path / "config.json").exists()

    def create(self, kind: str, settings: Settings) -> None:
        """Start a run here, or make sure that the one that is here has the same settings."""
        wanted = {"kind": kind, "settings": settings.model_dump(mode="json")}
        if self.exists:
            differences = _differences(self.config(), wanted)
            if differences:
                raise CheckpointError(
                    f"{self.path} holds a run with other settings: {'; '.join(differences)}. "
                    "Give the same settings to continue it, or another --run folder."
                )
            return
        if self.path.exists() and any(self.path.iterdir()):
            raise CheckpointError(f"{self.path} is not empty and holds no run; give another --run folder.")
        write_json(self.path / "environment.json", describe_environment())
        write_json(self.path / "config.json", wanted)

    def config(self) -> dict[str, Any]:
        """Kind and settings of the run."""
        if not self.exists:
            raise CheckpointError(f"{self.path} holds no run: there is no config.json in it.")
        config: dict[str, Any] = read_json(self.path / "config.json")
        return config

    def append(self, name: str, record: dict[str, Any]) -> None:
        """One more line in metrics, schedules or test_log."""
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The records of metrics, schedules or test_log; a last line cut short by a crash is passed over."""
        path = self.path / f"{name}.jsonl"
        if not path.exists():
            return
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return

    def rewind(self, step: int) -> None:
        """Drop what was logged after a checkpoint: those steps are taken again."""
        for name in ("metrics", "schedules"):
            kept = [line for line in self.lines(name) if line["step"] <= step]
            if (self.path / f"{name}.jsonl").exists():
                write_bytes(self.path / f"{name}.jsonl", "".join(json.dumps(line) + "\n" for line in kept).encode())

    def results(self) -> list[dict[str, Any]]:
        """Test results, newest of each kind."""
        path = self.path / "results.json"
        return read_json(path) if path.exists() else []

    def add_result(self, row: dict[str, Any]) -> None:
        """Keep a test result; one with the same data, episodes and checkpoint replaces the older."""
        same = ("dataset", "split", "episodes_hash", "episodes")
        kept = [old for old in self.results() if any(old.get(key) != row.get(key) for key in same)]
        write_json(self.path / "results.json", [*kept, row])


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {before!r}, now {after!r}".removeprefix("settings."))
    return found
