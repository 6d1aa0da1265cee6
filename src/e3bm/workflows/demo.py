"""`e3bm demo`: pre-train, meta-train each method plain and with E3BM, test all on the same episodes, report."""

import multiprocessing
import time
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from e3bm.presets import Kind, hyperprior_settings, method_settings
from e3bm.settings import PretrainSettings, TestSettings, TrainSettings, read_settings
from e3bm.tracking.progress import Progress, Silent
from e3bm.tracking.run_folder import RunFolder
from e3bm.workflows.pretrain import run_pretrain
from e3bm.workflows.report import report
from e3bm.workflows.test import Row, run_test
from e3bm.workflows.train import run_train

Size = Literal["tiny", "small", "full"]
# Twenty characters at once, one example each: five would be too easy to tell models apart.
EPISODE = {"ways": 20, "shots": 1, "queries": 5}
LOOK_EVERY = 0.5  # seconds between looks at what the workers have logged


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
    "small": DemoSize(6, 600, 200, 100, 600, 30),
    "full": DemoSize(20, 3000, 3000, 300, 3000, 100),
}


@dataclass(frozen=True)
class Demo:
    """Where everything is, and what came out."""

    rows: list[Row]
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
    jobs = {folder / name: settings for name, settings in train_settings(amount, backbone).items()}
    # MAML takes longest: its two runs start first, one per core.
    ordered = sorted(jobs.items(), key=lambda job: -job[1].optimiser.steps * (job[1].method.name == "maml"))
    _in_parallel(ordered, workers, progress)
    rows = run_test([backbone, *jobs], TestSettings(episodes=amount.test_episodes), progress)
    page = report([backbone, *jobs], folder / "report")
    return Demo(rows, page, time.perf_counter() - started)


def _in_parallel(jobs: list[tuple[Path, TrainSettings]], workers: int, progress: Progress) -> None:
    """Independent runs, one process each; their steps are counted in the files they write."""
    total = sum(settings.optimiser.steps for _, settings in jobs)
    progress.begin(f"meta-train {len(jobs)} models", total)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: set[Future[Any]] = {pool.submit(_train, settings, folder) for folder, settings in jobs}
        failed: BaseException | None = None
        while waiting and failed is None:
            done, waiting = wait(waiting, timeout=LOOK_EVERY)
            failed = next((future.exception() for future in done if future.exception()), None)
            progress.advance(sum(_steps(folder) for folder, _ in jobs), models_done=len(jobs) - len(waiting))
        if failed is not None:
            pool.shutdown(cancel_futures=True)
            raise failed
    progress.end()


def _train(settings: TrainSettings, folder: Path) -> None:
    run_train(settings, folder)


def _steps(folder: Path) -> int:
    return max((line["step"] for line in RunFolder(folder).lines("metrics")), default=0)
