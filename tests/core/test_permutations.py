"""Order has no meaning: permuting tasks, queries, support or classes permutes the answers; and the exceptions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3bm.core.context import ClassMean, Context, Flat, Rms, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Generated
from e3bm.methods import Mtl, ReadyFeatures, Sib

FEATURES = 6
EQUIVARIANT = {
    "linear": lambda ways: (Mtl(ReadyFeatures(FEATURES), start="prototype"), 0.1),
    "cosine": lambda ways: (Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype"), 0.1),
    "sib": lambda ways: (Sib(ReadyFeatures(FEATURES), gradient_net="equivariant"), 0.01),
}
BOUND_TO_ORDER = {
    "learned start": lambda ways: (Mtl(ReadyFeatures(FEATURES), ways=ways), 0.1),
    "learned cosine start": lambda ways: (Mtl(ReadyFeatures(FEATURES), head="cosine", ways=ways), 0.1),
    "published net": lambda ways: (Sib(ReadyFeatures(FEATURES), ways=ways), 0.01),
}
CONTEXTS = {
    "stats": lambda ways: Context(Stats(transductive=True), transductive=True),
    "class_mean": lambda ways: Context(ClassMean(FEATURES), FEATURES, transductive=True),
    "rms": lambda ways: Context(Rms(FEATURES), FEATURES),
}


def learner(build, context, ways, epochs, lstm=True, seed=0):
    torch.manual_seed(seed)
    method, rate = build(ways)
    psi = LstmGenerator(context(ways), 2, hidden=2) if lstm else FcGenerator(context(ways), epochs, 2)
    values = [1.0 / (1 + epoch) for epoch in range(epochs)]
    model = MetaLearner(method, Hyperprior(Generated([rate] * epochs), Generated(values), psi), epochs).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "generator" in name:
                parameter.normal_(0, 0.1)
    return model


def batch(ways, shots, queries, seed):
    """``shots`` holds each task's shots of each class."""
    draw = torch.Generator().manual_seed(seed)
    longest = max(sum(each) for each in shots)
    labels = torch.zeros(len(shots), longest, dtype=torch.long)
    mask = torch.zeros(len(shots), longest, dtype=torch.bool)
    for task, each in enumerate(shots):
        real = torch.repeat_interleave(torch.arange(ways), torch.tensor(each))
        labels[task, : len(real)], mask[task, : len(real)] = real, True
    features = lambda count: torch.randn(len(shots), count, FEATURES, generator=draw, dtype=torch.float64)
    query_labels = torch.randint(ways, (len(shots), queries), generator=draw)
    return TaskBatch(features(longest), labels, features(queries), query_labels, ways, mask)


def of_tasks(given_batch, order):
    return TaskBatch(
        given_batch.support[order], given_batch.support_labels[order], given_batch.query[order],
        given_batch.query_labels[order], given_batch.ways, given_batch.mask[order],
    )  # fmt: skip


def of_queries(given_batch, order):
    return TaskBatch(
        given_batch.support, given_batch.support_labels, given_batch.query[:, order],
        given_batch.query_labels[:, order], given_batch.ways, given_batch.mask,
    )  # fmt: skip


def of_support(given_batch, order):
    return TaskBatch(
        given_batch.support[:, order], given_batch.support_labels[:, order], given_batch.query,
        given_batch.query_labels, given_batch.ways, given_batch.mask[:, order],
    )  # fmt: skip


def of_classes(given_batch, new_name):
    return TaskBatch(
        given_batch.support, new_name[given_batch.support_labels], given_batch.query,
        new_name[given_batch.query_labels], given_batch.ways, given_batch.mask,
    )  # fmt: skip


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@st.composite
def problems(draw):
    ways = draw(st.integers(2, 20))
    tasks = draw(st.integers(1, 3))
    one_shot = st.integers(1, 10)
    if draw(st.booleans()):
        shots = [[draw(one_shot) for _ in range(ways)] for _ in range(tasks)]
    else:
        shots = [[draw(one_shot)] * ways] * tasks
    return ways, shots, draw(st.integers(2, 12)), draw(st.integers(1, 4)), draw(st.integers(0, 10_000))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", EQUIVARIANT)
@given(problem=problems())
@settings(max_examples=8, deadline=None, derandomize=True)
def test_any_order_gives_the_same_answers(name, context, problem):
    ways, shots, queries, epochs, seed = problem
    model = learner(EQUIVARIANT[name], CONTEXTS[context], ways, epochs)
    tasks = batch(ways, shots, queries, seed)
    draw = torch.Generator().manual_seed(seed)
    shuffled = lambda count: torch.randperm(count, generator=draw)
    with torch.no_grad():
        scores = model(tasks).scores
        assert torch.isfinite(scores).all()
        order = shuffled(len(shots))
        close(model(of_tasks(tasks, order)).scores, scores[order])
        order = shuffled(queries)
        close(model(of_queries(tasks, order)).scores, scores[:, order])
        close(model(of_support(tasks, shuffled(tasks.support.shape[1]))).scores, scores)
        new_name = shuffled(ways)
        close(model(of_classes(tasks, new_name)).scores[..., new_name], scores)
        # A task alone is the task in company, and padding weighs nothing.
        real = tasks.mask[0]
        alone = TaskBatch(
            tasks.support[:1, real], tasks.support_labels[:1, real], tasks.query[:1], tasks.query_labels[:1], ways
        )
        close(model(alone).scores, scores[:1])


@pytest.mark.parametrize("name", BOUND_TO_ORDER)
@given(problem=problems())
@settings(max_examples=6, deadline=None, derandomize=True)
def test_what_is_bound_to_class_order_still_ignores_all_other_order(name, problem):
    ways, shots, queries, epochs, seed = problem
    model = learner(BOUND_TO_ORDER[name], CONTEXTS["stats"], ways, epochs)
    tasks = batch(ways, shots, queries, seed)
    with torch.no_grad():
        scores = model(tasks).scores
        order = torch.arange(len(shots)).flip(0)
        close(model(of_tasks(tasks, order)).scores, scores[order])
        order = torch.arange(queries).flip(0)
        close(model(of_queries(tasks, order)).scores, scores[:, order])


def differs_with_class_order(model, ways):
    tasks = batch(ways, [[2] * ways], 6, 3)
    new_name = torch.arange(ways).roll(1)
    with torch.no_grad():
        return float((model(of_classes(tasks, new_name)).scores[..., new_name] - model(tasks).scores).abs().max())


@pytest.mark.parametrize("name", BOUND_TO_ORDER)
def test_documented_exceptions_depend_on_class_order(name):
    assert differs_with_class_order(learner(BOUND_TO_ORDER[name], CONTEXTS["stats"], 4, 3), 4) > 1e-4


@pytest.mark.parametrize("lstm", [True, False], ids=["lstm", "fc"])
def test_the_flat_summary_depends_on_class_order(lstm):
    flat = lambda ways: Context(Flat(FEATURES, ways))
    assert differs_with_class_order(learner(EQUIVARIANT["cosine"], flat, 4, 3, lstm), 4) > 1e-4


def test_one_trained_hyperprior_serves_any_task():
    """Scalars know neither ways nor shots: the same parameters meet 2 ways and 20."""
    model = learner(EQUIVARIANT["sib"], CONTEXTS["stats"], 5, 3)
    for ways, shots in ((2, 1), (20, 10), (7, 3)):
        scores = model(batch(ways, [[shots] * ways], 8, 0)).scores
        assert scores.shape == (1, 8, ways)
        assert torch.isfinite(scores).all()
