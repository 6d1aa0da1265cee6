"""Every method by its small preset: milliseconds a task at test and in training, and the authors' loops beside ours."""

import importlib.util
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.rows import Row, Table
from benchmarks.systems_reference import ctm_scores, egnn_scores, svm_scores
from benchmarks.timing import Work, compare, cpu_seconds
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import Learner, meta_loss
from e3bm.methods import METHODS, ReadyFeatures
from e3bm.methods.base import ReadyMaps
from e3bm.methods.ctm import Ctm
from e3bm.methods.egnn import Egnn
from e3bm.methods.egnn import Setting as Graph
from e3bm.methods.meta_opt_net import MetaOptNet
from e3bm.paper.presets import Preset, presets
from e3bm.runs.assembly import build_backbone, build_learner, ready_encoder
from e3bm.runs.settings import TrainSettings

WAYS, QUERIES, PIXELS, CLASSES = 5, 15, 32, 60
ELSEWHERE = Path("elsewhere")  # weights make no difference to time
FEATURES = 320
EARLY = 0.25  # share of the training that is over
LEARNED = 4  # tasks of ours at once with derivatives, which keep every layer of every graph


@dataclass(frozen=True, order=True)
class Form:
    """A way to use a method: in which variant, and with which hyperprior."""

    method: str
    variant: str
    """What the preset's name says beyond the method."""
    hyperprior: str
    """Empty for the method alone."""

    def title(self, train: TrainSettings) -> str:
        """The method's name, and the variant where that does not say it."""
        label = train.method.label
        return label if self.variant in label else f"{label}, {self.variant}"

    @property
    def psi(self) -> str:
        """The hyperprior in words."""
        return self.hyperprior.replace("lstm-", "LSTM, ") or "no"


def small_forms(shots: int) -> dict[Form, Preset]:
    """The small presets on FC100 that compute different things, each alone and with E3BM.

    Of several hyperpriors the first with an LSTM stands for all. Presets that differ in weights, in the classes of
    their training or in numbers take the same time, and the first of them is taken.
    """
    found: dict[Form, Preset] = {}
    seen = set()
    for name, preset in presets().items():
        if not name.startswith("small-") or preset.members > 1:
            continue
        word, place, kind = name.removeprefix("small-").partition(f"-fc100-{shots}shot")
        kind = kind.removeprefix("-").removeprefix("plain")
        if not place or not (kind == "" or kind.startswith("lstm-")):
            continue  # another data set or number of shots, an ablation, or another hyperprior
        computed = (what_is_computed(preset.train), bool(kind))
        if computed not in seen:
            seen.add(computed)
            found[Form(preset.train.method.name, word.partition("-")[2], kind)] = preset
    order = list(METHODS)
    return dict(sorted(found.items(), key=lambda each: (order.index(each[0].method), each[0])))


def what_is_computed(train: TrainSettings) -> str:
    """The settings on which the time of a task depends, whatever the hyperprior."""
    values = train.model_dump(mode="json", include={"method", "backbone", "episode"})
    method = {name: value for name, value in values["method"].items() if not isinstance(value, float)}
    for part, name in ((method, "start"), (values["backbone"], "pretrained"), (values["backbone"], "whitened")):
        part.pop(name, None)
    return json.dumps([method, values["backbone"], values["episode"], train.optimiser.tasks], sort_keys=True)


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
    settings = train if train.backbone.adapt == "full" else train.but(backbone__pretrained=ELSEWHERE)
    backbone = build_backbone(settings.backbone.but(pretrained=None), 3, PIXELS)
    learner = build_learner(settings, backbone, classes=CLASSES, image_size=PIXELS)
    if train.backbone.adapt != "frozen":
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


def measured(train: TrainSettings, shots: int, quick: bool) -> tuple[float, float | str]:
    """Milliseconds a task of a preset: answering, and training."""
    learner, shape = build(train)
    images = train.backbone.adapt != "frozen"
    repeats = 1 if quick else 2 if images else 3
    answered = answering_time(learner, tasks(1 if images else 16, shots, QUERIES, shape), repeats)
    own_shots = train.episode.shots if isinstance(train.episode.shots, int) else shots
    own = tasks(min(train.optimiser.tasks, 2 if quick else 16), own_shots, train.episode.queries, shape)
    return answered, training_time(learner, own, repeats)


def tables(quick: bool) -> list[Table]:
    """One line a form of a method; the preset says how many tasks are trained together, and on what."""
    measuring = (1,) if quick else (1, 5)
    known = {shots: small_forms(shots) for shots in measuring}
    lines: list[tuple[str | float, ...]] = []
    for form, preset in known[1].items():
        cells: list[float | str] = []
        for shots in measuring:
            cells += measured(known[shots][form].train, shots, quick)
        lines.append((form.title(preset.train), form.psi, fed(preset.train), *cells))
    shown = [f"{shots}-shot, {when}" for shots in measuring for when in ("test", "training")]
    about = (
        "Milliseconds of CPU time per task for the small presets on FC100, one thread: at test 15 queries (16 tasks of "
        "features or one of images together), in training the preset's episodes and meta-batches. Every method alone "
        "and, where it has inner epochs, with a hyperprior; presets that differ only in weights, classes or numbers "
        "take the same time and are not repeated. Images pass through the preset's half-width ResNet-12 or 4CONV; "
        "precomputed features do not."
    )
    return [Table("Every method", about, ("method", "E3BM", "takes", *shown), tuple(lines))]


def fed(train: TrainSettings) -> str:
    """What a learner is given for an example."""
    if train.backbone.adapt != "frozen":
        return "images"
    return "ready maps" if train.method.needs.takes == "maps" else "ready features"


Scores = Callable[[TaskBatch], Tensor]


@dataclass(frozen=True)
class Duel:
    """The authors' form of a method and ours: the same weights, tasks and scores [T Q W]."""

    name: str
    target: float
    plain: Scores
    ours: Scores
    weights: tuple[Tensor, ...]
    batch: TaskBatch
    plain_tasks: int = 1
    """How many tasks the plain side is given at once."""
    calls: int = 3
    """How often ours is called beside one call of the plain side: more than once where it is short."""

    def row(self, when: str, repeats: int) -> Row:
        """Times a task, of the scores alone or with the derivatives of their loss."""
        pass_of, count = (answer, len(self.batch)) if when == "forward" else (learn, min(len(self.batch), LEARNED))
        small = self.batch.tasks(0, min(self.plain_tasks, count))
        result = compare(
            partial(pass_of, self.plain, small, self.weights),
            partial(pass_of, self.ours, self.batch.tasks(0, count), self.weights),
            slow_units=len(small),
            fast_units=count,
            repeats=repeats,
            fast_calls=self.calls,
        )
        return Row.of(f"{self.name}, {when}, {self.batch.support.shape[1] // WAYS}-shot", result, self.target)


def answer(scores: Scores, batch: TaskBatch, weights: Sequence[Tensor]) -> None:
    """Forward, without gradients."""
    with torch.no_grad():
        scores(batch)


def learn(scores: Scores, batch: TaskBatch, weights: Sequence[Tensor]) -> list[Tensor | None]:
    """Forward and backward: derivatives of the loss by all weights, and by the examples, which an encoder needs."""
    support, query = batch.support.detach().requires_grad_(), batch.query.detach().requires_grad_()
    assert batch.query_labels is not None
    loss = meta_loss(scores(replace(batch, support=support, query=query)), batch.query_labels)
    return list(torch.autograd.grad(loss, [support, query, *weights], allow_unused=True))


def one_by_one(scores: Callable[[TaskBatch, int], Tensor]) -> Scores:
    """Scores of one task after the other."""
    return lambda batch: torch.stack([scores(batch, task) for task in range(len(batch))])


def egnn(shots: int, graph: Graph) -> tuple[Egnn, TaskBatch]:
    torch.manual_seed(0)
    method = Egnn(ReadyFeatures(FEATURES), setting=graph, hidden=48, embedding=64)
    return method.eval(), tasks(16, shots, QUERIES, (FEATURES,))


def ctm(shots: int) -> tuple[Ctm, TaskBatch]:
    torch.manual_seed(0)
    shape = (32, 4, 4)
    return Ctm(ReadyMaps(shape), 32, ways=WAYS, widths=(4, 4)).eval(), tasks(4, shots, QUERIES, shape)


def meta_opt_net(shots: int) -> tuple[MetaOptNet, TaskBatch]:
    return MetaOptNet(ReadyFeatures(FEATURES)).eval(), tasks(8, shots, QUERIES, (FEATURES,))


def duels(shots: int) -> Iterator[Duel]:
    """EGNN graph by graph, CTM example by example; MetaOptNet where the solver of its authors is installed."""
    graphs: tuple[tuple[Graph, float], ...] = (("inductive", 10.0), ("transductive", 1.0))
    for graph, target in graphs:
        method, batch = egnn(shots, graph)
        plain = one_by_one(partial(egnn_scores, method))
        yield Duel(f"EGNN, {graph}", target, plain, method.scores, tuple(method.parameters()), batch, calls=1)
    traversal, batch = ctm(shots)
    plain = one_by_one(partial(ctm_scores, traversal))
    yield Duel("CTM", 10.0, plain, traversal.scores, tuple(traversal.parameters()), batch)
    if importlib.util.find_spec("qpth") is not None:
        from qpth.qp import QPFunction

        svm, batch = meta_opt_net(shots)
        solved = lambda batch: svm(batch).scores
        plain = partial(svm_scores, svm, QPFunction(verbose=False))
        name = "MetaOptNet's SVM against qpth"
        yield Duel(name, 1.0, plain, solved, tuple(svm.parameters()), batch, plain_tasks=len(batch))


def rows(quick: bool) -> list[Row]:
    """The authors' loops against ours, without gradients and with them."""
    times = {"forward": 1 if quick else 5, "forward and backward": 1 if quick else 3}
    known = [duel for shots in ((1,) if quick else (1, 5)) for duel in duels(shots)]
    return [duel.row(when, repeats) for duel in known for when, repeats in times.items()]
