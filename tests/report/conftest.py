"""Small run folders with made-up numbers, in the files that training and testing write."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e3bm.data.source import open_dataset
from e3bm.runs.folder.answers import keep_result
from e3bm.runs.folder.files import write_json
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.result import Result
from e3bm.runs.settings import PretrainSettings, TrainSettings
from e3bm.settings import Settings, read_settings
from result_records import result_of

MakeRun = Callable[..., Path]


def begin(path: Path, kind: str, settings: Settings) -> None:
    """The two files that a run starts with."""
    write_json(path / "config.json", {"kind": kind, "settings": settings.model_dump(mode="json")})
    environment = {"python": "3.11.7", "platform": "Linux", "packages": {"torch": "2.13.0"}, "commit": "0123456789ab+"}
    write_json(path / "environment.json", environment | {"command": ["e3bm", kind, "--run", path.name]})


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A function that writes a run folder of some method, trained for some steps."""

    def make(
        name: str,
        method: str = "mtl",
        /,
        *,
        e3bm: bool = False,
        steps: int = 200,
        done: int | None = None,
        epochs: int = 5,
        results: list[Result] | None = None,
        **settings: Any,
    ) -> Path:
        number = random.Random(name).gauss
        values = TrainSettings().model_dump()
        values["method"] = {"name": method, "epochs": epochs}
        values["optimiser"]["steps"] = steps
        if method == "maml":
            values["backbone"]["adapt"] = "full"
        if e3bm:
            values["hyperprior"] |= {"rate": "generated", "weight": "generated"}
        folder = RunFolder(tmp_path / name)
        begin(folder.path, "train", read_settings(TrainSettings, values | settings))
        level = 60 + 3 * e3bm
        for step in range(10, (steps if done is None else done) + 1, 10):
            part = 1 - math.exp(-3 * step / steps)
            line = {"loss": 1.6 - part + number(0, 0.08), "accuracy": 20 + 40 * part, "tasks_per_second": 50.0}
            folder.append("metrics", {"step": step, "split": "train", **line, "seconds": 0.1})
            rates = [0.01 * (1 + part * (epochs / 2 - i) / epochs) + number(0, 2e-4) for i in range(epochs)]
            weights = [1 / epochs * (1 + part * math.sin(i)) + number(0, 0.01) for i in range(epochs)]
            schedule = {"rates": rates, "weights": weights, "base_rates": rates, "base_weights": weights}
            folder.append("schedules", {"step": step, **schedule})
            if step % 20 == 0:
                line = {"accuracy": 20 + (level - 20) * part + number(0, 1), "ci": 0.9, "loss": 1.1}
                folder.append("metrics", {"step": step, "split": "val", **line, "best": step == 160, "seconds": 1.0})
        if results is None:
            results = [result_of(name, method.upper() + "+E3BM" * e3bm, epochs=epochs)]
        for result in results:
            keep_result(folder.path, result)
        return folder.path

    return make


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A finished pretraining of three epochs of 20 steps."""
    folder = RunFolder(tmp_path / "pretrain")
    begin(folder.path, "pretrain", PretrainSettings(epochs=3))
    for step in range(5, 61, 5):
        line = {"loss": 4 * math.exp(-step / 30), "accuracy": 90 * (1 - math.exp(-step / 30)), "seconds": 0.2}
        folder.append("metrics", {"step": step, "epoch": (step - 1) // 20, "split": "train", **line})
        if step % 20 == 0:
            line = {"accuracy": 50 + step / 4, "ci": 0.8, "best": True}
            folder.append("metrics", {"step": step, "epoch": (step - 1) // 20, "split": "val", **line})
    return folder.path


@pytest.fixture
def pair(make_run: MakeRun) -> list[Path]:
    """A baseline and its E3BM version, tested on the same episodes."""
    digest = open_dataset("glyphs").digest  # the picture of a task is drawn from the very data of the result
    plain = make_run("mtl-plain", results=[result_of("mtl-plain", "MTL", data_digest=digest)])
    better = result_of(
        "mtl-e3bm", "MTL+E3BM", accuracy=63.0, hyperprior="lstm inductive", parameters=100_400, seconds=10.5,
        schedules="alpha generated, v generated", train_seconds=33.0,
        paired_with="MTL (mtl-plain)", paired_difference=1.75, paired_ci=0.4,
        rates=[0.012, 0.011, 0.010, 0.009, 0.008], weights=[0.1, 0.3, 0.25, 0.2, 0.15],
        nll=0.9, nll_difference=-0.112, nll_difference_ci=0.02, ece=1.2, data_digest=digest,
    )  # fmt: skip
    return [plain, make_run("mtl-e3bm", e3bm=True, results=[better])]
