"""What E3BM costs a preset in time and memory (Table S3): both arms in one run, taking turns, as ratios.

Times are CPU seconds of this process and mean something only beside one another.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from e3bm.backbones import Backbone, encode, fold_batchnorm, pop_statistics
from e3bm.core.adapt import adapt_and_keep
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import DirectLearner, MetaLearner, meta_loss
from e3bm.data.source import registered_name, registered_sources
from e3bm.errors import SettingsError
from e3bm.methods import MatchingNets, NearestMean, ReadyFeatures
from e3bm.paper.presets import Preset
from e3bm.progress import Progress, Silent
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.settings import EpisodeSettings, HyperpriorSettings, TrainSettings

# What is timed and weighed of a model: encoding, the epoch loop, a training step; each a call without arguments.


Work = Callable[[], object]


def encoding(backbone: Backbone, images: TaskBatch) -> Work:
    """Support and query of a task through a frozen backbone, as in `e3bm test`."""
    folded = fold_batchnorm(backbone)

    def work() -> None:
        with torch.inference_mode():
            encode(folded, images.support, "running")
            encode(folded, images.query, "running")

    return work


def beginning(learner: MetaLearner, batch: TaskBatch) -> Work:
    """What a method does once per task before its first epoch: with scale and shift, mostly encoding."""

    def work() -> None:
        learner.eval()
        with torch.no_grad():
            learner.method.begin(batch)

    return work


def adapting(learner: MetaLearner, batch: TaskBatch, every_epoch: bool = False) -> Work:
    """The epoch loop alone; what comes before it is the same for both arms and is timed by itself."""
    learner.eval()
    with torch.no_grad():
        problem = learner.method.begin(batch)

    def work() -> None:
        learner.eval()
        with torch.no_grad():
            adapt_and_keep(problem, learner.hyperprior, learner.epochs, every_epoch=every_epoch)

    return work


def at_test(model: nn.Module, batch: TaskBatch) -> Work:
    """A model that adapts nothing."""

    def work() -> None:
        with torch.no_grad():
            model(batch)

    return work


def training_step(learner: MetaLearner, batch: TaskBatch) -> Work:
    """One meta-gradient."""

    def work() -> None:
        learner.train()
        learner.zero_grad(set_to_none=True)
        _loss(learner, batch).backward()
        pop_statistics(learner)

    return work


def kept_bytes(learner: MetaLearner, batch: TaskBatch) -> int:
    """Bytes of distinct storage that autograd keeps between forward and backward."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    learner.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = _loss(learner, batch)
    pop_statistics(learner)
    del loss
    return sum(kept.values())


def _loss(learner: MetaLearner, batch: TaskBatch) -> Tensor:
    assert batch.query_labels is not None
    return meta_loss(learner(batch).scores, batch.query_labels)


def random_task(episode: EpisodeSettings, shape: tuple[int, ...]) -> TaskBatch:
    """A task of random examples: costs do not depend on what they are."""
    shots = episode.shots if isinstance(episode.shots, int) else episode.shots[1]
    random = torch.Generator().manual_seed(0)
    labels = lambda count: torch.arange(episode.ways).repeat_interleave(count).unsqueeze(0)
    examples = lambda count: torch.rand(1, episode.ways * count, *shape, generator=random)
    return TaskBatch(
        examples(shots), labels(shots), examples(episode.queries), labels(episode.queries), episode.ways
    )  # fmt: skip


PER_EPOCHS = 100  # Table S3 states times for 100 epochs
COUNTED = {
    "frozen": "backbone and head",
    "scale_shift": "learnable: scale, shift, BatchNorm and head",
    "full": "the whole network",
}
UNTRAINED = Path("untrained")  # costs do not depend on what the weights are


@dataclass(frozen=True)
class TimedCost:
    """One system of a preset; percentages are over the method alone."""

    system: str
    backbone: str
    parameters: int
    e3bm_parameters: int
    percent: float
    note: str
    epochs: int
    encode_seconds: float
    adapt_seconds: float
    time_percent: float | None
    """Extra time at test, backbone included."""
    seconds_per_100_epochs: float
    train_seconds: float | None
    train_time_percent: float | None
    memory_bytes: int | None
    """What a training step keeps for its backward pass."""
    memory_percent: float | None


def preset_cost(
    preset: Preset, *, repeats: int = 5, training: bool = True, progress: Progress | None = None
) -> list[TimedCost]:
    """The method alone, with E3BM, and with the prototype and attention heads on the same backbone; one task each."""
    progress = progress or Silent()
    if preset.train.inner is None:
        raise SettingsError(f"{preset.train.title} has no inner epochs, so E3BM adds nothing that could be timed.")
    with_psi = preset.train.but(backbone__pretrained=UNTRAINED)
    torch.set_num_threads(with_psi.machine.threads)
    arms = {"plain": with_psi.but(hyperprior=HyperpriorSettings())}
    if with_psi.hyperprior.generated:
        arms["e3bm"] = with_psi
    channels, size = _input_shape(with_psi)
    backbone = build_backbone(with_psi.backbone.but(pretrained=None), channels, size).eval()
    images = random_task(with_psi.episode, (channels, size, size))
    features = random_task(with_psi.episode, (backbone.feature_size,))
    batch = features if with_psi.backbone.adapt == "frozen" else images
    learners = {name: _with_inner_loop(settings, backbone) for name, settings in arms.items()}
    works: dict[str, Work] = {"encode": encoding(backbone, images)}
    works |= {
        "prototypes": at_test(DirectLearner(NearestMean(ReadyFeatures(backbone.feature_size))), features),
        "attention": at_test(DirectLearner(MatchingNets(ReadyFeatures(backbone.feature_size))), features),
    }
    if with_psi.backbone.adapt == "scale_shift":
        works["begin"] = beginning(learners["plain"], batch)
    for name, learner in learners.items():
        works[f"adapt {name}"] = adapting(learner, batch)
    if with_psi.method.needs.takes == "images":
        works["adapt every epoch"] = adapting(learners["plain"], batch, every_epoch=True)
    if training:
        works |= {f"train {name}": training_step(learner, batch) for name, learner in learners.items()}
    times = _taking_turns(works, repeats, progress)
    memory = {name: kept_bytes(learner, batch) for name, learner in learners.items()} if training else {}
    return _rows(preset, arms, learners, backbone, times, memory)


def _with_inner_loop(settings: TrainSettings, backbone: Backbone) -> MetaLearner:
    learner = build_learner(settings, backbone)
    assert isinstance(learner, MetaLearner)
    return learner


def _rows(
    preset: Preset,
    arms: dict[str, TrainSettings],
    learners: dict[str, MetaLearner],
    backbone: Backbone,
    times: dict[str, list[float]],
    memory: dict[str, int],
) -> list[TimedCost]:
    settings = preset.train
    frozen, name = settings.backbone.adapt == "frozen", settings.backbone.name
    encode_times = times["encode"] if frozen else times.get("begin", [0.0] * len(times["encode"]))
    outside = _size(backbone) if frozen else 0
    parameters = outside + sum(p.numel() for p in learners["plain"].parameters() if p.requires_grad)
    rows = []
    for arm, arm_settings in arms.items():
        added = _size(learners[arm].hyperprior) - _size(learners["plain"].hyperprior)
        adapt, encoded = statistics.median(times[f"adapt {arm}"]), statistics.median(encode_times)
        compared = arm != "plain"
        extra = _increase(times[f"adapt {arm}"], times["adapt plain"], encode_times) if compared else None
        train, train_plain = times.get(f"train {arm}"), times.get("train plain")
        grown = _increase(train, train_plain) if compared and train and train_plain else None
        note = "time over a method that evaluates its queries once"
        if "adapt every epoch" in times and compared:
            fair = _increase(times[f"adapt {arm}"], times["adapt every epoch"])
            note += f"; {fair:+.1f} % over one that evaluates them at every epoch, as MAML was published"
        rows.append(
            TimedCost(
                system=arm_settings.title,
                backbone=name,
                parameters=parameters + added,
                e3bm_parameters=added,
                percent=round(100 * added / parameters, 4),
                note=note if compared else COUNTED[settings.backbone.adapt],
                epochs=learners[arm].epochs,
                encode_seconds=encoded,
                adapt_seconds=adapt,
                time_percent=extra,
                seconds_per_100_epochs=encoded + adapt * PER_EPOCHS / learners[arm].epochs,
                train_seconds=statistics.median(train) if train else None,
                train_time_percent=grown,
                memory_bytes=memory.get(arm),
                memory_percent=100 * (memory[arm] / memory["plain"] - 1) if compared and memory else None,
            )
        )
    encoded = statistics.median(times["encode"])
    heads = {
        "ProtoNets": ("prototypes", "nearest class mean"),
        "MatchNets": ("attention", "attention over the support"),
    }
    for system, (key, words) in heads.items():
        head, size = statistics.median(times[key]), _size(backbone)
        counted = (system, name, size, 0, 0.0, f"{words}, nothing is adapted", 0)
        rows.append(TimedCost(*counted, encoded, head, None, encoded + head, None, None, None, None))
    return rows


def _taking_turns(works: dict[str, Work], repeats: int, progress: Progress) -> dict[str, list[float]]:
    """CPU seconds of every work in every round, after one round to warm up."""
    progress.begin("time", repeats + 1)
    times: dict[str, list[float]] = {name: [] for name in works}
    gc.collect()
    gc.disable()  # a collection would land on one side by chance
    try:
        for turn in range(repeats + 1):
            for name, work in works.items():
                started = time.process_time()
                work()
                if turn:
                    times[name].append(time.process_time() - started)
            progress.advance(turn + 1)
    finally:
        gc.enable()
    progress.end()
    return times


def _increase(longer: list[float], shorter: list[float], shared: list[float] | None = None) -> float:
    """Percent of extra time: the median over rounds, in each of which both sides ran one after the other."""
    base = shared or [0.0] * len(shorter)
    return statistics.median(100 * (b - a) / (a + c) for a, b, c in zip(shorter, longer, base, strict=True))


def _input_shape(settings: TrainSettings) -> tuple[int, int]:
    """Channels and pixels, without the data at hand."""
    card = registered_sources()[registered_name(settings.data.dataset)]().card
    return card.channels, settings.data.image_size or card.image_size


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
