"""MAML with every kind of hyperprior: derivatives against finite differences, what the context holds, training."""

import pytest
import torch
import torch.nn.functional as F
from tests.methods.maml_tasks import WAYS, context, conv4, generated, plain, smooth, task_batch
from torch.autograd import gradcheck
from torch.func import functional_call

from e3bm.backbones import batchnorm_mode
from e3bm.core.context import TINY
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, kl_to_base, meta_loss
from e3bm.core.schedules import Constant, Equal, Frozen, LastOnly, Learned


def exact(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def loss_of(learner, batch):
    """The meta-loss as a function of all parameters of a learner."""
    names = [name for name, _ in learner.named_parameters()]

    def loss(*values):
        trace = functional_call(learner, dict(zip(names, values, strict=True)), (batch,))
        return meta_loss(trace.scores, batch.query_labels)

    return loss, tuple(value.detach().clone().requires_grad_() for value in learner.parameters())


@pytest.mark.parametrize("generator", ["fc", "lstm"])
@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("summary", ["rms", "stats"])
def test_the_meta_gradient_of_weights_alpha_v_and_psi(summary, transductive, generator):
    method = smooth()
    learner = generated(method, context(summary, method, transductive), generator, epochs=2)
    whole = (summary, transductive) == ("stats", True)  # every number once; elsewhere a random direction
    assert gradcheck(*loss_of(learner, task_batch(tasks=1)), fast_mode=not whole)


@pytest.mark.parametrize(("summary", "mixing"), [("flat", "residual"), ("class_mean", "convex"), ("rms", "literal")])
def test_the_meta_gradient_with_other_summaries_and_mixings(summary, mixing):
    method = smooth()
    learner = generated(method, context(summary, method), "lstm", epochs=2, mixing=mixing)
    assert gradcheck(*loss_of(learner, task_batch(tasks=1)), fast_mode=True)


@pytest.mark.parametrize("settings", [{"checkpointed": True}, {"batchnorm": "running"}, {"loss_scale": "mean"}])
def test_the_meta_gradient_in_other_modes(settings):
    method = smooth(**settings)
    learner = generated(method, context("rms", method, transductive=True), "lstm", epochs=2)
    assert gradcheck(*loss_of(learner.eval(), task_batch(tasks=2)), fast_mode=True)


def named(part):
    return type(part).__name__


@pytest.mark.parametrize("rate", [Constant(0.1), Learned([0.1, 0.2]), Frozen([0.1, 0.2])], ids=named)
@pytest.mark.parametrize("weight", [LastOnly(), Equal(), Learned([0.3, 0.6])], ids=named)
def test_the_meta_gradient_with_every_schedule(rate, weight):
    learner = MetaLearner(smooth(), Hyperprior(rate, weight).double(), 2)
    assert gradcheck(*loss_of(learner, task_batch(tasks=1)), fast_mode=True)


@pytest.mark.parametrize("generator", ["fc", "lstm"])
@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize(
    ("summary", "second_order"), [("rms", True), ("stats", True), ("flat", True), ("class_mean", True), ("rms", False)]
)
def test_all_kinds_run_and_reach_every_parameter(summary, transductive, generator, second_order):
    method = conv4(second_order=second_order)
    learner = generated(method, context(summary, method, transductive), generator)
    batch = task_batch(size=17)
    trace = learner(batch)
    loss = meta_loss(trace.scores, batch.query_labels) + kl_to_base(trace, learner.hyperprior)
    loss.backward()
    missing = [name for name, part in learner.named_parameters() if part.grad is None]
    assert missing == []
    assert trace.rates.shape == trace.weights.shape == trace.losses.shape == (2, 3)
    assert not torch.allclose(trace.rates[0], trace.rates[1])  # generated for each task


def test_what_the_context_holds():
    method, batch = smooth(), task_batch(tasks=2, shots=2)
    problem = method.begin(batch)
    basis, state = problem.basis(), problem.start()
    direction = problem.direction(state)
    seen = problem.observe(state, direction)
    for task in range(2):
        with batchnorm_mode(method.backbone, "batch"):
            support, query = method.backbone(batch.support[task]), method.backbone(batch.query[task])
        exact(basis.support()[task], support.view(-1, 2, 4).mean(-1))  # 2 channels of 4 positions
        exact(basis.query()[task], query.view(-1, 2, 4).mean(-1))
        loss = WAYS * F.cross_entropy(method.head(support), batch.support_labels[task])
        parts = [part for name, part in method.named_parameters() if "norm" not in name]
        gradients = dict(
            zip(
                [name for name, _ in method.named_parameters() if "norm" not in name],
                torch.autograd.grad(loss, parts),
                strict=True,
            )
        )
        exact(seen.loss()[task], loss)
        exact(seen.squared_norm()[task], sum(part.square().sum() for part in gradients.values()))
        exact(seen.coefficients()[task], gradients["head.weight"].mT)
        exact(seen.query_scores()[task], method.head(query))
        # The head's gradient as ways x channels x positions, root mean square over ways and positions.
        by_channel = gradients["head.weight"].view(WAYS, 2, 4)
        rows = torch.eye(2, dtype=torch.float64)[None]
        read = context("rms", method).summary.bind(basis, rows, torch.zeros(1, 2, 2, dtype=torch.float64), False)
        exact(read.value(0, read.see(seen))[task], (by_channel.square().mean((0, 2)) + TINY).sqrt())


def test_embeddings_of_padded_tasks():
    method, batch = smooth(), task_batch(tasks=2, shots=2)
    mask = torch.ones(2, 2 * WAYS, dtype=torch.bool)
    mask[0, 1] = mask[1, -1] = False
    labels = torch.arange(WAYS).repeat_interleave(2).expand(2, -1).contiguous()
    padded = TaskBatch(batch.support, labels, batch.query, batch.query_labels, WAYS, mask)
    basis = method.begin(padded).basis()
    for task in range(2):
        with batchnorm_mode(method.backbone, "batch"):
            real = method.backbone(batch.support[task][mask[task]]).view(-1, 2, 4).mean(-1)
        exact(basis.support()[task][mask[task]], real)
        exact(basis.support_mean()[task], real.mean(0))


def test_a_detached_context_stops_gradients_at_the_generator():
    method, batch = smooth(), task_batch()
    results = []
    for detach in (False, True):
        learner = generated(method, context("rms", method, transductive=True, detach=detach))
        loss = meta_loss(learner(batch).scores, batch.query_labels)
        results.append((loss, torch.autograd.grad(loss, method.backbone.conv.weight)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.allclose(results[0][1], results[1][1])


def test_delta_of_zero_is_plain_maml():
    method, batch = smooth(), task_batch()
    learner = generated(method, context("stats", method))
    with torch.no_grad():
        for part in learner.hyperprior.generator.parameters():
            part.zero_()
        learner.hyperprior.rate.values.fill_(0.1)
        learner.hyperprior.weight.values.copy_(torch.tensor([0.0, 0.0, 1.0]))
    assert torch.equal(learner(batch).scores, plain(method, 0.1, 3)(batch).scores)


def test_the_lstm_trains_over_many_episodes():
    method = conv4()
    learner = generated(method, context("stats", method))
    before = [part.detach().clone() for part in learner.hyperprior.parameters()]
    optimiser = torch.optim.Adam(learner.parameters(), 3e-3)
    losses = []
    for step in range(8):
        batch = task_batch(tasks=2, size=17, seed=step % 2)
        loss = meta_loss(learner(batch).scores, batch.query_labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2])
    after = list(learner.hyperprior.parameters())
    assert all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    # Nothing of an episode stays behind: the same task gives the same answer whatever came before it.
    again = learner(batch).scores
    learner(task_batch(size=17, seed=5))
    assert torch.equal(learner(batch).scores, again)


@pytest.mark.parametrize("second_order", [True, False])
@pytest.mark.parametrize("updates", [0, 1])
def test_in_first_order_all_that_is_observed_is_a_constant(second_order, updates):
    """Otherwise a transductive hyperprior would pull a second-order graph through the queries."""
    problem = smooth(second_order=second_order).begin(task_batch())
    state = problem.start()
    for _ in range(updates):
        state = problem.step(state, problem.direction(state), torch.full((2,), 0.1, dtype=torch.float64))
    seen = problem.observe(state, problem.direction(state))
    for name in ("coefficients", "squared_norm", "loss", "query_scores"):
        assert getattr(seen, name)().requires_grad is second_order, name
