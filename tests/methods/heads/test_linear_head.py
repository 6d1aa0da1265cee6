"""The linear head in Gram form."""

import pytest
import torch
from torch.nn import functional

from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Constant, Equal, Learned
from e3bm.methods import Mtl, ReadyFeatures
from e3bm.methods.heads.labelled import LabelledSupport
from e3bm.methods.heads.linear import LinearHead

FEATURES, WAYS = 20, 4


def labelled(dtype=torch.float64):
    labels = torch.tensor([[0, 1, 2, 3, 1, 0], [3, 2, 1, 0, 0, 0]])
    mask = torch.tensor([[True] * 6, [True] * 5 + [False]])
    return LabelledSupport(labels, mask, WAYS, dtype), labels, mask


def test_the_loss_is_the_mean_over_real_examples():
    support, labels, mask = labelled()
    scores = torch.randn(2, WAYS, 6, dtype=torch.float64)
    found = support.loss(scores.log_softmax(1))
    for task in range(2):
        real = mask[task]
        expected = functional.cross_entropy(scores[task, :, real].mT, labels[task, real])
        torch.testing.assert_close(found[task], expected, rtol=1e-14, atol=1e-14)


def test_the_residual_is_the_derivative_of_the_loss():
    support, _, _ = labelled()
    scores = torch.randn(2, WAYS, 6, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(support.loss(scores.log_softmax(1)).sum(), scores)
    torch.testing.assert_close(support.residual(scores.log_softmax(1)), expected, rtol=1e-14, atol=1e-14)


def test_class_means_are_over_real_examples():
    support, labels, mask = labelled()
    features = torch.randn(2, 6, 3, dtype=torch.float64)
    found = support.class_means(features)
    for task in range(2):
        for way in range(WAYS):
            expected = features[task][mask[task] & (labels[task] == way)].mean(0)
            torch.testing.assert_close(found[task, way], expected)


def head(second_order=True, dtype=torch.float64):
    support, _, mask = labelled(dtype)
    draw = torch.Generator().manual_seed(0)
    features = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)
    return LinearHead(
        features(2, 6, FEATURES), features(2, 5, FEATURES), support, mask, features(2, WAYS, FEATURES),
        features(2, WAYS), second_order=second_order,
    )  # fmt: skip


def test_the_class_mean_of_its_gradient_is_zero():
    """Softmax errors sum to zero over classes: a hyperprior fed with the class mean is fed with nothing."""
    problem = head()
    state = problem.start()
    gradient = problem.basis().dense(problem.observe(state, problem.direction(state)).coefficients())
    assert float(gradient.abs().max()) > 0.01
    assert float(gradient.mean(-1).abs().max()) < 1e-15  # a few roundings of entries below 1


def test_nothing_in_the_loop_has_the_size_of_the_features():
    problem = head()
    state = problem.step(problem.start(), problem.direction(problem.start()), torch.ones(2, dtype=torch.float64))
    ensemble = problem.vote(problem.empty(), state, torch.ones(2, dtype=torch.float64)).settled()
    assert all(FEATURES not in part.shape for part in (*state, ensemble.folded, ensemble.weight))


@pytest.mark.parametrize("second_order", [True, False], ids=["second", "first"])
def test_what_is_in_the_padding_does_not_matter(second_order):
    draw = torch.Generator().manual_seed(1)
    support, query = (torch.randn(1, count, FEATURES, generator=draw) for count in (6, 3))
    labels, mask = torch.tensor([[0, 1, 2, 3, 0, 0]]), torch.tensor([[True] * 4 + [False] * 2])
    other, other_labels = support.clone(), labels.clone()
    other[:, 4:], other_labels[:, 4:] = 1e6, 3
    model = MetaLearner(
        Mtl(ReadyFeatures(FEATURES), ways=WAYS, second_order=second_order), Hyperprior(Constant(0.1), Equal()), 5
    )
    batches = (TaskBatch(x, y, query, None, WAYS, mask) for x, y in ((support, labels), (other, other_labels)))
    first, second = (model(batch).scores for batch in batches)
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)


def float32_error(method, rate, ways=WAYS):
    """Largest relative difference of float32 from float64, of scores and of meta-gradients, after 100 epochs."""
    draw = torch.Generator().manual_seed(2)
    support, query = (torch.randn(4, count, FEATURES, generator=draw) for count in (2 * ways, 10))
    labels = torch.arange(ways).repeat(2).expand(4, -1).contiguous()
    query_labels = torch.randint(ways, (4, 10), generator=draw)
    found = {}
    for dtype in (torch.float32, torch.float64):
        model = MetaLearner(method, Hyperprior(Learned([rate] * 100), Equal()), 100).to(dtype)
        leaves = [part.to(dtype).requires_grad_() for part in (support, query)]
        scores = model(TaskBatch(leaves[0], labels, leaves[1], query_labels, ways)).scores
        loss = functional.cross_entropy(scores.flatten(0, 1), query_labels.flatten())
        found[dtype] = [scores, *torch.autograd.grad(loss, [*leaves, model.hyperprior.rate.values])]
    pairs = zip(found[torch.float32], found[torch.float64], strict=True)
    return max(float(((low.double() - high).abs().max() / high.abs().max()).detach()) for low, high in pairs)


@pytest.mark.parametrize("start", ["learned", "prototype"])
def test_float32_is_good_to_1e_4(start):
    torch.manual_seed(0)
    assert float32_error(Mtl(ReadyFeatures(FEATURES), start=start, ways=WAYS), 0.01) < 1e-4
