"""MAML on two cores: two workers that share a meta-batch against one that does it all; time on the clock."""

import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing import spawn

from benchmarks.maml import learner, tasks_of_images
from benchmarks.rows import Row
from benchmarks.timing import Comparison, Work, relative_spread, wall_seconds
from e3bm.core.learner import meta_loss
from e3bm.runs.engine import Engine

IMAGE_SIZE, SHOTS, TASKS, WORKERS, TARGET = 32, 5, 4, 2, 1.8


@dataclass(frozen=True)
class Times:
    """Seconds on the clock of the same meta-batch, one list entry a round."""

    alone: list[float]
    two_workers: list[float]

    def ratio(self, other: list[float]) -> tuple[float, float]:
        """How many times faster than one worker, and the spread."""
        found = statistics.median(self.alone) / statistics.median(other)
        return found, relative_spread([a / b for a, b in zip(self.alone, other, strict=True)], found)


def measure(repeats: int, *, tasks: int = TASKS, image_size: int = IMAGE_SIZE) -> Times:
    """Meta-gradients of ``tasks`` tasks by one worker and by two, in turn."""
    with tempfile.TemporaryDirectory() as place:
        spawn(_work, (repeats, tasks, image_size, place), nprocs=WORKERS)
        return Times(**json.loads((Path(place) / "seconds.json").read_text()))


def _work(rank: int, repeats: int, tasks: int, image_size: int, place: str) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{place}/store", WORKERS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=WORKERS)
    engine, single = Engine(rank, WORKERS), Engine()
    share, everything = (_step(each, tasks, image_size) for each in (engine, single))
    seconds: dict[str, list[float]] = {"alone": [], "two_workers": []}
    for round_ in range(repeats + 1):
        if rank == 0:
            alone = wall_seconds(everything)
        distributed.barrier()  # the other worker slept so far
        both = wall_seconds(share)
        if rank == 0 and round_:  # the first round warms up
            for name, found in zip(seconds, (alone, both), strict=True):
                seconds[name].append(found)
        distributed.barrier()
    if rank == 0:
        (Path(place) / "seconds.json").write_text(json.dumps(seconds))
    distributed.barrier()
    distributed.destroy_process_group()


def _step(engine: Engine, tasks: int, image_size: int) -> Work:
    """The meta-gradient of a meta-batch, on every worker: its share of the tasks, then the sum."""
    model, batch = learner(image_size), tasks_of_images(image_size, SHOTS, tasks=tasks)
    mine = engine.mine(range(tasks))
    parts = [batch.tasks(number, number + 1) for number in mine]

    def step() -> None:
        model.zero_grad(set_to_none=True)
        losses = [meta_loss(model(part).scores, part.query_labels) for part in parts if part.query_labels is not None]
        with engine.summed_gradients(model.parameters()):
            (torch.stack(losses).sum() / tasks).backward()

    return step


def rows(quick: bool) -> list[Row]:
    """Two task workers against one; needs two free cores."""
    times = measure(1, tasks=2, image_size=16) if quick else measure(7)
    ratio, spread = times.ratio(times.two_workers)
    alone, both = (1e3 * statistics.median(found) for found in (times.alone, times.two_workers))
    name = f"MAML, {IMAGE_SIZE} px, {SHOTS}-shot, {TASKS} tasks: two task workers against one (clock)"
    return [Row.of(name, Comparison(ratio, spread, alone, both), TARGET)]
