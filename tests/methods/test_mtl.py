"""MTL: an encoder of the outer loop's, a head of the inner loop's."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from e3bm.core.context import Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, Method, meta_loss
from e3bm.core.schedules import Constant, Generated, LastOnly, equal_values
from e3bm.methods import Mtl, ReadyFeatures

FEATURES, WAYS, PIXELS = 8, 3, 10
HEADS = [("linear", "learned"), ("linear", "prototype"), ("cosine", "learned"), ("cosine", "prototype")]


class Encoder(nn.Module):
    """A small encoder with parameters of the outer loop."""

    feature_size = FEATURES

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(PIXELS, FEATURES)

    def forward(self, examples, mask=None):
        return self.layer(examples).tanh()


def batch(tasks=2, queries=6):
    draw = torch.Generator().manual_seed(0)
    features = lambda count: torch.randn(tasks, count, PIXELS, generator=draw)
    labels = torch.arange(WAYS).repeat(2).expand(tasks, -1).contiguous()
    return TaskBatch(features(2 * WAYS), labels, features(queries), labels[:, :queries], WAYS)


def gradients(head, start, second_order, tasks):
    torch.manual_seed(0)
    model = MetaLearner(
        Mtl(Encoder(), head=head, start=start, ways=WAYS, second_order=second_order),
        Hyperprior(Constant(0.5), LastOnly()),
        5,
    )
    meta_loss(model(tasks).scores, tasks.query_labels).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("head", "start"), HEADS)
def test_the_outer_loop_learns_the_encoder_and_the_start(head, start):
    found = gradients(head, start, True, batch())
    assert float(found["method.encoder.layer.weight"].abs().max()) > 0
    if start == "learned":
        assert float(found["method.initialiser.weight"].abs().max()) > 0
    assert ("method.initialiser.log_scale" in found) is ((head, start) == ("linear", "prototype"))


@pytest.mark.parametrize(("head", "start"), HEADS)
def test_first_and_second_order_differ(head, start):
    first, second = (gradients(head, start, order, batch())["method.encoder.layer.weight"] for order in (False, True))
    assert float((first - second).abs().max()) > 1e-5


@pytest.mark.parametrize(("head", "start"), HEADS)
def test_order_does_not_change_predictions(head, start):
    torch.manual_seed(0)
    first, second = (
        Mtl(ReadyFeatures(PIXELS), head=head, start=start, ways=WAYS, second_order=order) for order in (False, True)
    )
    second.load_state_dict(first.state_dict())
    hyperprior = Hyperprior(Constant(0.5), LastOnly())
    one, other = (MetaLearner(method, hyperprior, 5)(batch()).scores for method in (first, second))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("head", "start"), HEADS)
def test_first_order_trains_the_encoder_through_the_queries_only(head, start):
    """A constant gradient: with no embedding in a context, the support's own pass gets nothing."""
    torch.manual_seed(0)
    tasks = batch()
    support = tasks.support.clone().requires_grad_()
    query = tasks.query.clone().requires_grad_()
    method = Mtl(ReadyFeatures(PIXELS), head=head, start=start, ways=WAYS, second_order=False)
    psi = LstmGenerator(Context(Stats(), detach=True), 2)
    model = MetaLearner(method, Hyperprior(Generated([0.5] * 4), Generated(equal_values(4)), psi), 4)
    opened = TaskBatch(support, tasks.support_labels, query, tasks.query_labels, WAYS)
    meta_loss(model(opened).scores, tasks.query_labels).backward()
    assert support.grad is None or not support.grad.any()
    assert query.grad.any()


def test_the_temperature_scales_what_a_cosine_head_says():
    mild, hot = (
        MetaLearner(
            Mtl(ReadyFeatures(PIXELS), head="cosine", start="prototype", temperature=t),
            Hyperprior(Constant(0.0), LastOnly()),
            1,
        )
        for t in (1.0, 8.0)
    )
    torch.testing.assert_close(8 * mild(batch()).scores, hot(batch()).scores)


@pytest.mark.parametrize(("head", "start"), HEADS)
def test_a_head_learns_its_support(head, start):
    torch.manual_seed(0)
    rate = 0.1 if head == "linear" else 1.0
    model = MetaLearner(
        Mtl(ReadyFeatures(PIXELS), head=head, start=start, ways=WAYS), Hyperprior(Constant(rate), LastOnly()), 50
    )
    losses = model(batch()).losses
    assert bool((losses[:, -1] < 0.8 * losses[:, 0]).all())
    assert bool((losses[:, 1:] <= losses[:, :-1] + 1e-6).all())


def test_it_is_a_method():
    assert isinstance(Mtl(ReadyFeatures(PIXELS)), Method)


@pytest.mark.parametrize("start", ["learned", "prototype"])
@pytest.mark.parametrize("part", ["support", "query"])
def test_with_a_feature_length_the_backbones_scale_does_not_matter(start, part):
    """Neither that of the support nor that of the queries: all examples have the length that was asked for."""
    method = Mtl(ReadyFeatures(PIXELS), start=start, ways=WAYS, feature_length=3.0)
    model, tasks = MetaLearner(method, Hyperprior(Constant(0.5), LastOnly()), 4), batch()
    longer = replace(tasks, **{part: 7.0 * getattr(tasks, part)})
    torch.testing.assert_close(model(longer).scores, model(tasks).scores, rtol=1e-5, atol=1e-5)
    head = method.begin(tasks)
    for examples in (head.support, head.query):
        torch.testing.assert_close(examples.norm(dim=-1), torch.full(examples.shape[:2], 3.0), rtol=1e-5, atol=0)
