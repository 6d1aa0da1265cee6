"""A baseline is the same loop: constant rate, last vote. Bit for bit what a loop without any ensemble computes."""

import dspace_reference as slow
import pytest
import torch

from e3bm.core.adapt import adapt
from e3bm.core.context import ClassMean, Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Constant, Frozen, Generated, LastOnly, Learned, last_values
from e3bm.methods import Mtl, ReadyFeatures, Sib
from e3bm.methods.heads.cosine import CosineState

FEATURES, WAYS, SHOTS, QUERIES, EPOCHS = 16, 5, 2, 15, 100
METHODS = {
    "linear": (lambda second: Mtl(ReadyFeatures(FEATURES), second_order=second), 0.01),
    "linear prototype": (lambda second: Mtl(ReadyFeatures(FEATURES), start="prototype", second_order=second), 0.01),
    "cosine": (lambda second: Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype", second_order=second), 0.1),
    "cosine learned": (lambda second: Mtl(ReadyFeatures(FEATURES), head="cosine", second_order=second), 0.1),
    "sib": (lambda second: Sib(ReadyFeatures(FEATURES), second_order=second), 1e-3),
}


def batch(dtype, tasks=3):
    draw = torch.Generator().manual_seed(5)
    labels = torch.arange(WAYS).repeat(SHOTS).expand(tasks, -1).contiguous()
    support = torch.randn(tasks, WAYS * SHOTS, FEATURES, generator=draw, dtype=dtype)
    query = torch.randn(tasks, QUERIES, FEATURES, generator=draw, dtype=dtype)
    return TaskBatch(support, labels, query, torch.randint(WAYS, (tasks, QUERIES), generator=draw), WAYS)


def without_ensemble(problem, rate, epochs):
    """Gradient descent on the head, then one evaluation of the queries."""
    state = problem.start()
    for _ in range(epochs):
        state = problem.step(state, problem.direction(state), rate)
    if isinstance(state, CosineState):
        # A sum of learners lies row after row in memory; with the same layout the product is rounded the same way.
        scores = torch.bmm(problem.readout, state.unit.contiguous().mT)
        return scores if problem.shift is None else scores + problem.shift
    return torch.baddbmm(problem.query_start, problem.readout, state.coefficients.contiguous().mT)


@pytest.mark.parametrize("second_order", [True, False], ids=["second", "first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_constant_and_last_is_the_plain_method(name, dtype, second_order):
    build, rate = METHODS[name]
    torch.manual_seed(0)
    method, tasks = build(second_order).to(dtype), batch(dtype)
    hyperprior = Hyperprior(Constant(rate), LastOnly()).to(dtype)
    found = MetaLearner(method, hyperprior, EPOCHS)(tasks)
    expected = without_ensemble(method.begin(tasks), hyperprior.rate.value.expand(3), EPOCHS)
    assert torch.equal(found.scores, expected)
    assert torch.equal(found.weights.sum(1), torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("mixing", ["residual", "scaled"])
@pytest.mark.parametrize("kind", ["fc", "lstm"])
@pytest.mark.parametrize("name", METHODS)
def test_an_untouched_hyperprior_is_the_plain_method(name, kind, mixing):
    """Delta = 0 and v' = (0, .., 0, 1): E3BM starts exactly where its baseline is."""
    build, rate = METHODS[name]
    torch.manual_seed(0)
    method, tasks = build(True), batch(torch.float32)
    psi = FcGenerator(Context(ClassMean(FEATURES), embedding=FEATURES), EPOCHS, 2, zero_start=True)
    if kind == "lstm":
        psi = LstmGenerator(Context(Stats()), 2)
    hyperprior = Hyperprior(Generated([rate] * EPOCHS), Generated(last_values(EPOCHS)), psi, mixing=mixing)
    found = MetaLearner(method, hyperprior, EPOCHS)(tasks)
    assert torch.equal(found.scores, without_ensemble(method.begin(tasks), torch.full((3,), rate), EPOCHS))


@pytest.mark.parametrize("name", METHODS)
def test_the_plain_method_in_d_space(name):
    build, rate = METHODS[name]
    torch.manual_seed(0)
    method, tasks = build(True).double(), batch(torch.float64)
    rates = Constant(rate).double()
    found = MetaLearner(method, Hyperprior(rates, LastOnly()).double(), 10)(tasks).scores
    heads = {
        "linear": lambda: slow.LinearReference(method.initialiser.weight, method.initialiser.bias),
        "linear prototype": lambda: slow.LinearReference(log_scale=method.initialiser.log_scale),
        "cosine": lambda: slow.CosineReference(method.temperature),
        "cosine learned": lambda: slow.CosineReference(method.temperature, method.initialiser.weight),
        "sib": lambda: slow.SibReference(method.scale, method.bias, method.initial_weight, method.gradient_net),
    }
    weights = torch.tensor(last_values(10), dtype=torch.float64)
    plain = slow.HyperpriorReference(rates.base(10), weights, lambda: slow.no_deltas, False, False)
    for task in range(3):
        alone = slow.Task(tasks.support[task], tasks.support_labels[task], tasks.query[task], WAYS)
        expected = slow.run(alone, heads[name](), plain, 10, second_order=True).scores
        torch.testing.assert_close(found[task], expected, rtol=1e-12, atol=1e-12)


class CountingVotes:
    """A problem that counts how often queries would be evaluated."""

    def __init__(self, problem):
        self.problem, self.votes = problem, 0

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def vote(self, *arguments):
        self.votes += 1
        return self.problem.vote(*arguments)


@pytest.mark.parametrize(
    ("weight", "votes"), [(LastOnly(), 1), (Frozen([0.0, 0.5, 0.0, 0.5]), 2), (Learned([0.0, 0.0, 0.0, 1.0]), 4)]
)
def test_votes_that_are_a_constant_zero_are_skipped(weight, votes):
    problem = CountingVotes(Mtl(ReadyFeatures(FEATURES)).begin(batch(torch.float32)))
    adapt(problem, Hyperprior(Constant(0.1), weight), 4)
    assert problem.votes == votes
