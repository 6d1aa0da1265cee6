"""Awkward tasks are learned, impossible ones are refused in a sentence; nothing ever ends as a silent NaN."""

import pytest
import torch
from jaxtyping import config
from torch import nn

from e3bm.core.context import ClassMean, Context, Flat, Rms, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import InnerLoopMethod, MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Generated, LastOnly, Learned, equal_values
from e3bm.errors import DataError, DivergenceError, SettingsError
from e3bm.methods import Mtl, ReadyFeatures, Sib

FEATURES, WAYS, EPOCHS = 6, 3, 5
METHODS = {
    "linear learned": (lambda: Mtl(ReadyFeatures(FEATURES), ways=WAYS), 0.1),
    "linear prototype": (lambda: Mtl(ReadyFeatures(FEATURES), start="prototype"), 0.1),
    "cosine learned": (lambda: Mtl(ReadyFeatures(FEATURES), head="cosine", ways=WAYS), 0.1),
    "cosine prototype": (lambda: Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype"), 0.1),
    "sib published": (lambda: OpenSib(Sib(ReadyFeatures(FEATURES), ways=WAYS)), 1e-3),
    "sib equivariant": (lambda: OpenSib(Sib(ReadyFeatures(FEATURES), gradient_net="equivariant")), 1e-3),
}


class OpenSib(InnerLoopMethod):
    def __init__(self, sib):
        super().__init__()
        self.sib = sib

    def begin(self, batch):
        return self.sib.problem(batch, batch.support, batch.query)


def plain_features():
    draw = torch.Generator().manual_seed(0)
    support = torch.randn(2, 2 * WAYS, FEATURES, generator=draw)
    return support, torch.randn(2, 6, FEATURES, generator=draw)


def a_feature_that_is_always_zero():
    support, query = plain_features()
    support[..., 2] = 0
    return support, query


def features_that_are_zero_everywhere():
    support, query = plain_features()
    support[..., 2], query[..., 2] = 0, 0
    return support, query


def a_support_example_that_is_zero():
    support, query = plain_features()
    support[0, 1] = 0
    return support, query


def a_class_that_is_zero():
    support, query = plain_features()
    support[0, [1, 1 + WAYS]] = 0
    return support, query


def a_class_whose_mean_is_zero():
    support, query = plain_features()
    support[0, 1 + WAYS] = -support[0, 1]
    return support, query


def a_query_that_is_zero():
    support, query = plain_features()
    query[0, 0] = 0
    return support, query


def a_support_that_is_all_zero():
    support, query = plain_features()
    return torch.zeros_like(support), query


def the_same_example_for_every_class():
    support, query = plain_features()
    return support[:, :1].expand_as(support).clone(), query


def constant_examples():
    """Nothing is left of them after centring."""
    support, query = plain_features()
    return torch.full_like(support, 2.5), query


def tiny_features():
    support, query = plain_features()
    return 1e-6 * support, 1e-6 * query


AWKWARD = (
    a_feature_that_is_always_zero,
    features_that_are_zero_everywhere,
    a_support_example_that_is_zero,
    a_class_that_is_zero,
    a_class_whose_mean_is_zero,
    a_query_that_is_zero,
    a_support_that_is_all_zero,
    the_same_example_for_every_class,
    constant_examples,
    tiny_features,
)


def batch(support, query):
    labels = torch.arange(WAYS).repeat(2).expand(2, -1).contiguous()
    query_labels = torch.arange(WAYS).repeat(2).expand(2, -1).contiguous()
    return TaskBatch(support.requires_grad_(), labels, query.requires_grad_(), query_labels, WAYS)


def hyperprior(rate, summary, epochs=EPOCHS):
    torch.manual_seed(0)
    context = Context(Stats(transductive=True), transductive=True)
    if summary == "class_mean":
        context = Context(ClassMean(FEATURES), FEATURES)
    if summary == "rms":
        context = Context(Rms(FEATURES), FEATURES)
    psi = LstmGenerator(context, 2, hidden=2)
    nn.init.normal_(psi.readout[0], std=0.1)
    return Hyperprior(Generated([rate] * epochs), Generated(equal_values(epochs)), psi)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("summary", ["stats", "class_mean", "rms"])
@pytest.mark.parametrize("features", AWKWARD)
@pytest.mark.parametrize("name", METHODS)
def test_awkward_tasks_have_finite_scores_and_gradients(name, features, summary, dtype):
    torch.manual_seed(0)
    build, rate = METHODS[name]
    model = MetaLearner(build(), hyperprior(rate, summary), EPOCHS).to(dtype)
    tasks = batch(*(part.to(dtype) for part in features()))
    trace = model(tasks)
    assert torch.isfinite(trace.scores).all()
    assert torch.isfinite(trace.rates).all()
    meta_loss(trace.scores, tasks.query_labels).backward()
    for leaf in (tasks.support, tasks.query, *model.parameters()):
        assert leaf.grad is None or torch.isfinite(leaf.grad).all()


def test_nothing_is_learned_from_a_feature_that_the_support_does_not_have():
    """A linear head that starts from the support ignores it in the queries too."""
    build, rate = METHODS["linear prototype"]
    support, query = a_feature_that_is_always_zero()
    model = MetaLearner(build(), Hyperprior(Constant(rate), LastOnly()), EPOCHS)
    other = query.clone()
    other[..., 2] = 100.0
    assert torch.equal(model(batch(support, query)).scores, model(batch(support.detach(), other)).scores)


@pytest.mark.parametrize(
    ("name", "rate"), [("linear learned", 1e38), ("cosine prototype", 1e30), ("sib published", 1e36)]
)
def test_divergence_is_an_error_and_not_a_number(name, rate):
    build, _ = METHODS[name]
    model = MetaLearner(build(), Hyperprior(Constant(rate), LastOnly()), EPOCHS)
    support, query = plain_features()
    with pytest.raises(DivergenceError, match=r"scores of task 0 are not finite.*Rates reach 1e\+3.: lower the inner"):
        model(batch(1e3 * support, 1e3 * query))


def test_divergence_names_the_task_and_the_epoch():
    support, query = plain_features()
    support[1] *= 1e18
    model = MetaLearner(
        Mtl(ReadyFeatures(FEATURES), ways=WAYS), Hyperprior(Learned([1e3] * EPOCHS), LastOnly()), EPOCHS
    )
    with pytest.raises(DivergenceError, match=r"scores of task 1 are not finite; its training loss broke at epoch \d"):
        model(batch(support, query))


def test_epochs():
    tasks = batch(*plain_features())
    model = MetaLearner(Mtl(ReadyFeatures(FEATURES), ways=WAYS), Hyperprior(Learned([0.1] * 5), LastOnly()), 5)
    with pytest.raises(SettingsError, match="values for 5 epochs but 10 were asked for"):
        model(tasks, epochs=10)
    with pytest.raises(SettingsError, match="at least 1 epoch, found 0"):
        model(tasks, epochs=0)
    plain = MetaLearner(Mtl(ReadyFeatures(FEATURES), ways=WAYS), Hyperprior(Constant(0.1), LastOnly()), 5)
    assert plain(tasks, epochs=10).rates.shape == (2, 10)  # a plain method may be tested with more


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: Mtl(ReadyFeatures(FEATURES), ways=5), "learned initialiser"),
        (lambda: Mtl(ReadyFeatures(FEATURES), head="cosine", ways=5), "learned initialiser"),
        (lambda: Sib(ReadyFeatures(FEATURES), ways=5), "published synthetic-gradient net"),
    ],
)
def test_another_number_of_ways(build, why):
    model = MetaLearner(build(), Hyperprior(Constant(0.1), LastOnly()), 2)
    with pytest.raises(SettingsError, match=f"made for 5 ways because of its {why}, but the tasks have 3"):
        model(batch(*plain_features()))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Mtl(ReadyFeatures(FEATURES), head="quadratic"), "heads 'linear' and 'cosine'.*found quadratic"),
        (
            lambda: Mtl(ReadyFeatures(FEATURES), start="random"),
            "starts 'learned' and 'prototype'; found linear, random",
        ),
        (lambda: Sib(ReadyFeatures(FEATURES), gradient_net="deep"), "published, equivariant, counting, found 'deep'"),
    ],
)
def test_unknown_names(build, sentence):
    config.update("jaxtyping_disable", True)  # what users see
    try:
        with pytest.raises(SettingsError, match=sentence):
            build()
    finally:
        config.update("jaxtyping_disable", False)


def test_features_of_another_size():
    model = MetaLearner(Mtl(ReadyFeatures(7), ways=WAYS), Hyperprior(Constant(0.1), LastOnly()), 2)
    with pytest.raises(DataError, match=r"takes features \[tasks, examples, 7\]; found \(2, 6, 6\)"):
        model(batch(*plain_features()))


@pytest.mark.parametrize(
    ("context", "sentence"),
    [
        (Context(Stats(), embedding=4), "made for embeddings of 4 features, but the task's have 6"),
        (Context(ClassMean(4)), "made for gradients of 4 features, but the task's have 6"),
        (Context(Flat(4, WAYS)), "made for gradients of 4 features, but the task's have 6"),
        (Context(Rms(4)), "made for gradients of 4 features, but the task's have 6"),
        (Context(Flat(FEATURES, 5)), "flat summary is made for 5 ways, but the tasks have 3"),
    ],
)
def test_a_context_for_other_tasks(context, sentence):
    psi = FcGenerator(context, 2, 1)
    model = MetaLearner(Mtl(ReadyFeatures(FEATURES), ways=WAYS), Hyperprior(Generated([0.1] * 2), LastOnly(), psi), 2)
    with pytest.raises(SettingsError, match=sentence):
        model(batch(*plain_features()))


def batch_of(support, query):
    labels = torch.arange(WAYS).repeat(len(support), support.shape[1] // WAYS)
    return TaskBatch(support, labels, query, None, WAYS)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double])
@pytest.mark.parametrize("name", METHODS)
def test_features_of_another_precision_are_refused_in_a_sentence(name, dtype):
    make, rate = METHODS[name]
    learner = MetaLearner(make(), Hyperprior(Learned([rate] * EPOCHS), Learned(equal_values(EPOCHS))), EPOCHS)
    support, query = (features.to(dtype) for features in plain_features())
    with pytest.raises(DataError, match=rf"The tasks are {dtype} and the learner is torch\.float32"):
        learner(batch_of(support, query))


def test_whole_numbers_and_empty_queries_are_refused_in_a_sentence():
    support, query = plain_features()
    config.update("jaxtyping_disable", True)  # what users see
    try:
        refuse(support, query)
    finally:
        config.update("jaxtyping_disable", False)


def refuse(support, query):
    for one, other in ((support.long(), query.long()), (support, query.double()), (support.half(), query)):
        with pytest.raises(DataError, match="must be floating-point numbers of one type"):
            batch_of(one, other)
    with pytest.raises(DataError, match="nothing to predict"):
        batch_of(support, query[:, :0])
