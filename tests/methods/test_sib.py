"""SIB: synthetic gradients from the queries of a task, together."""

import pytest
import torch
from torch import nn

from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, Method, meta_loss
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods import ReadyFeatures, Sib
from e3bm.methods.sib import EquivariantNet, PublishedNet, TaskNorm

FEATURES, WAYS = 8, 5


def batch(tasks=3, queries=10, ways=WAYS):
    draw = torch.Generator().manual_seed(0)
    features = lambda count: torch.randn(tasks, count, FEATURES, generator=draw)
    labels = torch.arange(ways).expand(tasks, -1).contiguous()
    return TaskBatch(
        features(ways), labels, features(queries), torch.randint(ways, (tasks, queries), generator=draw), ways
    )


def learner(net="published", rate=0.01):
    torch.manual_seed(0)
    return MetaLearner(Sib(ReadyFeatures(FEATURES), gradient_net=net), Hyperprior(Constant(rate), LastOnly()), 3)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_those_of_the_published_head():
    assert count(PublishedNet(5)) == 2245
    assert count(Sib(ReadyFeatures(640))) == 2887


def test_task_norm_is_batch_norm_of_each_task_alone():
    norm, reference = TaskNorm(6).double(), nn.BatchNorm1d(6).double().train()
    with torch.no_grad():
        for mine, theirs in ((norm.weight, reference.weight), (norm.bias, reference.bias)):
            mine.normal_()
            theirs.copy_(mine)
    values = torch.randn(3, 7, 6, dtype=torch.float64)
    expected = torch.stack([reference(task) for task in values])
    torch.testing.assert_close(norm(values), expected, rtol=1e-12, atol=1e-12)
    together = nn.BatchNorm1d(6).double().train()(values.flatten(0, 1)).view_as(values)
    assert float((norm(values) - together).detach().abs().max()) > 0.01  # shared statistics are another model


@pytest.mark.parametrize("net", ["published", "equivariant", "counting"])
def test_train_and_eval_mode_are_the_same(net):
    model = learner(net)
    trained = model.train()(batch()).scores
    assert torch.equal(trained, model.eval()(batch()).scores)
    assert all("running" not in name for name in model.state_dict())


@pytest.mark.parametrize("net", ["published", "equivariant", "counting"])
def test_it_is_transductive_in_fact(net):
    """What is said of a query depends on the queries beside it."""
    model, tasks = learner(net, rate=0.1), batch()
    few = TaskBatch(tasks.support, tasks.support_labels, tasks.query[:, :4], tasks.query_labels[:, :4], WAYS)
    assert float((model(tasks).scores[:, :4] - model(few).scores).detach().abs().max()) > 1e-4


@pytest.mark.parametrize("net", ["published", "equivariant", "counting"])
def test_query_labels_are_never_used(net):
    model, tasks = learner(net), batch()
    other = TaskBatch(tasks.support, tasks.support_labels, tasks.query, (tasks.query_labels + 1) % WAYS, WAYS)
    assert torch.equal(model(tasks).scores, model(other).scores)


def test_the_start_is_the_weighted_mean_of_unit_features():
    torch.manual_seed(0)
    method, tasks = Sib(ReadyFeatures(FEATURES)), batch()
    with torch.no_grad():
        method.initial_weight.normal_()
    problem = method.begin(tasks)
    found = problem.start().coefficients @ problem.vectors
    means = nn.functional.normalize(tasks.support, dim=-1)  # one shot
    torch.testing.assert_close(found, method.initial_weight * means)


def test_the_encoder_is_frozen():
    class Encoder(nn.Module):
        feature_size = FEATURES

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(FEATURES, FEATURES)

        def forward(self, examples, mask=None):
            return self.layer(examples)

    method, tasks = Sib(Encoder()), batch()
    model = MetaLearner(method, Hyperprior(Constant(0.01), LastOnly()), 3)
    meta_loss(model(tasks).scores, tasks.query_labels).backward()
    assert method.encoder.layer.weight.grad is None
    learned = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert {"scale", "initial_weight", "gradient_net.first.weight", "gradient_net.third.bias"} <= learned


@pytest.mark.parametrize("ways", [2, 5, 20])
@pytest.mark.parametrize("net", ["equivariant", "counting"])
def test_other_nets_than_the_published_one_serve_any_number_of_ways(net, ways):
    scores = learner(net)(batch(ways=ways)).scores
    assert scores.shape == (3, 10, ways)


@pytest.mark.parametrize("counts", [False, True])
def test_the_order_of_classes_and_queries_does_not_matter(counts):
    net, scores = EquivariantNet(counts=counts).double(), torch.randn(2, 7, WAYS, dtype=torch.float64)
    classes, queries = torch.randperm(WAYS), torch.randperm(7)
    expected = net(scores)[:, queries][..., classes]
    torch.testing.assert_close(net(scores[:, queries][..., classes]), expected, rtol=1e-10, atol=1e-10)


def test_the_counting_net_sees_the_share_of_every_class_and_no_other_net_does():
    """Two sets of queries with the same scores of each query, but in one of them all belong to the first class."""
    even = 4.0 * torch.eye(WAYS, dtype=torch.float64).repeat(2, 1)[None]
    net = EquivariantNet(counts=True).double()
    seen = []
    net.first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    net(even)
    net(even[:, :1].expand_as(even))
    shares, uneven = (inputs[..., -1].detach().exp() / WAYS for inputs in seen)
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / WAYS))
    torch.testing.assert_close(uneven[0, 0], even[0, 0].softmax(-1))
    torch.testing.assert_close(seen[0][..., :-1][:, 0], seen[1][..., :-1][:, 0])  # the other inputs are the same


def test_the_nets_give_a_number_for_each_query_and_class():
    scores = torch.randn(2, 7, WAYS)
    for net in (PublishedNet(WAYS), EquivariantNet(), EquivariantNet(counts=True)):
        assert net(scores).shape == scores.shape


def test_a_shift_of_all_scores_moves_no_support_loss():
    """The bias is seen by the synthetic-gradient net and by nobody else."""
    model, tasks = learner(), batch()
    before = model(tasks).losses[:, 0]
    with torch.no_grad():
        model.method.bias.fill_(3.0)
    torch.testing.assert_close(model(tasks).losses[:, 0], before)


def test_it_is_a_method():
    assert isinstance(Sib(ReadyFeatures(FEATURES)), Method)
