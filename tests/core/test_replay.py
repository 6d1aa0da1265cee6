"""First order: one differentiable pass over all epochs is the loop with its graph, scores and gradients (float64)."""

import pytest
import torch

import e3bm.core.adapt
from e3bm.core.context import ClassMean, Context, Flat, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly, Learned
from e3bm.methods import Mtl, ReadyFeatures, Sib

FEATURES, WAYS, EPOCHS = 6, 3, 5
HEADS = {
    "linear": lambda: Mtl(ReadyFeatures(FEATURES), ways=WAYS, second_order=False),
    "cosine": lambda: Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype", ways=WAYS, second_order=False),
    "cosine learned": lambda: Mtl(ReadyFeatures(FEATURES), head="cosine", ways=WAYS, second_order=False),
    "sib": lambda: Sib(ReadyFeatures(FEATURES), ways=WAYS, second_order=False),
}
GENERATORS = {
    "fc": lambda: FcGenerator(Context(ClassMean(FEATURES), embedding=FEATURES), EPOCHS, 2),
    "fc, one": lambda: FcGenerator(Context(Flat(FEATURES, WAYS)), EPOCHS, 1),
    "lstm": lambda: LstmGenerator(Context(Stats(), embedding=FEATURES), 2, hidden=3),
    "lstm, bare": lambda: LstmGenerator(Context(ClassMean(FEATURES)), 2, hidden=1, readout=False, separate=True),
}


def second_order():
    return Mtl(ReadyFeatures(FEATURES), ways=WAYS, second_order=True)


def batch(tasks=4):
    draw = torch.Generator().manual_seed(0)
    features = lambda count: torch.randn(tasks, count, FEATURES, generator=draw, dtype=torch.float64)
    labels = torch.arange(WAYS).repeat(2).expand(tasks, -1).contiguous()
    query = torch.randint(WAYS, (tasks, 7), generator=draw)
    return TaskBatch(features(2 * WAYS).requires_grad_(), labels, features(7).requires_grad_(), query, WAYS)


def outcome(learner, tasks):
    trace = learner(tasks)
    leaves = [tasks.support, tasks.query, *learner.parameters()]
    loss = meta_loss(trace.scores, tasks.query_labels) + trace.rates.square().sum() + trace.weights.square().sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [trace.scores, trace.rates, trace.weights, trace.losses, *gradients]


def check(learner, monkeypatch):
    learner, tasks, calls = learner.double(), batch(), []
    with torch.no_grad():
        for name, parameter in learner.hyperprior.named_parameters():
            if "generator" in name:
                parameter.normal_(0, 0.1)
    replay = e3bm.core.adapt._replay
    monkeypatch.setattr(e3bm.core.adapt, "_replay", lambda *inputs: calls.append(1) or replay(*inputs))
    found = outcome(learner, tasks)
    assert calls, "the pass over all epochs was not used"
    monkeypatch.setattr(e3bm.core.adapt, "ReplayableProblem", type("Nothing", (), {}))
    expected = outcome(learner, tasks)
    assert len(calls) == 1
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mixing", ["residual", "scaled"])
@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("head", HEADS)
def test_one_pass_is_the_loop(head, generator, mixing, monkeypatch):
    torch.manual_seed(0)
    both = generator != "fc, one"
    weight = Generated([0.3, 0.1, 0.2, 0.4, 0.6]) if both else Learned([0.3, 0.1, 0.2, 0.4, 0.6])
    psi = Hyperprior(
        Generated([0.1] * EPOCHS),
        weight,
        GENERATORS[generator](),
        mixing=mixing,
        fractions=(0.1, 0.1),
        constrained=True,
    )
    check(MetaLearner(HEADS[head](), psi, EPOCHS), monkeypatch)


@pytest.mark.parametrize("head", HEADS)
def test_learned_and_equal_schedules_too(head, monkeypatch):
    torch.manual_seed(0)
    check(MetaLearner(HEADS[head](), Hyperprior(Learned([0.1] * EPOCHS), Equal()), EPOCHS), monkeypatch)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda learner, tasks: learner(tasks, every_epoch=True),
        lambda learner, tasks: torch.no_grad()(learner)(tasks),
        lambda learner, tasks: MetaLearner(learner.method, Hyperprior(Constant(0.1), LastOnly()).double(), EPOCHS)(
            tasks
        ),
        lambda learner, tasks: MetaLearner(second_order(), learner.hyperprior, EPOCHS).double()(tasks),
    ],
    ids=["single epochs", "no gradients", "one vote", "second order"],
)
def test_elsewhere_the_loop_stays(prepare, monkeypatch):
    torch.manual_seed(0)
    learner = MetaLearner(HEADS["cosine"](), Hyperprior(Learned([0.1] * EPOCHS), Equal()), EPOCHS).double()
    monkeypatch.setattr(e3bm.core.adapt, "_replay", lambda *inputs: pytest.fail("a pass over all epochs"))
    prepare(learner, batch())
