"""The SIB row: query-Gram form at 64 tasks against one task at a time; 5-way, 3 steps, d = 640, 75 queries."""

import torch
from torch.nn import functional

from benchmarks.heads import FEATURES, WAYS, tasks_of_features
from benchmarks.rows import Row
from benchmarks.sib_reference import Layer, ReferenceSib
from benchmarks.timing import Work, compare
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods import ReadyFeatures, Sib
from e3bm.methods.sib import PublishedNet

EPOCHS, RATE, TASKS, TARGET = 3, 1e-3, 64, 5.0
FEW_TASKS = 16  # of the plain side in a call: one alone would find its caches full of the other side's work


def learner(features: int = FEATURES, hyperprior: Hyperprior | None = None) -> MetaLearner:
    """SIB as published, alone or with a hyperprior."""
    torch.manual_seed(0)
    method = Sib(ReadyFeatures(features), ways=WAYS)
    return MetaLearner(method, hyperprior or Hyperprior(Constant(RATE), LastOnly()), EPOCHS)


def reference(ours: MetaLearner) -> ReferenceSib:
    """The plain loop with the same parameters."""
    method = ours.method
    assert isinstance(method, Sib)
    net = method.gradient_net
    assert isinstance(net, PublishedNet)
    assert method.initial_weight is not None
    layers = (
        Layer(net.first.weight, net.first.bias, net.first_norm.weight, net.first_norm.bias),
        Layer(net.second.weight, net.second.bias, net.second_norm.weight, net.second_norm.bias),
        Layer(net.third.weight, net.third.bias),
    )
    return ReferenceSib(layers, method.initial_weight, method.scale, method.bias, RATE, EPOCHS)


def sides(shots: int, tasks: int) -> tuple[Work, Work]:
    """Meta-gradients of a few tasks the plain way, one after another, and of all tasks in one call."""
    batch = detached(tasks_of_features(tasks, shots))
    assert batch.query_labels is not None
    labels, model = batch.query_labels, learner()
    plain, parameters = reference(model), list(model.parameters())

    def slow() -> None:
        for task in range(min(tasks, FEW_TASKS)):
            scores = plain.scores(batch.support[task], batch.support_labels[task], batch.query[task], WAYS)
            torch.autograd.grad(functional.cross_entropy(scores, labels[task]), parameters)

    return slow, lambda: torch.autograd.grad(meta_loss(model(batch).scores, labels), parameters)


def detached(batch: TaskBatch) -> TaskBatch:
    """The same tasks as constants: SIB's encoder is frozen."""
    return TaskBatch(
        batch.support.detach(), batch.support_labels, batch.query.detach(), batch.query_labels, batch.ways
    )  # fmt: skip


def rows(quick: bool) -> list[Row]:
    """Forward and backward at 64 tasks."""
    found = []
    for shots in (1,) if quick else (1, 5):
        slow, fast = sides(shots, TASKS)
        result = compare(slow, fast, slow_units=FEW_TASKS, fast_units=TASKS, repeats=3 if quick else 11)
        found.append(Row.of(f"SIB, forward and backward, {shots}-shot, T={TASKS}", result, TARGET))
    return found
