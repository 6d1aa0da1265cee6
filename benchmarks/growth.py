"""How cost grows: head rows of the target table, and curves over M, T, d, shots and image size."""

import statistics
from dataclasses import dataclass

import torch

from benchmarks.heads import FEATURES, learner, tasks_of_features
from benchmarks.maml import learner as maml_learner
from benchmarks.maml import our_step, tasks_of_images
from benchmarks.memory import peak_megabytes
from benchmarks.rows import Row, Table
from benchmarks.sib import detached
from benchmarks.timing import Work, relative_spread, taking_turns
from e3bm.core.adapt import adapt
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import MetaLearner

FEW_EPOCHS, MANY_EPOCHS = 50, 200
NARROW, WIDE = 160, 2560
TASKS = 16
LIMIT, MEMORY_LIMIT = 1.1, 1.05


@dataclass(frozen=True)
class Size:
    """A point of a curve; the published size where nothing is said."""

    epochs: int = 100
    tasks: int = TASKS
    features: int = FEATURES
    shots: int = 1

    def batch(self) -> TaskBatch:
        """Tasks of that size."""
        return detached(tasks_of_features(self.tasks, self.shots, features=self.features))

    def model(self) -> MetaLearner:
        """The cosine head with an LSTM hyperprior, whose own size does not depend on M."""
        return learner("cosine", "lstm", features=self.features, epochs=self.epochs)


def loop(size: Size) -> Work:
    """The epochs of tasks that are already in Gram form, at test time; the hyperprior is projected inside."""
    model = size.model()
    with torch.no_grad():
        problem = model.method.begin(size.batch())
        # What is read of a task once has the size of its features; the loop itself has not.
        bound = model.hyperprior.bind(problem.basis(), size.epochs)

    class Ready:
        """A hyperprior that has seen its tasks."""

        @staticmethod
        def bind(basis: object, epochs: int) -> object:
            return bound

    return torch.no_grad()(lambda: adapt(problem, Ready(), size.epochs))  # type: ignore[arg-type]


def whole_test(size: Size) -> Work:
    """From features to scores."""
    model, batch = size.model(), size.batch()
    return torch.no_grad()(lambda: model(batch))


def training(size: Size) -> Work:
    """Meta-gradients."""
    return our_step(size.model(), size.batch())


def prediction(size: Size) -> Work:
    """Scores of new examples by the collapsed ensemble."""
    model, batch = size.model(), size.batch()
    with torch.no_grad():
        problem = model.method.begin(batch)
        _, ensemble = model.adapt(batch)
        head = problem.collapse(ensemble)  # type: ignore[attr-defined]
    return torch.no_grad()(lambda: [head.scores(batch.query) for _ in range(20)])


def _ratio(name: str, few: Work, many: Work, factor: float, limit: float, repeats: int) -> Row:
    times = taking_turns({"few": few, "many": many}, repeats)
    few_ms, many_ms = (1e3 * statistics.median(found) for found in (times["few"], times["many"]))
    pairs = [b / a / factor for a, b in zip(times["few"], times["many"], strict=True)]
    spread = relative_spread(pairs, many_ms / few_ms / factor)
    return Row.at_most(name, many_ms, few_ms * factor, limit, "ms", spread=spread)


def rows(quick: bool) -> list[Row]:
    """Flat in d, linear in M, memory at test flat in M, prediction independent of M."""
    repeats = 3 if quick else 9
    few, many = Size(epochs=FEW_EPOCHS), Size(epochs=MANY_EPOCHS)
    found = [
        _ratio(f"Gram loop: d = {WIDE} over d = {NARROW}",
               loop(Size(features=NARROW)), loop(Size(features=WIDE)), 1.0, LIMIT, repeats),
        _ratio(f"Gram loop: M = {MANY_EPOCHS} over {MANY_EPOCHS // FEW_EPOCHS} times M = {FEW_EPOCHS}",
               loop(few), loop(many), MANY_EPOCHS / FEW_EPOCHS, LIMIT, repeats),
        _ratio(f"prediction after adaptation: M = {MANY_EPOCHS} over M = {FEW_EPOCHS}",
               prediction(few), prediction(many), 1.0, LIMIT, 3 * repeats),
    ]  # fmt: skip
    memory = [peak_megabytes(whole_test(size)) for size in (few, many)]
    name = f"memory at test time: M = {MANY_EPOCHS} over M = {FEW_EPOCHS}"
    return [*found, Row.at_most(name, memory[1], memory[0], MEMORY_LIMIT, "MB")]


def tables(quick: bool) -> list[Table]:
    """Curves, one thing changed at a time."""
    curves: dict[str, list[tuple[str, Size]]] = {
        "epochs M": [(str(m), Size(epochs=m)) for m in (25, 50, 100, 200, 400)],
        "tasks T": [(str(t), Size(tasks=t)) for t in (1, 4, 16, 64)],
        "features d": [(str(d), Size(features=d)) for d in (160, 640, 2560)],
        "shots": [(str(k), Size(shots=k)) for k in (1, 5, 20)],
    }
    repeats, lines = 1 if quick else 3, []
    for what, points in curves.items():
        for value, size in points[:2] if quick else points:
            works = {"loop": loop(size), "test": whole_test(size), "training": training(size)}
            times = {name: statistics.median(found) for name, found in taking_turns(works, repeats).items()}
            memory = [peak_megabytes(works[name]) for name in ("test", "training")]
            per_task = [1e3 * times[name] / size.tasks for name in works]
            lines.append((what, value, *per_task, *memory))
    heads = Table(
        "Growth of the cosine head with an LSTM hyperprior",
        f"M = 100, T = {TASKS}, d = {FEATURES}, 1-shot unless stated otherwise; CPU time per task, "
        "peak megabytes of a call.",
        ("changed", "to", "loop alone, ms", "test, ms", "training step, ms", "test, MB", "training step, MB"),
        tuple(lines),
    )
    return [heads, _maml_growth(quick)]


def _maml_growth(quick: bool) -> Table:
    lines: list[tuple[str | float, ...]] = []
    for size, shots in ((16, 1),) if quick else ((32, 1), (48, 1), (64, 1), (84, 1), (32, 5), (32, 10)):
        batch, model = tasks_of_images(size, shots), maml_learner(size)
        seconds = statistics.median(taking_turns({"step": our_step(model, batch)}, 1 if quick else 3)["step"])
        lines.append((size, shots, 1e3 * seconds, peak_megabytes(our_step(model, batch)), 1e9 * seconds / size**2))
    return Table(
        "Growth of a MAML training step",
        "4CONV-32, 5 second-order steps, 75 queries, one task; the last column is flat where cost follows the pixels.",
        ("pixels of a side", "shots", "ms", "peak MB", "ns a pixel of a side squared"),
        tuple(lines),
    )
