"""Tasks per second on FC100: training and test of every method with and without E3BM, with and without loading data."""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.rows import Table
from benchmarks.timing import Work, taking_turns
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import MetaLearner
from e3bm.data.store.features import FeatureTasks
from e3bm.errors import E3BMError
from e3bm.paper.presets import find_preset
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import TaskSource
from e3bm.runs.settings import TrainSettings
from e3bm.runs.tasks import OpenData, episode_sampler, image_tasks, open_data
from e3bm.runs.training.meta_train import meta_step
from e3bm.runs.training.optimisers import build_optimiser

METHODS = {"maml": "MAML, 4CONV", "mtl": "MTL, features", "mtl-scaled": "MTL, ResNet-12 half", "sib": "SIB, features"}
KINDS = {"plain": "alone", "lstm-inductive": "E3BM"}
TESTED = {"frozen": 16, "full": 4, "scale_shift": 4}  # tasks of one call at test
UNTRAINED = Path("untrained")  # time does not depend on what the weights are
COLUMNS = (
    "method", "shots", "with", "training, tasks/s", "and data", "data's share",
    "test, tasks/s", "and data", "data's share",
)  # fmt: skip


def settings_of(method: str, shots: int, kind: str) -> TrainSettings:
    """The preset for FC100 at 32 pixels."""
    train = find_preset(f"small-{method}-fc100-{shots}shot-{kind}").train
    return train if train.backbone.adapt == "full" else train.but(backbone__pretrained=UNTRAINED)


def works(settings: TrainSettings, data: OpenData, split: str = "train") -> dict[str, tuple[Work, int]]:
    """A training step and a test call, on tasks that lie ready and on tasks that are loaded, and their tasks a call."""
    torch.manual_seed(0)
    backbone = build_backbone(settings.backbone.but(pretrained=None), *data.input_shape)
    learner = build_learner(settings, backbone)
    optimiser = build_optimiser(learner, settings.optimiser)
    source = _source(settings, data, backbone.feature_size, split)
    train, test = settings.optimiser.tasks, TESTED[settings.backbone.adapt]
    ready = {count: source.load(range(count)) for count in (train, test)}

    def step(batch: TaskBatch) -> None:
        learner.train()
        meta_step(learner, batch, optimiser, settings, 0, Engine())

    return {
        "train": (lambda: step(ready[train]), train),
        "train with data": (_each(step, source, train), train),
        "test": (lambda: _test(learner, ready[test]), test),
        "test with data": (_each(lambda batch: _test(learner, batch), source, test), test),
    }


def _source(settings: TrainSettings, data: OpenData, feature_size: int, split: str) -> TaskSource:
    sampler = episode_sampler(data, split, settings.episode, 0, "benchmark")
    if settings.backbone.adapt != "frozen":
        return image_tasks(data, sampler, augment=settings.data.augment, dtype=torch.float32)
    positions = np.unique(np.concatenate([data.images.indices_of(number) for number in sampler.classes]))
    features = np.random.default_rng(0).random((len(positions), feature_size), dtype=np.float32)
    return FeatureTasks(features, positions, sampler, torch.float32)


def _each(use: Callable[[TaskBatch], None], source: TaskSource, count: int) -> Work:
    starts: Iterator[int] = iter(range(0, 10**9, count))

    def work() -> None:
        start = next(starts)
        use(source.load(range(start, start + count)))

    return work


@torch.no_grad()
def _test(learner: MetaLearner, batch: TaskBatch) -> None:
    learner.eval()
    learner(batch)


def lines_of(method: str, shots: int, data: OpenData, repeats: int) -> list[tuple[str | float, ...]]:
    """Both arms of a method, taking turns."""
    found = {kind: works(settings_of(method, shots, kind), data) for kind in KINDS}
    flat = {(kind, name): work for kind, each in found.items() for name, (work, _) in each.items()}
    times = taking_turns({f"{kind}/{name}": work for (kind, name), work in flat.items()}, repeats)
    lines: list[tuple[str | float, ...]] = []
    for kind, label in KINDS.items():
        speeds = {name: count / statistics.median(times[f"{kind}/{name}"]) for name, (_, count) in found[kind].items()}
        numbers: list[str | float] = []
        for name in ("train", "test"):
            alone, loaded = speeds[name], speeds[f"{name} with data"]
            numbers += [alone, loaded, f"{max(0.0, 1 - loaded / alone):.1%}"]
        lines.append((METHODS[method], shots, label, *numbers))
    return lines


def tables(quick: bool) -> list[Table]:
    """FC100 from the folder that E3BM_DATA names."""
    about = (
        "Presets `small-*-fc100-*` at 32 pixels on one thread: whole training steps (forward, backward, optimiser) "
        "and test calls, tasks per second of CPU time. Loading is counted as if nothing overlapped; in training it "
        "happens in the background. MTL and SIB on features read a table, MTL with ResNet-12 trains scale and shift."
    )
    lines: list[tuple[str | float, ...]] = []
    for method in METHODS:
        try:
            data = open_data(settings_of(method, 1, "plain").data)
        except E3BMError as error:
            return [Table("Tasks per second on FC100", f"Not measured: {error}", COLUMNS, ())]
        for shots in (1,) if quick else (1, 5):
            lines += lines_of(method, shots, data, 1 if quick else 2)
    return [Table("Tasks per second on FC100", about, COLUMNS, tuple(lines))]
