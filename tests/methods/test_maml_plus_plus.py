"""MAML++: with its changes off it is MAML, and each change does what it says and nothing else."""

import pytest
import torch
from jaxtyping import config
from tests.methods.maml_tasks import WAYS, SmoothNetwork, context, conv4, generated, plain, smooth, task_batch
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

from e3bm.backbones import commit_statistics, pop_statistics
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, Method, meta_loss
from e3bm.core.schedules import Constant, Equal, LastOnly
from e3bm.errors import SettingsError
from e3bm.methods.maml import Maml
from e3bm.methods.maml_plus_plus import MamlPlusPlus, step_importance

OFF = {"multi_step_epochs": 0, "step_weights": False, "step_rates": False}


def exact(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def improved(maml=smooth, **settings):
    """MAML++ on the network of a MAML of ours, with per-step parameters that differ."""
    method = maml(loss_scale="mean")
    options = {"ways": WAYS, "epochs": 3, "fast": method.fast} | settings
    torch.manual_seed(1)
    found = MamlPlusPlus(method.backbone, **options).double()
    found.maml.head.load_state_dict(method.head.state_dict())
    if found.step_rates is not None:
        found.step_rates.base.fill_(0.1)
        found.step_rates.values.data.uniform_(0.05, 0.15)
    if found.step_norms is not None:
        for values in found.step_norms.values:
            values.data.add_(0.1 * torch.randn_like(values))
    return found


def level(method):
    """The same parameters at every step: those of the backbone, and one rate."""
    with torch.no_grad():
        if method.step_rates is not None:
            method.step_rates.values.fill_(0.1)
        if method.step_norms is not None:
            for values, own in zip(
                method.step_norms.values,
                (method.maml.backbone.norm.weight, method.maml.backbone.norm.bias),
                strict=True,
            ):
                values.copy_(own.expand_as(values))
    return method


def trained(method):
    return [part for part in method.parameters() if part.requires_grad]


@pytest.mark.parametrize(
    "on", [{}, {"step_rates": True}, {"step_weights": True}, {"step_rates": True, "step_weights": True}]
)
def test_with_its_changes_off_or_without_effect_it_is_maml(on):
    method, maml, batch = level(improved(**(OFF | on))), smooth(loss_scale="mean"), task_batch(shots=2)
    ours, theirs = plain(method)(batch), plain(maml)(batch)
    assert torch.equal(ours.scores, theirs.scores)
    assert torch.equal(ours.losses, theirs.losses)
    loss = method.training_loss(ours, batch, 0.0)
    expected = meta_loss(theirs.scores, batch.query_labels)
    assert torch.equal(loss, expected)
    gradients = dict(
        zip(dict(maml.named_parameters()), torch.autograd.grad(expected, list(maml.parameters())), strict=True)
    )
    exact(torch.autograd.grad(loss, method.maml.head.weight, retain_graph=True)[0], gradients["head.weight"])
    convolution = method.maml.backbone.conv.weight
    exact(torch.autograd.grad(loss, convolution, retain_graph=True)[0], gradients["backbone.conv.weight"])
    if method.step_norms is not None:  # shared by all steps, their derivatives add up
        found = torch.autograd.grad(loss, method.step_norms.values[0])[0].sum(0)
        exact(found, gradients["backbone.norm.weight"])


def test_defaults_start_as_maml():
    """Before training, per-step parameters are all alike; only the loss differs."""
    torch.manual_seed(0)
    method = MamlPlusPlus(SmoothNetwork(), ways=WAYS, epochs=3, rate=0.1)
    maml, batch = method.maml, task_batch()
    images = lambda values: values.float()
    batch = TaskBatch(images(batch.support), batch.support_labels, images(batch.query), batch.query_labels, WAYS)
    hyperprior = Hyperprior(Constant(0.1), LastOnly())
    assert torch.equal(MetaLearner(method, hyperprior, 3)(batch).scores, MetaLearner(maml, hyperprior, 3)(batch).scores)


@pytest.mark.parametrize("settings", [{}, {"checkpointed": True}, {"step_weights": False}, {"step_rates": False}])
@pytest.mark.parametrize("progress", [0.0, 0.1, 0.5])
def test_the_loss_has_the_right_derivative(progress, settings):
    method, batch = improved(epochs=2, **settings), task_batch(tasks=1)
    learner = generated(method, context("rms", method.maml), epochs=2)
    method.at(progress)
    names = [name for name, part in learner.named_parameters() if part.requires_grad]

    def loss(*values):
        trace = functional_call(learner, dict(zip(names, values, strict=True)), (batch,))
        return method.training_loss(trace, batch, progress)

    assert gradcheck(loss, tuple(part.detach().clone().requires_grad_() for part in trained(learner)), fast_mode=True)


def test_the_derivative_of_a_rate():
    """It is minus the product of the step's gradient and the derivative by what the step led to."""
    method, batch = improved(multi_step_epochs=0, epochs=2), task_batch(tasks=1)
    problem = method.begin(batch)
    one = torch.full((1,), 0.1, dtype=torch.float64)
    first = problem.start()
    slope = problem.direction(first)
    second = problem.step(first, slope, one)
    third = problem.step(second, problem.direction(second), one)
    loss = meta_loss(problem.query_scores(third), batch.query_labels)
    found = torch.autograd.grad(loss, method.step_rates.values, retain_graph=True)[0]
    after = torch.autograd.grad(loss, second.parameters[0], retain_graph=True, allow_unused=True)
    for number, (gradient, derivative) in enumerate(zip(slope[0], after, strict=True)):
        exact(found[0, number], -(gradient * derivative).sum())


def test_rates_of_tasks_multiply_those_of_tensors():
    method = improved()
    rates = method.step_rates(1, torch.tensor([0.1, 0.3], dtype=torch.float64))
    exact(rates[0], method.step_rates.values[1])
    exact(rates[1], 3 * method.step_rates.values[1])


def test_only_the_steps_own_weights_of_batchnorm_are_used():
    method, batch = improved(multi_step_epochs=0), task_batch()
    problem = method.begin(batch)
    one = torch.full((2,), 0.1, dtype=torch.float64)
    state, values = problem.start(), list(method.step_norms.values)
    loss = problem.observe(state, problem.direction(state)).loss().sum()
    for gradient in torch.autograd.grad(loss, values, retain_graph=True):
        assert gradient[0].any()
        assert not gradient[1:].any()
    state = problem.step(state, tuple(tuple(part.detach() for part in each) for each in problem.direction(state)), one)
    for gradient in torch.autograd.grad(problem.query_scores(state).sum(), values):  # the step that led to it
        assert gradient[0].any()
        assert not gradient[1:].any()
    assert not any(part.requires_grad for part in method.maml.backbone.norm.parameters())


def test_first_order_epochs():
    """The same numbers, with and without the graph of the inner gradients; and the method says at which epoch."""
    method = improved(first_order_epochs=20, multi_step_epochs=0)
    found = {}
    for progress in (0.0, 0.19, 0.2, 1.0):
        images = task_batch()
        support = images.support.clone().requires_grad_()
        batch = TaskBatch(support, images.support_labels, images.query, images.query_labels, WAYS)
        method.at(progress)
        trace = plain(method)(batch)
        loss = method.training_loss(trace, batch, progress)
        of_images, of_rates = torch.autograd.grad(loss, [support, method.step_rates.values], allow_unused=True)
        found[progress] = trace.scores, of_images
        assert of_rates.any()
    for progress, (scores, of_images) in found.items():
        assert torch.equal(scores, found[1.0][0])
        assert (of_images is None) == (progress < 0.2)
    with pytest.raises(SettingsError, match=r"made for 100% of training .* asked for at 10%; call at\(\)"):
        method.training_loss(plain(method)(task_batch()), task_batch(), 0.1)


def test_unless_told_otherwise_the_head_is_that_of_maml():
    backbone = smooth().backbone
    ours, theirs = MamlPlusPlus(backbone).maml.head, Maml(backbone).head
    assert (ours.in_features, ours.out_features) == (theirs.in_features, theirs.out_features)
    assert ours.out_features == 5


@pytest.mark.parametrize("vote", [LastOnly, Equal])
def test_the_multi_step_loss(vote):
    method, batch = improved(multi_step_epochs=10, training_epochs=40), task_batch()
    learner = MetaLearner(method, Hyperprior(Constant(0.1), vote()).double(), 3)
    method.at(5 / 40)
    trace = learner(batch)
    singles = learner(batch, every_epoch=True).epoch_scores
    exact(trace.epoch_scores, singles)
    losses = [meta_loss(singles[:, step], batch.query_labels) for step in range(3)]
    losses[-1] = meta_loss(trace.scores, batch.query_labels)
    shares = step_importance(5, 3, 10)
    expected = sum(share * loss for share, loss in zip(shares, losses, strict=True))
    exact(method.training_loss(trace, batch, 5 / 40), expected)
    method.at(10 / 40)
    trace = learner(batch)
    assert trace.epoch_scores is None
    assert torch.equal(method.training_loss(trace, batch, 10 / 40), meta_loss(trace.scores, batch.query_labels))
    with pytest.raises(SettingsError, match=r"made for 25% of training .* asked for at 0%; call at\(\)"):
        method.training_loss(trace, batch, 0.0)
    assert learner.eval()(batch).epoch_scores is None


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_shares_of_the_multi_step_loss(steps):
    for epoch in range(20):
        shares = step_importance(epoch, steps, 15)
        assert sum(shares) == pytest.approx(1.0, abs=1e-12)
        assert min(shares) == pytest.approx(max(1 / steps - epoch / (15 * steps), 0.03 / steps) if steps > 1 else 1.0)
    assert step_importance(0, steps, 15) == pytest.approx([1 / steps] * steps)


def test_the_epoch_of_every_step():
    """Steps that begin an epoch of training belong to it, whatever rounding says."""
    method = improved(training_epochs=100)
    for steps in (600, 50_000, 1_000_000):
        for epoch in (0, 1, 7, 15, 29, 58, 99):
            first = -(-epoch * steps // 100)
            assert method._epoch(first / steps) == epoch
            if epoch:
                assert method._epoch((first - 1) / steps) == epoch - 1


def test_the_outer_schedule():
    assert improved().outer_factor(0.7) == 1.0
    method = improved(lowest_outer_rate=0.1)
    assert [method.outer_factor(share) for share in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.55, 0.1])
    assert method.outer_factor(0.501) == method.outer_factor(0.509)  # by whole epochs


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("transductive", [False, True])
def test_statistics_of_every_step(transductive, checkpointed):
    """Training normalises by its own images and leaves each pass in its step's set; tests use the sets."""
    method = improved(maml=conv4, batchnorm="per_step", checkpointed=checkpointed)
    learner = generated(method, context("stats", method.maml, transductive))
    batch = task_batch(size=17, shots=2)
    assert not method.transductive
    assert len(method.maml.statistics.steps) == 3
    by_batch = improved(maml=conv4)
    assert torch.equal(
        learner(batch).scores, generated(by_batch, context("stats", by_batch.maml, transductive))(batch).scores
    )
    meta_loss(learner(batch).scores, batch.query_labels).backward()
    gathered = pop_statistics(learner)
    counts = [len(calls) for calls in gathered]
    assert sorted(counts) == [0] * 4 + [4] * 12  # two forward passes of two tasks, in three sets of four layers
    before = learner.eval()(batch).scores
    commit_statistics(learner, gathered)
    scores = learner(batch).scores
    assert not torch.allclose(scores, before)
    few = TaskBatch(batch.support, batch.support_labels, batch.query[:, :2], batch.query_labels[:, :2], WAYS)
    if not transductive:
        exact(learner(few).scores, scores[:, :2])


def test_fast_general_and_recomputed_paths_are_one():
    batch, results = task_batch(size=17, shots=2), []
    for settings in ({"fast": False}, {"fast": True}, {"fast": True, "checkpointed": True}):
        method = improved(maml=conv4, **settings)
        learner = generated(method, context("rms", method.maml, transductive=True))
        trace = learner(batch)
        loss = method.training_loss(trace, batch, 0.0)
        results.append((loss, torch.autograd.grad(loss, trained(learner))))
    for loss, gradients in results[1:]:
        exact(loss, results[0][0])
        for found, expected in zip(gradients, results[0][1], strict=True):
            exact(found, expected)


def test_tasks_classes_and_examples_in_another_order():
    method, batch = improved(), task_batch(shots=2)
    learner = plain(method)
    expected = learner(batch).scores
    for task in range(2):
        exact(learner(batch.tasks(task, task + 1)).scores[0], expected[task])
    order = torch.randperm(6, generator=torch.Generator().manual_seed(3))
    shuffled = TaskBatch(
        batch.support[:, order], batch.support_labels[:, order], batch.query.flip(1), batch.query_labels.flip(1), WAYS
    )
    exact(learner(shuffled).scores.flip(1), expected)
    to = torch.tensor([2, 0, 1])
    renamed = TaskBatch(batch.support, to[batch.support_labels], batch.query, to[batch.query_labels], WAYS)
    with torch.no_grad():  # the start is the classes' own
        method.maml.head.weight.copy_(method.maml.head.weight[to.argsort()])
        method.maml.head.bias.copy_(method.maml.head.bias[to.argsort()])
    exact(learner(renamed).scores[:, :, to], expected)


def test_every_trained_parameter_is_reached():
    method, batch = improved(), task_batch()
    learner = generated(method, context("stats", method.maml))
    learner.method.training_loss(learner(batch), batch, 0.0).backward()
    missing = [name for name, part in learner.named_parameters() if part.requires_grad and part.grad is None]
    assert missing == []


@pytest.fixture
def _without_shape_checks():
    """Users run without them: their errors must be ours."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("_without_shape_checks")
def test_errors_say_what_to_do():
    assert isinstance(improved(), Method)
    with pytest.raises(SettingsError, match="BatchNorm weights for 3 inner epochs but epoch 4 was asked for"):
        plain(improved(), epochs=4)(task_batch())
    with pytest.raises(SettingsError, match="learning rates for 3 inner epochs but epoch 4 was asked for"):
        plain(improved(step_weights=False), epochs=4)(task_batch())
    with pytest.raises(SettingsError, match="statistics for 3 inner epochs but epoch 4"):
        plain(improved(batchnorm="per_step", **OFF), epochs=4).eval()(task_batch())
    with pytest.raises(SettingsError, match="found 15 and 0 of 10"):
        improved(training_epochs=10)
    with pytest.raises(SettingsError, match="found 0 epochs at rate"):
        improved(epochs=0)
    with pytest.raises(SettingsError, match="made for 4 ways because of its linear head, but the tasks have 3"):
        MamlPlusPlus(SmoothNetwork(), ways=4).double().begin(task_batch())
    with pytest.raises(SettingsError, match="MAML needs a backbone that states"):
        MamlPlusPlus(nn.Flatten())
