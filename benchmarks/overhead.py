"""What E3BM costs over the method alone: MTL and SIB end to end with a backbone, the hyperprior alone on MAML.

Encoding takes a thousand times longer than the hyperprior: were whole runs compared, the difference would drown in the
encoder's noise. Encoding is timed by itself, the loops of both arms are timed in turn, and the sums are compared.
"""

import statistics
from collections.abc import Callable

import torch

from benchmarks.backbone import IMAGE_SIZE, backbone, our_features
from benchmarks.heads import FEATURES, QUERIES, TEMPERATURE, WAYS, tasks_of_features
from benchmarks.maml import EPOCHS as MAML_EPOCHS
from benchmarks.maml import RATE as MAML_RATE
from benchmarks.maml import learner as maml_learner
from benchmarks.maml import our_step, tasks_of_images
from benchmarks.rows import Row, Table
from benchmarks.sib import EPOCHS as SIB_EPOCHS
from benchmarks.sib import RATE as SIB_RATE
from benchmarks.sib import detached
from benchmarks.sib import learner as sib_learner
from benchmarks.timing import Work, cpu_seconds, relative_spread, taking_turns
from e3bm.core.context import ClassMean, Context, Rms, Summary
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly, equal_values
from e3bm.methods import Mtl, ReadyFeatures

MTL_LIMIT, SIB_LIMIT, MAML_LIMIT = 1.01, 1.02, 1.03
MTL_EPOCHS, MTL_RATE = 100, 0.1


def published_psi(summary: Summary, embedding: int, rate: float, epochs: int, *, transductive: bool) -> Hyperprior:
    """The LSTM hyperprior as published, for alpha and v."""
    context = Context(summary, embedding=embedding, transductive=transductive)
    generator = LstmGenerator(context, 2, hidden=1, readout=False, separate=True)
    return Hyperprior(Generated([rate] * epochs), Generated(equal_values(epochs)), generator, mixing="residual")


def mtl_arms() -> dict[str, MetaLearner]:
    """MTL with the cosine head, alone and with E3BM."""
    psi = published_psi(ClassMean(FEATURES), FEATURES, MTL_RATE, MTL_EPOCHS, transductive=False)
    arms = {}
    for name, hyperprior in {"alone": Hyperprior(Constant(MTL_RATE), LastOnly()), "E3BM": psi}.items():
        torch.manual_seed(0)
        method = Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype", ways=WAYS, temperature=TEMPERATURE)
        arms[name] = MetaLearner(method, hyperprior, MTL_EPOCHS)
    return arms


def sib_arms() -> dict[str, MetaLearner]:
    """SIB alone and with E3BM."""
    psi = published_psi(ClassMean(FEATURES), FEATURES, SIB_RATE, SIB_EPOCHS, transductive=True)
    return {"alone": sib_learner(), "E3BM": sib_learner(hyperprior=psi)}


def maml_arms(image_size: int) -> dict[str, MetaLearner]:
    """MAML that answers its queries once, MAML that answers after every step, and MAML with E3BM."""
    positions = (image_size // 16) ** 2
    psi = published_psi(Rms(32 * positions, positions), 32, MAML_RATE, MAML_EPOCHS, transductive=False)
    priors = {"queries once": Hyperprior(Constant(MAML_RATE), LastOnly())}
    priors |= {"queries at every step": Hyperprior(Constant(MAML_RATE), Equal()), "E3BM": psi}
    return {name: maml_learner(image_size, hyperprior=prior) for name, prior in priors.items()}


def at_test(model: MetaLearner, batch: TaskBatch) -> Work:
    """Adaptation and prediction."""
    return torch.no_grad()(lambda: model(batch))


def head_step(model: MetaLearner, batch: TaskBatch) -> Work:
    """Meta-gradients of everything that is trained, and of the features."""
    assert batch.query_labels is not None
    labels, wanted = batch.query_labels, [batch.support, batch.query, *model.parameters()]
    return lambda: torch.autograd.grad(meta_loss(model(batch).scores, labels), wanted, allow_unused=True)


def encode_seconds(quick: bool) -> float:
    """CPU seconds to encode a 1-shot task of 84 pixels by ResNet-12, as `e3bm test` does; from a part of its images."""
    size, images = (32, 4) if quick else (IMAGE_SIZE, 20)
    features, pictures = our_features(backbone(size)), torch.rand(images, 3, size, size)
    work = lambda: features(pictures)
    work()
    return statistics.median(cpu_seconds(work) for _ in range(1 if quick else 3)) * (WAYS + QUERIES) / images


def _end_to_end(name: str, arms: dict[str, MetaLearner], limit: float, encoding: float, repeats: int) -> Row:
    batch = detached(tasks_of_features(1, 1))
    times = taking_turns({arm: at_test(model, batch) for arm, model in arms.items()}, repeats)
    return _row(name, times["E3BM"], times["alone"], encoding, limit)


def _row(name: str, ours: list[float], alone: list[float], encoding: float, limit: float) -> Row:
    both = [1e3 * (encoding + statistics.median(found)) for found in (ours, alone)]
    pairs = [(encoding + a) / (encoding + b) for a, b in zip(ours, alone, strict=True)]
    return Row.at_most(name, *both, limit, "ms", spread=relative_spread(pairs, both[0] / both[1]))


def rows(quick: bool) -> list[Row]:
    """The three overheads of the target table."""
    encoding, repeats = encode_seconds(quick), 3 if quick else 21
    found = [
        _end_to_end(
            "E3BM over MTL alone: a test task with ResNet-12 at 84 px", mtl_arms(), MTL_LIMIT, encoding, repeats
        ),
        _end_to_end(
            "E3BM over SIB alone: a test task with ResNet-12 at 84 px", sib_arms(), SIB_LIMIT, encoding, repeats
        ),
    ]
    batch = tasks_of_images(32, 1)
    arms = maml_arms(32)
    works = {name: our_step(arms[name], batch) for name in ("queries at every step", "E3BM")}
    times = taking_turns(works, 3 if quick else 15)
    name = "the hyperprior alone on MAML: training step, 32 px, 1-shot, over MAML with queries at every step"
    return [*found, _row(name, times["E3BM"], times["queries at every step"], 0.0, MAML_LIMIT)]


def tables(quick: bool) -> list[Table]:
    """Every method without its backbone, and MAML against both baselines."""
    lines: list[tuple[str | float, ...]] = []
    for shots in (1,) if quick else (1, 5):
        lines += _head_lines("MTL, on features", mtl_arms(), shots, 1 if quick else 9)
        lines += _head_lines("SIB, on features", sib_arms(), shots, 1 if quick else 15)
        for size in (32,) if quick or shots > 1 else (32, 84):
            lines += _maml_lines(size, shots, 1 if quick or size > 32 else 7)
    about = (
        "Time with E3BM divided by time without it, on features or, for MAML, with the whole network. A MAML that "
        "answers its queries once, after the last step, makes M - 1 fewer query passes than any ensemble of its "
        "epochs; the original code answers after every step, and compared with that only the hyperprior is added."
    )
    return [
        Table(
            "Cost of E3BM without a backbone to hide it",
            about,
            ("method", "shots", "tasks", "work", "over", "ratio"),
            tuple(lines),
        )
    ]


def _head_lines(name: str, arms: dict[str, MetaLearner], shots: int, repeats: int) -> list[tuple[str | float, ...]]:
    lines: list[tuple[str | float, ...]] = []
    for tasks in (1, 64):
        batch = tasks_of_features(tasks, shots)
        kinds: dict[str, Callable[[MetaLearner, TaskBatch], Work]] = {"test": at_test, "training step": head_step}
        for kind, work in kinds.items():
            times = taking_turns({arm: work(model, batch) for arm, model in arms.items()}, repeats)
            ratio = statistics.median(times["E3BM"]) / statistics.median(times["alone"])
            lines.append((name, shots, tasks, kind, "the method alone", ratio))
    return lines


def _maml_lines(size: int, shots: int, repeats: int) -> list[tuple[str | float, ...]]:
    batch, arms = tasks_of_images(size, shots), maml_arms(size)
    times = taking_turns({arm: our_step(model, batch) for arm, model in arms.items()}, repeats)
    medians = {arm: statistics.median(found) for arm, found in times.items()}
    return [
        (f"MAML, {size} px", shots, 1, "training step", f"MAML, {other}", medians["E3BM"] / medians[other])
        for other in ("queries once", "queries at every step")
    ]
