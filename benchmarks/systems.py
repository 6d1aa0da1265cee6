"""Every method by its small preset: milliseconds a task at test and in training, and the authors' loops beside ours."""

import importlib.util
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.rows import Row, Table
from benchmarks.systems_reference import ctm_scores, egnn_scores, svm_scores
from benchmarks.timing import Work, compare, cpu_seconds
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import Learner
from e3bm.methods import METHODS, ReadyFeatures
from e3bm.methods.base import ReadyMaps
from e3bm.methods.ctm import Ctm
from e3bm.methods.egnn import Egnn
from e3bm.methods.meta_opt_net import MetaOptNet
from e3bm.paper.presets import Preset, presets
from e3bm.runs.assembly import build_backbone, build_learner, ready_encoder
from e3bm.runs.settings import TrainSettings

WAYS, QUERIES, PIXELS, CLASSES = 5, 15, 32, 60
ELSEWHERE = Path("elsewhere")  # weights make no difference to time
FEATURES = 320
EARLY = 0.25  # share of the training that is over


def small_presets(shots: int) -> dict[str, Preset]:
    """The first small preset on FC100 of every method, alone."""
    found: dict[str, Preset] = {}
    for name, preset in presets().items():
        alone = preset.members == 1 and not preset.train.hyperprior.generated and "-ablation" not in name
        if name.startswith("small-") and f"-fc100-{shots}shot" in name and alone:
            found.setdefault(preset.train.method.name, preset)
    return {name: found[name] for name in METHODS if name in found}


def tasks(
    count: int, shots: int, queries: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> TaskBatch:
    """Random examples around random centres; query classes have numbers, as some losses need them."""
    torch.manual_seed(0)
    centres = torch.randn(count, WAYS, *shape)
    examples = lambda number: (centres.repeat_interleave(number, 1) + torch.randn(count, WAYS * number, *shape)).to(
        dtype
    )
    labels = lambda number: torch.arange(WAYS).repeat_interleave(number).expand(count, -1).contiguous()
    known, asked = labels(shots), labels(queries)
    return TaskBatch(examples(shots), known, examples(queries), asked, WAYS, support_classes=known, query_classes=asked)


def build(train: TrainSettings) -> tuple[Learner, tuple[int, ...]]:
    """The learner of a preset with weights of no meaning, and the shape of what it is given for an example."""
    frozen = train.backbone.adapt != "full"
    settings = train.but(backbone__pretrained=ELSEWHERE) if frozen else train
    backbone = build_backbone(settings.backbone.but(pretrained=None), 3, PIXELS)
    learner = build_learner(settings, backbone, classes=CLASSES, image_size=PIXELS)
    if not frozen:
        return learner, (3, PIXELS, PIXELS)
    ready = ready_encoder(settings, backbone, PIXELS)
    return learner, ready.shape if isinstance(ready, ReadyMaps) else (backbone.feature_size,)


def milliseconds(work: Work, count: int, repeats: int) -> float:
    """Median CPU time of a task."""
    work()
    return 1e3 * statistics.median(cpu_seconds(work) for _ in range(repeats)) / count


def answering_time(learner: Learner, batch: TaskBatch, repeats: int) -> float:
    """Answering, without gradients."""
    learner.eval()
    return milliseconds(torch.no_grad()(partial(learner, batch)), len(batch), repeats)


def training_time(learner: Learner, batch: TaskBatch, repeats: int) -> float | str:
    """Forward, loss and backward; a word where nothing is trained."""
    learner.train()
    learner.method.at(EARLY)  # it may say what is trained
    trained = [parameter for parameter in learner.parameters() if parameter.requires_grad]
    if not trained:
        return "nothing to train"

    def step() -> None:
        trace = learner(batch)
        torch.autograd.grad(learner.training_loss(trace, batch, EARLY), trained, allow_unused=True)

    return milliseconds(step, len(batch), repeats)


def tables(quick: bool) -> list[Table]:
    """One line a method; the preset says how many tasks are trained together, and on what."""
    lines = []
    known = {shots: small_presets(shots) for shots in (1, 5)}
    for name in known[1]:
        cells: list[str | float] = []
        for shots in (1,) if quick else (1, 5):
            train = known[shots][name].train
            learner, shape = build(train)
            images = len(shape) == 3 and shape[0] == 3
            batch = tasks(2 if images else 16, shots, QUERIES, shape)
            cells.append(answering_time(learner, batch, 1 if quick else 3))
            own_shots = train.episode.shots if isinstance(train.episode.shots, int) else shots
            own = tasks(min(train.optimiser.tasks, 2 if quick else 16), own_shots, train.episode.queries, shape)
            cells.append(training_time(learner, own, 1 if quick else 3))
        train = known[1][name].train
        fed = (
            "images"
            if train.backbone.adapt == "full"
            else "ready maps"
            if train.method.needs.takes == "maps"
            else "ready features"
        )
        lines.append((train.title, fed, *cells))
    shown = [f"{shots}-shot, {when}" for shots in ((1,) if quick else (1, 5)) for when in ("test", "training")]
    about = (
        "Milliseconds of CPU time per task for each method's small preset on FC100, one thread: at test 15 queries (16 "
        "tasks of features or 2 of images together), in training the preset's episodes and meta-batches. Images pass "
        "through the preset's half-width ResNet-12 or 4CONV; precomputed features do not."
    )
    return [Table("Every method", about, ("method", "takes", *shown), tuple(lines))]


def egnn(shots: int, graph: str) -> tuple[Egnn, TaskBatch]:
    torch.manual_seed(0)
    method = Egnn(ReadyFeatures(FEATURES), setting=graph, hidden=48, embedding=64)  # type: ignore[arg-type]
    return method.eval(), tasks(16, shots, QUERIES, (FEATURES,))


def ctm(shots: int) -> tuple[Ctm, TaskBatch]:
    torch.manual_seed(0)
    shape = (32, 4, 4)
    return Ctm(ReadyMaps(shape), 32, ways=WAYS, widths=(4, 4)).eval(), tasks(4, shots, QUERIES, shape)


def meta_opt_net(shots: int) -> tuple[MetaOptNet, TaskBatch]:
    return MetaOptNet(ReadyFeatures(FEATURES)).eval(), tasks(8, shots, QUERIES, (FEATURES,))


def rows(quick: bool) -> list[Row]:
    """The authors' loops against ours, without gradients; MetaOptNet where the solver of its authors is installed."""
    found, repeats = [], 1 if quick else 5
    quiet = torch.no_grad()
    for shots in (1,) if quick else (1, 5):
        for graph, target in (("inductive", 10.0), ("transductive", 1.0)):
            method, batch = egnn(shots, graph)
            slow: Callable[[], Tensor] = partial(egnn_scores, method, batch, 0)
            result = compare(quiet(slow), quiet(partial(method.scores, batch)), fast_units=len(batch), repeats=repeats)
            found.append(Row.of(f"EGNN, {graph}, forward, {shots}-shot", result, target))
        traversal, batch = ctm(shots)
        slow = partial(ctm_scores, traversal, batch, 0)
        result = compare(quiet(slow), quiet(partial(traversal.scores, batch)), fast_units=len(batch), repeats=repeats)
        found.append(Row.of(f"CTM, forward, {shots}-shot", result, 10.0))
        if importlib.util.find_spec("qpth") is not None:
            from qpth.qp import QPFunction

            svm, batch = meta_opt_net(shots)
            slow = partial(svm_scores, svm, QPFunction(verbose=False), batch)
            count = len(batch)
            result = compare(
                quiet(slow), quiet(partial(svm, batch)), slow_units=count, fast_units=count, repeats=repeats
            )
            found.append(Row.of(f"MetaOptNet's SVM against qpth, forward, {shots}-shot", result, 1.0))
    return found
