"""Where a linear head starts."""

import pytest
import torch

from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Constant, LastOnly
from e3bm.errors import SettingsError
from e3bm.methods import Mtl, ReadyFeatures
from e3bm.methods.heads.labelled import Initialiser, LabelledSupport, LearnedStart, PrototypeStart

FEATURES, WAYS = 5, 3


def support():
    labels = torch.arange(WAYS).repeat(2).expand(2, -1).contiguous()
    return torch.randn(2, 2 * WAYS, FEATURES), LabelledSupport(
        labels, torch.ones(2, 6, dtype=torch.bool), WAYS, torch.float32
    )


def test_both_are_initialisers():
    assert isinstance(LearnedStart(WAYS, FEATURES), Initialiser)
    assert isinstance(PrototypeStart(constant=False), Initialiser)


def test_a_learned_start_is_the_same_for_every_task():
    start = LearnedStart(WAYS, FEATURES)
    weight, bias = start(*support())
    assert torch.equal(weight[0], weight[1])
    assert not bias.any()
    (weight.sum() + bias.sum()).backward()
    assert torch.equal(start.weight.grad, torch.full((WAYS, FEATURES), 2.0))


def test_a_learned_start_is_bound_to_its_ways():
    with pytest.raises(SettingsError, match="made for 5 ways because of its learned initialiser, but the tasks have 3"):
        LearnedStart(5, FEATURES)(*support())


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_prototypes_start_as_the_nearest_class_mean(scale):
    features, labelled = support()
    start = PrototypeStart(constant=False)
    with torch.no_grad():
        start.log_scale.fill_(torch.tensor(scale).log())
    weight, bias = start(features, labelled)
    queries = torch.randn(2, 7, FEATURES)
    scores = queries @ weight.mT + bias.unsqueeze(1)
    distances = torch.cdist(queries, labelled.class_means(features)).square()
    # Up to what all classes share, a score is minus half the squared distance.
    expected = -scale * distances / 2 + scale * queries.square().sum(-1, keepdim=True) / 2
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("constant", [True, False])
def test_constant_means_give_the_support_no_gradient(constant):
    features, labelled = support()
    features.requires_grad_()
    start = PrototypeStart(constant=constant)
    weight, bias = start(features, labelled)
    (weight.sum() + bias.sum()).backward()
    assert (features.grad is None) is constant
    assert start.log_scale.grad is not None


def test_a_rate_of_zero_leaves_the_start():
    draw = torch.Generator().manual_seed(0)
    features = lambda count: torch.randn(1, count, FEATURES, generator=draw)
    tasks = TaskBatch(features(WAYS), torch.arange(WAYS).unsqueeze(0), features(4), None, WAYS)
    method = Mtl(ReadyFeatures(FEATURES), ways=WAYS)
    found = MetaLearner(method, Hyperprior(Constant(0.0), LastOnly()), 3)(tasks).scores
    start = method.initialiser
    torch.testing.assert_close(found[0], tasks.query[0] @ start.weight.mT + start.bias)
