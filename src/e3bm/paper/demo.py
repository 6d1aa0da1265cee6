"""`e3bm demo`: pre-train, meta-train each method plain and with E3BM, test all on the same episodes, report."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from e3bm.paper.presets import Kind, hyperprior_settings, method_settings
from e3bm.progress import Progress, Silent
from e3bm.report.page import report
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.result import Result
from e3bm.runs.settings import PretrainSettings, TestSettings, TrainSettings
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train_many import Job, train_many
from e3bm.settings import read_settings

Size = Literal["tiny", "small", "full"]
# Ten characters at once, one example each: five would be too easy to tell models apart.
EPISODE = {"ways": 10, "shots": 1, "queries": 5}


@dataclass(frozen=True)
class DemoSize:
    """How much of everything."""

    pretrain_epochs: int
    head_steps: int
    maml_steps: int
    validation_episodes: int
    test_episodes: int
    inner_epochs: int


SIZES: dict[Size, DemoSize] = {
    "tiny": DemoSize(1, 40, 6, 20, 40, 5),
    "small": DemoSize(3, 400, 120, 60, 300, 30),
    "full": DemoSize(20, 3000, 3000, 300, 3000, 100),
}


@dataclass(frozen=True)
class Demo:
    """Where everything is, and what came out."""

    results: list[Result]
    page: Path
    seconds: float


def pretrain_settings(size: DemoSize) -> PretrainSettings:
    """A small 4CONV on the training characters."""
    return read_settings(
        PretrainSettings,
        {
            "backbone": {"name": "conv4_64", "adapt": "full"},
            "epochs": size.pretrain_epochs,
            "episode": EPISODE,
            "label_smoothing": 0.1,
            "machine": {"threads": 2},
            "validation": {"every": 1, "episodes": size.validation_episodes},
        },
    )


def train_settings(size: DemoSize, backbone: Path) -> dict[str, TrainSettings]:
    """Every method plain and with E3BM (LSTM): the same steps, tasks and seeds for both."""
    found = {}
    kinds: tuple[Kind, ...] = ("plain", "lstm-inductive")
    for method in ("mtl", "sib", "maml"):
        for kind in kinds:
            values: dict[str, Any] = {
                "method": method_settings(method, "e3bm").model_dump(),
                "hyperprior": hyperprior_settings(
                    method, "e3bm", "plain" if kind == "plain" else "lstm-inductive"
                ).model_dump(),
                "episode": EPISODE,
                "backbone": {"name": "conv4_64", "pretrained": str(backbone)},
                "optimiser": {"steps": size.head_steps, "tasks": 8, "schedule": "cosine"},
                "validation": {"every": max(1, size.head_steps // 4), "episodes": size.validation_episodes},
                "checkpoint_every": 100,
            }
            if method == "mtl":
                values["method"] |= {
                    "epochs": size.inner_epochs,
                    "start": "prototype",
                    "rate": 2.0,
                    "feature_length": 10**0.5,
                }
            if method == "maml":
                values["backbone"] = {"name": "conv4", "adapt": "full", "batchnorm": "batch"}
                values["optimiser"] |= {"steps": size.maml_steps, "tasks": 4}
                values["validation"]["every"] = max(1, size.maml_steps // 4)
            found[method if kind == "plain" else f"{method}-e3bm"] = read_settings(TrainSettings, values)
    return found


def run_demo(size: Size, folder: Path, progress: Progress | None = None, workers: int = 2) -> Demo:
    """All of it; re-running continues where it stopped."""
    progress, started, amount = progress or Silent(), time.perf_counter(), SIZES[size]
    backbone = folder / "pretrain"
    run_pretrain(pretrain_settings(amount), backbone, progress)
    jobs = [Job(folder / name, settings) for name, settings in train_settings(amount, backbone).items()]
    # MAML takes longest: its two runs start first, one per core.
    train_many(sorted(jobs, key=lambda job: job.settings.method.name != "maml"), workers=workers, progress=progress)
    runs = [backbone, *(job.folder for job in jobs)]
    results = run_test(runs, TestSettings(episodes=amount.test_episodes), progress)
    page = report(runs, folder / "report")
    return Demo(results, page, time.perf_counter() - started)
