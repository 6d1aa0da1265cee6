"""MAML against loops written here: bit for bit, by hand, and under permutations."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import config
from tests.methods.maml_tasks import WAYS, SmoothNetwork, context, conv4, generated, plain, smooth, task_batch
from torch import nn
from torch.func import functional_call

from e3bm.backbones import batchnorm_mode, build
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, LastOnly, Learned
from e3bm.errors import DataError, SettingsError
from e3bm.methods import METHODS, Maml
from e3bm.methods.base import Parts, ReadyFeatures
from e3bm.methods.maml import MamlSettings


def exact(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def gradients(learner, batch):
    loss = meta_loss(learner(batch).scores, batch.query_labels)
    return loss, torch.autograd.grad(loss, list(learner.parameters()))


def loop_without_ensemble(method, batch, rate, epochs, factor):
    """MAML as it is usually written: its queries are evaluated once, after the last step."""
    scores = []
    for task in range(len(batch)):
        parameters = dict(method.backbone.named_parameters())
        head = [method.head.weight, method.head.bias]
        names = [name for name in parameters if "norm" not in name]
        with batchnorm_mode(method.backbone, "batch"):
            for _ in range(epochs):
                features = functional_call(method.backbone, parameters, (batch.support[task],))
                loss = factor * F.cross_entropy(F.linear(features, *head), batch.support_labels[task])
                found = torch.autograd.grad(loss, [*(parameters[name] for name in names), *head], create_graph=True)
                parameters |= {
                    name: parameters[name] - rate * part for name, part in zip(names, found[:-2], strict=True)
                }
                head = [part - rate * gradient for part, gradient in zip(head, found[-2:], strict=True)]
            features = functional_call(method.backbone, parameters, (batch.query[task],))
        scores.append(F.linear(features, *head))
    return torch.stack(scores)


@pytest.mark.parametrize("loss_scale", ["ways", "mean"])
@pytest.mark.parametrize("make", [smooth, conv4])
def test_constant_rate_and_last_vote_are_a_loop_without_ensemble_bit_for_bit(make, loss_scale):
    method = make(loss_scale=loss_scale, fast=False)
    batch = task_batch(size=4 if make is smooth else 17)
    learner = plain(method, rate=0.1, epochs=12)
    scores = learner(batch).scores
    expected = loop_without_ensemble(method, batch, 0.1, 12, WAYS if loss_scale == "ways" else 1)
    assert torch.equal(scores, expected)
    parameters = list(method.parameters())
    ours = torch.autograd.grad(meta_loss(scores, batch.query_labels), parameters)
    theirs = torch.autograd.grad(meta_loss(expected, batch.query_labels), parameters)
    for found, wanted in zip(ours, theirs, strict=True):  # the graph is walked in another order: up to rounding
        exact(found, wanted)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("votes", ["plain", "rms", "stats"])
def test_fast_general_and_recomputed_paths_are_one(votes, second_order, checkpointed):
    batch = task_batch(size=17, shots=2)
    results = []
    for settings in ({"fast": False}, {"fast": True, "checkpointed": checkpointed}):
        method = conv4(second_order=second_order, **settings)
        learner = plain(method) if votes == "plain" else generated(method, context(votes, method, transductive=True))
        results.append(gradients(learner, batch))
    exact(results[1][0], results[0][0])
    for found, expected in zip(results[1][1], results[0][1], strict=True):
        exact(found, expected)


def logistic_step(order):
    """One step on one example with two ways and one feature a x, differentiated by hand.

    theta = (a, w1, w2, b1, b2); with u = (w1 - w2) a x + b1 - b2 the loss of label 0 is softplus(-u).
    """
    theta = torch.tensor([0.7, 0.4, -0.3, 0.1, 0.2], dtype=torch.float64)
    rate, support, query = 0.5, ((1.5, 0), (-0.8, 1)), (0.6, 0)

    def slope(theta, x):
        a, w1, w2 = theta[:3]
        return torch.stack([(w1 - w2) * x, a * x, -a * x, torch.ones(()), -torch.ones(())])

    def pieces(theta, x, label):
        sign = 1.0 if label == 0 else -1.0
        a, w1, w2, b1, b2 = theta
        u = (w1 - w2) * a * x + b1 - b2
        chance = torch.sigmoid(sign * u)
        bend = torch.zeros(5, 5, dtype=torch.float64)
        bend[0, 1] = bend[1, 0] = x
        bend[0, 2] = bend[2, 0] = -x
        first, second = -sign * (1 - chance), chance * (1 - chance)
        along = slope(theta, x)
        return first * along, second * torch.outer(along, along) + first * bend

    # Two ways times the mean over two examples: the sum.
    gradient = sum(pieces(theta, *example)[0] for example in support)
    hessian = sum(pieces(theta, *example)[1] for example in support)
    at_query, _ = pieces(theta - rate * gradient, *query)
    meta = at_query if order == "first" else at_query - rate * hessian @ at_query
    images = torch.tensor([[x for x, _ in support]], dtype=torch.float64).view(1, 2, 1, 1, 1)
    batch = TaskBatch(
        images,
        torch.tensor([[label for _, label in support]]),
        torch.tensor([[query[0]]], dtype=torch.float64).view(1, 1, 1, 1, 1),
        torch.tensor([[query[1]]]),
        2,
    )
    return theta, rate, batch, meta


class OneNumber(nn.Module):
    """Features a x."""

    feature_size = feature_positions = 1

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()))

    def forward(self, images):
        return self.a * images.flatten(1)


@pytest.mark.parametrize("order", ["first", "second"])
def test_first_and_second_order_by_hand(order):
    theta, rate, batch, expected = logistic_step(order)
    method = Maml(OneNumber(), ways=2, second_order=order == "second").double()
    with torch.no_grad():
        method.backbone.a.copy_(theta[0])
        method.head.weight.copy_(theta[1:3, None])
        method.head.bias.copy_(theta[3:])
    _, found = gradients(plain(method, rate, epochs=1), batch)
    exact(torch.cat([part.flatten() for part in found]), expected)


def test_the_orders_differ_in_gradients_and_not_in_scores():
    batch = task_batch()
    (first, first_gradients), (second, second_gradients) = (
        gradients(plain(smooth(second_order=second_order)), batch) for second_order in (False, True)
    )
    exact(first, second)  # up to rounding: torch may compute gradients that carry a graph with other code
    assert not torch.allclose(first_gradients[0], second_gradients[0])


@pytest.mark.parametrize("make", [smooth, conv4])
def test_permuting_tasks_permutes_scores(make):
    method = make()
    learner = generated(method, context("rms", method, transductive=True))
    batch = task_batch(tasks=3, size=4 if make is smooth else 17)
    order = torch.tensor([2, 0, 1])
    moved = TaskBatch(
        batch.support[order], batch.support_labels[order], batch.query[order], batch.query_labels[order], WAYS
    )
    found, expected = learner(moved), learner(batch)
    exact(found.scores, expected.scores[order])
    exact(found.rates, expected.rates[order])
    alone = learner(batch.tasks(1, 2))
    exact(alone.scores[0], expected.scores[1])


def test_permuting_queries_permutes_scores():
    learner, batch = plain(smooth()), task_batch()
    order = torch.randperm(batch.query.shape[1], generator=torch.Generator().manual_seed(0))
    moved = TaskBatch(batch.support, batch.support_labels, batch.query[:, order], batch.query_labels[:, order], WAYS)
    exact(learner(moved).scores, learner(batch).scores[:, order])


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
@pytest.mark.parametrize("make", [smooth, conv4])
def test_padding_has_no_influence(make, batchnorm):
    size = 4 if make is smooth else 17
    method = make(batchnorm=batchnorm)
    learner = generated(method, context("stats", method))
    whole = task_batch(tasks=2, shots=2, size=size)
    mask = torch.ones(2, 2 * WAYS, dtype=torch.bool)
    mask[0, -2:] = False
    results = []
    for filling in (0.0, 1e3):
        support = whole.support.clone()
        support[~mask] = filling
        batch = TaskBatch(support, whole.support_labels, whole.query, whole.query_labels, WAYS, mask)
        results.append(gradients(learner, batch))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(*pair) for pair in zip(results[0][1], results[1][1], strict=True))
    short = TaskBatch(
        whole.support[:1, :-2], whole.support_labels[:1, :-2], whole.query[:1], whole.query_labels[:1], WAYS
    )
    padded = TaskBatch(whole.support, whole.support_labels, whole.query, whole.query_labels, WAYS, mask)
    exact(learner(short).scores[0], learner(padded).scores[0])


def test_testing_with_more_steps_than_training():
    method, batch = smooth(), task_batch()
    learner = plain(method, epochs=5)
    exact(learner(batch, epochs=10).scores, plain(method, epochs=10)(batch).scores)
    assert not torch.allclose(learner(batch, epochs=10).scores, learner(batch).scores)
    fixed = MetaLearner(method, Hyperprior(Learned([0.1] * 5), LastOnly()).double(), 5)
    with pytest.raises(SettingsError, match="values for 5 epochs but 10"):
        fixed(batch, epochs=10)


def test_the_ensemble_is_the_weighted_sum_of_single_learners():
    learner = MetaLearner(smooth(), Hyperprior(Constant(0.1), Equal()).double(), 4)
    trace = learner(task_batch(), every_epoch=True)
    exact(trace.scores, trace.epoch_scores.mean(1))
    assert not trace.losses.requires_grad
    assert (trace.losses[:, -1] < trace.losses[:, 0]).all()


def test_only_what_votes_is_evaluated(monkeypatch):
    method, seen = smooth(fast=False), []
    method.backbone.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    plain(method, epochs=4)(task_batch(tasks=1, queries=5))
    assert seen == [WAYS] * 4 + [WAYS * 5]
    seen.clear()
    # The support pass at Theta_0 serves context and first step; query scores before an update are those of the vote.
    generated(method, context("stats", method, transductive=True), epochs=3)(task_batch(tasks=1, queries=5))
    assert sorted(seen) == [WAYS] * 3 + [WAYS * 5] * 4
    seen.clear()
    generated(method, context("rms", method, transductive=True), epochs=3)(task_batch(tasks=1, queries=5))
    assert sorted(seen) == [WAYS] * 3 + [WAYS * 5] * 4


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("make", [smooth, conv4])
def test_without_gradients_the_scores_are_the_same_and_nothing_is_kept(make, second_order):
    method = make(second_order=second_order)
    learner = generated(method, context("rms", method, transductive=True))
    batch = task_batch(size=4 if make is smooth else 17)
    expected = learner(batch).scores
    with torch.no_grad():
        problem = method.begin(batch)
        state = problem.start()
        for _ in range(2):
            direction = problem.direction(state)
            state = problem.step(state, direction, torch.full((2,), 0.1, dtype=torch.float64))
            assert not any(part.requires_grad for learner_ in state.parameters for part in learner_)
            assert not any(part.requires_grad for gradient in direction for part in gradient)
        trace = learner(batch)
    exact(trace.scores, expected)
    assert not trace.scores.requires_grad
    assert all(part.grad is None for part in learner.parameters())


def test_a_frozen_network_is_adapted_all_the_same():
    method, batch = smooth(), task_batch()
    expected = plain(method)(batch).scores
    method.requires_grad_(False)
    exact(plain(method)(batch).scores, expected)
    with torch.no_grad():
        exact(plain(method)(batch).scores, expected)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_batch_of_tasks_is_forgotten_without_the_garbage_collector(checkpointed):
    method = smooth(checkpointed=checkpointed)
    learner = generated(method, context("rms", method, transductive=True))
    problems, begin = [], method.begin

    def remembered(batch):
        problem = begin(batch)
        problems.append(weakref.ref(problem))
        return problem

    method.begin = remembered
    gc.disable()
    try:
        gradients(learner, task_batch())
        assert problems[0]() is None
    finally:
        gc.enable()


def test_parameters_of_the_published_network():
    method = Maml(build("conv4", image_size=84))
    assert sum(part.numel() for part in method.parameters()) == 32_901
    assert torch.equal(method.head.bias, torch.zeros(5))
    bound = (6 / (800 + 5)) ** 0.5
    assert bound * 0.9 < method.head.weight.abs().max() <= bound


def test_built_from_settings():
    backbone = build("conv4", width=0.25, image_size=16)
    parts = Parts(
        ReadyFeatures(8), backbone, backbone.feature_size, backbone.feature_positions, ways=4, batchnorm="per_step"
    )
    settings = MamlSettings(epochs=3, order="first", loss_scale="mean", checkpointed=True)
    method = METHODS["maml"].from_settings(settings, parts)
    assert isinstance(method, Maml)
    assert (method.batchnorm, method.second_order, method.loss_scale) == ("per_step", False, "mean")
    assert method.checkpointed
    assert method.head.out_features == 4
    assert len(method.statistics.steps) == 4
    with pytest.raises(SettingsError, match="adapts the whole network"):
        METHODS["maml"].from_settings(settings, Parts(ReadyFeatures(8), None, 8))


@pytest.fixture
def _without_shape_checks():
    """Users run without them: their errors must be ours."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("_without_shape_checks")
def test_errors_say_what_to_do():
    method = smooth()
    with pytest.raises(SettingsError, match="made for 3 ways because of its linear head, but the tasks have 2"):
        method.begin(logistic_step("first")[2])
    features = TaskBatch(torch.zeros(1, 3, 8), torch.arange(3)[None], torch.zeros(1, 3, 8), None, WAYS)
    with pytest.raises(DataError, match=r"takes images .*; found shape \(1, 3, 8\)"):
        method.begin(features)
    with torch.inference_mode(), pytest.raises(SettingsError, match=r"use torch\.no_grad"):
        method.begin(task_batch())
    with pytest.raises(SettingsError, match="found 'sum'"):
        Maml(SmoothNetwork(), loss_scale="sum")
    with pytest.raises(SettingsError, match="feature_size and feature_positions; found Flatten"):
        Maml(nn.Flatten())


def test_a_head_that_starts_at_zero_is_adapted_and_never_learned():
    method = smooth(start="zero")
    batch = task_batch()
    assert not method.head.weight.any()
    assert not method.head.bias.any()
    learner = plain(method, rate=0.1, epochs=3)
    scores = learner(batch).scores
    exact(scores, loop_from_zero(method, batch, 0.1, 3))
    meta_loss(scores, batch.query_labels).backward()
    assert method.head.weight.grad is None
    assert method.backbone.conv.weight.grad.abs().sum() > 0
    # No class is ahead: with the classes in another order the scores are those of before, in that order.
    order = torch.tensor([2, 0, 1])
    place = order.argsort()
    other = TaskBatch(batch.support, place[batch.support_labels], batch.query, place[batch.query_labels], WAYS, None)
    exact(learner(other).scores, scores[..., order])


def loop_from_zero(method, batch, rate, epochs):
    with torch.enable_grad():
        method.head.requires_grad_(True)
        scores = loop_without_ensemble(method, batch, rate, epochs, WAYS)
        method.head.requires_grad_(False)
    return scores


def class_means_of(method, parameters, batch, task, *, constant):
    """The nearest-class-mean rule as a linear head, s (mu.x - |mu|^2/2), written out."""
    features = features_of(method, parameters, batch.support[task])
    labels, scale = batch.support_labels[task], method.head.log_scale.exp()
    means = torch.stack([features[labels == way].mean(0) for way in range(batch.ways)])
    means = means.detach() if constant else means
    return [scale * means, -scale * means.square().sum(1) / 2]


def features_of(method, parameters, images):
    features = functional_call(method.backbone, parameters, (images,))
    if method.feature_length is None:
        return features
    return method.feature_length * features / features.norm(dim=1, keepdim=True)


def loop_from_class_means(method, batch, rate, epochs, *, second_order=True):
    scores = []
    for task in range(len(batch)):
        own = dict(method.backbone.named_parameters())
        names = [name for name in own if "norm" not in name]
        with batchnorm_mode(method.backbone, "batch"):
            head = class_means_of(method, own, batch, task, constant=not second_order)
            parameters = {name: part.clone() for name, part in own.items()}
            for _ in range(epochs):
                features = features_of(method, parameters, batch.support[task])
                loss = WAYS * F.cross_entropy(F.linear(features, *head), batch.support_labels[task])
                found = torch.autograd.grad(
                    loss, [*(parameters[name] for name in names), *head], create_graph=second_order, retain_graph=True
                )
                parameters |= {
                    name: parameters[name] - rate * part for name, part in zip(names, found[:-2], strict=True)
                }
                head = [part - rate * gradient for part, gradient in zip(head, found[-2:], strict=True)]
            scores.append(F.linear(features_of(method, parameters, batch.query[task]), *head))
    return torch.stack(scores)


@pytest.mark.parametrize("second_order", [True, False])
@pytest.mark.parametrize("settings", [{}, {"fast": False}, {"checkpointed": True}, {"feature_length": 2.0}])
def test_a_head_that_starts_at_the_class_means_is_the_loop_written_out(settings, second_order):
    method = conv4(start="prototype", second_order=second_order, **settings)
    batch = task_batch(size=17, shots=2, queries=3)
    assert not method.head.log_scale.any()  # exp(0): every start has the scale 1 at first
    nn.init.constant_(method.head.log_scale, 0.3)
    learner = plain(method, rate=0.05, epochs=3)
    loss, found = gradients(learner, batch)
    expected = loop_from_class_means(method, batch, 0.05, 3, second_order=second_order)
    exact(learner(batch).scores, expected)
    wanted = torch.autograd.grad(meta_loss(expected, batch.query_labels), list(learner.parameters()))
    for name, ours, theirs in zip(dict(learner.named_parameters()), found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=name)
    assert loss.isfinite()
    with torch.no_grad():
        exact(learner(batch).scores, expected)


def test_the_gradient_through_class_means_and_inner_steps_is_that_of_finite_differences():
    method = smooth(start="prototype", feature_length=3.0)
    learner = generated(method, context("stats", method, transductive=True))
    batch = task_batch(shots=2)
    found = dict(zip(dict(learner.named_parameters()), gradients(learner, batch)[1], strict=True))
    for name, parameter in learner.named_parameters():
        direction = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * 1e-6)
                losses.append(meta_loss(learner(batch).scores, batch.query_labels))
                parameter.sub_(direction, alpha=sign * 1e-6)
        difference = (losses[0] - losses[1]) / 2e-6
        torch.testing.assert_close((found[name] * direction).sum(), difference, rtol=1e-5, atol=1e-7, msg=name)


def test_at_a_rate_of_zero_a_start_at_the_class_means_is_the_nearest_class_mean_for_any_number_of_ways():
    method = smooth(start="prototype", feature_length=2.0, batchnorm="running")
    whole, mask = task_batch(shots=2, queries=3), torch.tensor([[True] * 6, [True, True, True, False, True, True]])
    batch = TaskBatch(whole.support, whole.support_labels, whole.query, whole.query_labels, WAYS, mask)
    scores = plain(method, rate=0.0)(batch).scores
    with torch.no_grad(), batchnorm_mode(method.backbone, "running"):
        for task in range(2):
            support = 2 * F.normalize(method.backbone(batch.support[task][mask[task]]))
            labels = batch.support_labels[task][mask[task]]
            means = torch.stack([support[labels == way].mean(0) for way in range(WAYS)])
            distances = torch.cdist(2 * F.normalize(method.backbone(batch.query[task])), means)
            exact((-distances.square() / 2).log_softmax(1), scores[task].log_softmax(1))
    two = TaskBatch(whole.support[:, [0, 1, 3, 4]], torch.tensor([[0, 1, 0, 1]] * 2), whole.query, None, 2)
    assert plain(method)(two).scores.shape == (2, whole.query.shape[1], 2)
    # No class is ahead: with the classes in another order the scores are those of before, in that order.
    order = torch.tensor([2, 0, 1])
    place = order.argsort()
    other = TaskBatch(batch.support, place[batch.support_labels], batch.query, place[batch.query_labels], WAYS, mask)
    exact(plain(method)(other).scores, plain(method)(batch).scores[..., order])
