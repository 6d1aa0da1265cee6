"""The collapsed head: one matrix (and bias) whose scores are the whole ensemble's."""

import pytest
import torch

from e3bm.core.context import ClassMean, Context
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Generated, Learned
from e3bm.methods import CollapsedHead, Mtl, ReadyFeatures, Sib
from e3bm.methods.heads.collapsed import centre, unit, unit_centred

FEATURES, WAYS = 9, 4
METHODS = {
    "linear learned": (lambda second: Mtl(ReadyFeatures(FEATURES), ways=WAYS, second_order=second), 0.1),
    "linear prototype": (lambda second: Mtl(ReadyFeatures(FEATURES), start="prototype", second_order=second), 0.1),
    "cosine learned": (
        lambda second: Mtl(ReadyFeatures(FEATURES), head="cosine", ways=WAYS, second_order=second), 0.2,
    ),
    "cosine prototype": (
        lambda second: Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype", second_order=second), 0.2,
    ),
    "sib": (lambda second: Sib(ReadyFeatures(FEATURES), ways=WAYS, second_order=second), 0.01),
}  # fmt: skip


def learner(name, epochs, second_order=True):
    torch.manual_seed(0)
    build, rate = METHODS[name]
    psi = FcGenerator(Context(ClassMean(FEATURES), embedding=FEATURES), epochs, 2)
    hyperprior = Hyperprior(
        Generated([rate] * epochs), Generated([0.3] * epochs), psi, mixing="residual", fractions=(0.01, 0.1)
    )
    model = MetaLearner(build(second_order), hyperprior, epochs).double()
    if name == "sib":
        with torch.no_grad():
            model.method.bias.fill_(0.2)
    return model


def batch(tasks=2, queries=7):
    draw = torch.Generator().manual_seed(4)
    features = lambda count: torch.randn(tasks, count, FEATURES, generator=draw, dtype=torch.float64) + 1
    labels = torch.arange(WAYS).repeat(2).expand(tasks, -1).contiguous()
    return TaskBatch(features(2 * WAYS), labels, features(queries), torch.zeros(tasks, queries, dtype=torch.long), WAYS)


def collapsed(model, tasks):
    problem = model.method.begin(tasks)
    trace, ensemble = model.adapt(tasks)
    return problem.collapse(ensemble), trace


@pytest.mark.parametrize("second_order", [True, False], ids=["second", "first"])
@pytest.mark.parametrize("epochs", [1, 7, 60])  # 60: sums are folded in between
@pytest.mark.parametrize("name", METHODS)
def test_its_scores_are_the_ensembles(name, epochs, second_order):
    tasks = batch()
    head, trace = collapsed(learner(name, epochs, second_order), tasks)
    scale = float(trace.scores.detach().abs().max())
    assert float((head.scores(tasks.query) - trace.scores).detach().abs().max()) <= 1e-12 * scale


@pytest.mark.parametrize("name", METHODS)
def test_what_is_kept_does_not_grow_with_the_epochs(name):
    tasks = batch()
    shapes = [
        [part.shape for part in (head.weight, head.bias)]
        for head, _ in (collapsed(learner(name, epochs), tasks) for epochs in (1, 60))
    ]
    assert shapes[0] == shapes[1] == [(2, WAYS, FEATURES), (2, WAYS)]


@pytest.mark.parametrize("name", ["linear learned", "linear prototype", "cosine learned", "cosine prototype"])
def test_it_scores_examples_it_has_never_seen(name):
    """An inductive learner does not know its queries: the head of one batch of queries serves another."""
    model, tasks = learner(name, 5), batch()
    head, _ = collapsed(model, tasks)
    others = torch.randn(2, 30, FEATURES, dtype=torch.float64)
    expected = model(TaskBatch(tasks.support, tasks.support_labels, others, None, WAYS)).scores
    torch.testing.assert_close(head.scores(others), expected, rtol=1e-12, atol=1e-12)


def test_a_cosine_head_ignores_the_length_and_the_offset_of_an_example():
    head, _ = collapsed(learner("cosine prototype", 3), batch())
    examples = torch.randn(2, 5, FEATURES, dtype=torch.float64)
    torch.testing.assert_close(head.scores(3 * examples + 10), head.scores(examples), rtol=1e-10, atol=1e-10)


def test_the_matrix_is_not_normalised_again():
    """sum_m v_m w_m/|w_m| has a length of its own: with v = (1, 1) and no movement the scores double."""
    tasks = batch()
    method = Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype").double()
    once, twice = (
        collapsed(
            MetaLearner(method, Hyperprior(Learned([0.0] * epochs), Learned([1.0] * epochs)).double(), epochs), tasks
        )[0]
        for epochs in (1, 2)
    )
    torch.testing.assert_close(twice.weight, 2 * once.weight)


def test_unit_length():
    vectors = torch.randn(3, 4, FEATURES, dtype=torch.float64) + 5
    torch.testing.assert_close(unit(vectors).square().sum(-1), torch.ones(3, 4, dtype=torch.float64))
    together = unit_centred(vectors, torch.tensor(8.0, dtype=torch.float64))
    torch.testing.assert_close(together, 8 * unit(centre(vectors)), rtol=1e-13, atol=1e-13)
    assert not unit(torch.zeros(2, 3)).any()
    assert not unit_centred(torch.zeros(2, 3), torch.tensor(8.0)).any()


def test_zero_examples_have_only_the_bias():
    head = CollapsedHead(torch.ones(1, 2, 3), torch.tensor([[0.5, -0.5]]), unit_length=True)
    assert torch.equal(head.scores(torch.zeros(1, 1, 3)), torch.tensor([[[0.5, -0.5]]]))
