"""The cosine head in Gram form."""

import pytest
import torch
from torch.nn import functional

from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Constant, Equal, Learned
from e3bm.methods import Mtl, ReadyFeatures
from e3bm.methods.heads.collapsed import centre

FEATURES, WAYS = 12, 3


def batch(seed=0, dtype=torch.float64, tasks=2):
    draw = torch.Generator().manual_seed(seed)
    features = lambda count: torch.randn(tasks, count, FEATURES, generator=draw, dtype=torch.float64).to(dtype) + 0.5
    labels = torch.arange(WAYS).repeat(2).expand(tasks, -1).contiguous()
    return TaskBatch(features(2 * WAYS), labels, features(6), torch.arange(WAYS).repeat(2).expand(tasks, -1), WAYS)


def weights(problem, state):
    """The head weights that coefficients stand for."""
    return state.coefficients @ problem.vectors


@pytest.mark.parametrize("start", ["learned", "prototype"])
def test_updates_are_orthogonal_to_the_weights_so_that_lengths_grow(start):
    torch.manual_seed(0)
    problem = Mtl(ReadyFeatures(FEATURES), head="cosine", start=start, ways=WAYS).double().begin(batch())
    state = problem.start()
    for _ in range(5):
        direction = problem.direction(state)
        gradient, now = direction.coefficients @ problem.vectors, weights(problem, state)
        assert float((gradient * now).sum(-1).detach().abs().max()) < 1e-13
        later = problem.step(state, direction, torch.full((2,), 0.5, dtype=torch.float64))
        assert bool((later.inverse <= state.inverse).all())
        torch.testing.assert_close(1 / later.inverse.squeeze(-1), weights(problem, later).square().sum(-1).sqrt())
        state = later


def test_prototypes_are_class_means_of_centred_features():
    tasks = batch()
    problem = Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype").double().begin(tasks)
    found = weights(problem, problem.start())
    expected = torch.stack([centre(tasks.support)[:, way::WAYS].mean(1) for way in range(WAYS)], 1)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("second_order", [True, False], ids=["second", "first"])
def test_a_start_inside_or_outside_the_span_is_the_same_start(second_order):
    """A learned start that happens to hold the prototypes walks the same way."""
    tasks = batch(tasks=1)
    inside = Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype", second_order=second_order).double()
    outside = Mtl(ReadyFeatures(FEATURES), head="cosine", ways=WAYS, second_order=second_order).double()
    problem = inside.begin(tasks)
    with torch.no_grad():
        outside.initialiser.weight.copy_(weights(problem, problem.start())[0])
    hyperprior = Hyperprior(Constant(0.3), Equal()).double()
    first, second = (MetaLearner(method, hyperprior, 20)(tasks).scores for method in (inside, outside))
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def test_scores_are_scaled_cosines():
    tasks = batch()
    method = Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype", temperature=5.0).double()
    problem = method.begin(tasks)
    state = problem.start()
    found = problem.scores(problem.vote(problem.empty(), state, torch.ones(2, dtype=torch.float64)))
    pairs = centre(tasks.query).unsqueeze(2), weights(problem, state).unsqueeze(1)
    torch.testing.assert_close(found, 5 * functional.cosine_similarity(*pairs, dim=-1))


def test_scale_and_offset_of_features_change_nothing_at_the_start():
    tasks = batch()
    moved = TaskBatch(tasks.support + 3, tasks.support_labels, 7 * tasks.query - 2, tasks.query_labels, WAYS)
    model = MetaLearner(
        Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype"), Hyperprior(Constant(0.1), Equal()), 5
    ).double()
    torch.testing.assert_close(model(tasks).scores, model(moved).scores, rtol=1e-10, atol=1e-10)


def test_what_is_in_the_padding_does_not_matter():
    draw = torch.Generator().manual_seed(1)
    support, query = (torch.randn(1, count, FEATURES, generator=draw) for count in (5, 3))
    labels, mask = torch.tensor([[0, 1, 2, 0, 0]]), torch.tensor([[True] * 3 + [False] * 2])
    other, other_labels = support.clone(), labels.clone()
    other[:, 3:], other_labels[:, 3:] = 1e6 * torch.randn(2, FEATURES, generator=draw), 2
    model = MetaLearner(
        Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype"), Hyperprior(Constant(0.1), Equal()), 5
    )
    batches = (TaskBatch(x, y, query, None, WAYS, mask) for x, y in ((support, labels), (other, other_labels)))
    first, second = (model(batch).scores for batch in batches)
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start", ["learned", "prototype"])
def test_float32_is_good_to_1e_4(start):
    """After 100 epochs, in scores and in meta-gradients."""
    torch.manual_seed(0)
    method = Mtl(ReadyFeatures(FEATURES), head="cosine", start=start, ways=WAYS)
    found = {}
    for dtype in (torch.float32, torch.float64):
        model = MetaLearner(method, Hyperprior(Learned([0.1] * 100), Equal()), 100).to(dtype)
        tasks = batch(dtype=dtype)
        leaves = [tasks.support.requires_grad_(), tasks.query.requires_grad_(), model.hyperprior.rate.values]
        scores = model(tasks).scores
        loss = functional.cross_entropy(scores.flatten(0, 1), tasks.query_labels.flatten())
        found[dtype] = [scores.detach(), *torch.autograd.grad(loss, leaves)]
    for low, high in zip(found[torch.float32], found[torch.float64], strict=True):
        assert float((low.double() - high).abs().max()) < 1e-4 * float(high.abs().max())
