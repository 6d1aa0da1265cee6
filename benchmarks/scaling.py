"""python -m benchmarks.scaling [--out results/scaling]: what more workers would do, from bytes and seconds of here.

Measured: CPU seconds of a task and of an update, bytes that processes exchange, seconds of gloo between two processes
of this machine, seconds of a checkpoint. Computed from them: steps of 1, 8, 64 and 512 workers over stated networks.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import distributed
from torch.multiprocessing import spawn

from benchmarks.timing import cpu_seconds
from e3bm.core.episode import TaskBatch
from e3bm.paper.presets import find_preset
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.engine import Engine
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.settings import TrainSettings
from e3bm.runs.training.meta_train import meta_step
from e3bm.runs.training.optimisers import build_optimiser

SYSTEMS = {
    "MAML+E3BM, 4CONV, 84 px": "paper-maml-conv4-miniimagenet-1shot-lstm-inductive",
    "MTL+E3BM, ResNet-12, 84 px": "paper-mtl-resnet12-miniimagenet-1shot-lstm-inductive",
    "SIB+E3BM, features of 640": "paper-sib-wrn28_10-miniimagenet-1shot-lstm-transductive",
}
WORKERS = (1, 8, 64, 512)
BATCH = 64  # tasks at once, where they are features
STEP_MESSAGES = 2  # small ones beside the gradient: the log's numbers, and whether anybody wants to stop


@dataclass(frozen=True)
class Network:
    """An assumption: bytes per second and seconds per message between any two machines."""

    name: str
    bandwidth: float
    latency: float


NETWORKS = (
    Network("1 Gbit/s Ethernet", 0.125e9, 50e-6),
    Network("10 Gbit/s Ethernet", 1.25e9, 30e-6),
    Network("100 Gbit/s fabric", 12.5e9, 5e-6),
)


@dataclass(frozen=True)
class System:
    """What a meta-step of one method costs and sends."""

    name: str
    preset: str
    published_tasks: int
    trained_parameters: int
    gradient_bytes: int
    statistics_bytes_per_task: int
    task_seconds: float
    task_seconds_in_batch: float | None
    update_seconds: float
    checkpoint_bytes: int
    checkpoint_seconds: float


def exchange_seconds(system: System, workers: int, network: Network, tasks: int) -> float:
    """A ring all-reduce of the gradient, a gather of running statistics, and the small messages of a step."""
    if workers == 1:
        return 0.0
    others = workers - 1
    gradient = 2 * others * (network.latency + system.gradient_bytes / workers / network.bandwidth)
    statistics_bytes = system.statistics_bytes_per_task * tasks * others / workers
    gathered = others * network.latency + statistics_bytes / network.bandwidth if statistics_bytes else 0.0
    return gradient + gathered + STEP_MESSAGES * 2 * math.ceil(math.log2(workers)) * network.latency


def predict(system: System, workers: int, network: Network, tasks: int) -> dict[str, Any]:
    """A step of ``tasks`` tasks: the busiest worker's share, the exchange, and the update that all do alike."""
    compute = math.ceil(tasks / workers) * system.task_seconds
    exchange = exchange_seconds(system, workers, network, tasks)
    step = compute + exchange + system.update_seconds
    alone = tasks * system.task_seconds + system.update_seconds
    return {
        "system": system.name,
        "network": network.name,
        "workers": workers,
        "tasks": tasks,
        "step_seconds": step,
        "compute_seconds": compute,
        "exchange_seconds": exchange,
        "tasks_per_second": tasks / step,
        "speed_up": alone / step,
        "efficiency": alone / step / workers,
    }


def measure(name: str, preset: str, repeats: int) -> System:
    """Real meta-steps of one task on random images or features, on one thread."""
    with tempfile.TemporaryDirectory() as place:
        settings, learner, batch = _prepare(preset, Path(place))
        optimiser = build_optimiser(learner, settings.optimiser)
        learner.train()
        seconds = _step_seconds(learner, batch, optimiser, settings, repeats)
        together = None
        if settings.backbone.adapt == "frozen":
            many, more = _repeated(batch, BATCH), settings.but(optimiser__tasks=BATCH)
            together = _step_seconds(learner, many, optimiser, more, repeats) / BATCH
        update = statistics.median(cpu_seconds(optimiser.step) for _ in range(repeats))
        layers = [layer for layer in learner.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
        moving = settings.backbone.batchnorm == "batch_then_running"
        state = {"step": 1, "best": 0.0, "optimiser": optimiser.state_dict()}
        checkpoints = Checkpoints(Path(place) / "run")
        saving = statistics.median(_wall(lambda: checkpoints.save(learner, state, best=False)) for _ in range(3))
        saved = sum(path.stat().st_size for path in checkpoints.place("last").iterdir())
    trained = sum(parameter.numel() for parameter in learner.parameters() if parameter.requires_grad)
    # Support and query leave a mean and a variance per channel each.
    statistics_bytes = 4 * 2 * 2 * sum(layer.num_features for layer in layers) if moving else 0
    published = find_preset(preset).train.optimiser.tasks
    return System(
        name,
        preset,
        published,
        trained,
        4 * trained,
        statistics_bytes,
        seconds - update,
        together,
        update,
        saved,
        saving,
    )


def _step_seconds(
    learner: torch.nn.Module,
    batch: TaskBatch,
    optimiser: torch.optim.Optimizer,
    settings: TrainSettings,
    repeats: int,
) -> float:
    step = lambda: meta_step(learner, batch, optimiser, settings, 0, Engine())  # type: ignore[arg-type]
    step()
    return statistics.median(cpu_seconds(step) for _ in range(repeats))


def _repeated(batch: TaskBatch, times: int) -> TaskBatch:
    repeat = lambda values: values.repeat(times, *[1] * (values.ndim - 1))
    parts = (batch.support, batch.support_labels, batch.query, batch.query_labels)
    return TaskBatch(*map(repeat, parts), batch.ways)


def _prepare(preset: str, place: Path) -> tuple[TrainSettings, torch.nn.Module, TaskBatch]:
    settings = find_preset(preset).train
    size = settings.data.image_size or 84
    if settings.backbone.adapt != "full":
        torch.manual_seed(0)
        weights = build_backbone(settings.backbone, 3, size).state_dict()
        safetensors.torch.save_file({key: value.contiguous() for key, value in weights.items()}, place / "weights")
        settings = settings.but(backbone__pretrained=place / "weights")
    settings = settings.but(optimiser__tasks=1)
    backbone = build_backbone(settings.backbone, 3, size)
    shape = (backbone.feature_size,) if settings.backbone.adapt == "frozen" else (3, size, size)
    ways, shots, queries = settings.episode.ways, settings.episode.shots, settings.episode.queries
    assert isinstance(shots, int)
    batch = TaskBatch(
        torch.rand(1, ways * shots, *shape),
        torch.arange(ways).repeat_interleave(shots).unsqueeze(0),
        torch.rand(1, ways * queries, *shape),
        torch.arange(ways).repeat_interleave(queries).unsqueeze(0),
        ways,
    )
    return settings, build_learner(settings, backbone), batch


def measure_exchange(sizes: list[int], repeats: int = 51) -> list[dict[str, float]]:
    """Wall seconds of gloo's all-reduce between two processes of this machine."""
    with tempfile.TemporaryDirectory() as place:
        spawn(_exchange, (sizes, repeats, place), nprocs=2)
        found: list[dict[str, float]] = json.loads((Path(place) / "seconds.json").read_text())
    return found


def _exchange(rank: int, sizes: list[int], repeats: int, place: str) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{place}/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = []
    for size in sizes:
        message = torch.ones(max(1, size // 4))
        distributed.all_reduce(message)
        times = [_wall(lambda message=message: distributed.all_reduce(message)) for _ in range(repeats)]
        found.append({"bytes": size, "seconds": statistics.median(times)})
    if rank == 0:
        (Path(place) / "seconds.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def _wall(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def table(systems: list[System]) -> str:
    """The predictions as markdown: the published meta-batch, and one task for each worker."""
    lines = ["| system | tasks | workers | compute, s | exchange at 1 / 10 / 100 Gbit/s, ms | speed-up at 10 Gbit/s |"]
    lines.append("|---|---|---|---|---|---|")
    for system in systems:
        for grows in (False, True):
            for workers in WORKERS:
                tasks = max(workers, system.published_tasks) if grows else system.published_tasks
                if grows and tasks == system.published_tasks:
                    continue
                rows = [predict(system, workers, network, tasks) for network in NETWORKS]
                exchange = " / ".join(f"{1e3 * row['exchange_seconds']:.3g}" for row in rows)
                lines.append(
                    f"| {system.name} | {tasks} | {workers} | {rows[1]['compute_seconds']:.3g} | {exchange} "
                    f"| {rows[1]['speed_up']:.3g} |"
                )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/scaling"), help="folder for scaling.json")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    systems = [measure(name, preset, chosen.repeats) for name, preset in SYSTEMS.items()]
    exchange = measure_exchange([8, *(system.gradient_bytes for system in systems), 64_000_000])
    predictions = [
        predict(system, workers, network, tasks)
        for system in systems
        for network in NETWORKS
        for workers in WORKERS
        for tasks in sorted({system.published_tasks, max(workers, system.published_tasks)})
    ]
    chosen.out.mkdir(parents=True, exist_ok=True)
    found = {
        "measured": {"systems": [asdict(system) for system in systems], "gloo_two_processes_one_machine": exchange},
        "assumed": {"networks": [asdict(network) for network in NETWORKS], "messages_per_step": STEP_MESSAGES},
        "computed": predictions,
    }
    (chosen.out / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    for system in systems:
        print(asdict(system))
    print(table(systems))


if __name__ == "__main__":
    main()
