"""LEO: its copies of codes against autograd, its terms, its limits, and chance that belongs to the task."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

from e3bm.core.adapt import adapt
from e3bm.core.context import Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, Method, meta_loss
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly, Learned
from e3bm.errors import SettingsError
from e3bm.methods import ReadyFeatures
from e3bm.methods.heads.labelled import LabelledSupport
from e3bm.methods.leo import Leo, TaskNoise

FEATURES, LATENTS, WAYS = 5, 3, 4


def leo(**settings):
    torch.manual_seed(1)
    options = {"latents": LATENTS, "latent_steps": 2, "weight_rate": 0.5, "dropout": 0.0} | settings
    method = Leo(ReadyFeatures(FEATURES), **options).double()
    with torch.no_grad():
        method.latent_rates.uniform_(0.2, 1.0)
        method.weight_rates.uniform_(0.2, 1.0)
    return method


def batch(tasks=2, shots=3, ways=WAYS, mask=None, seed=0):
    draw = torch.Generator().manual_seed(seed)
    features = lambda count: F.normalize(
        torch.randn(tasks, count, FEATURES, generator=draw, dtype=torch.float64), dim=-1
    )
    labels = lambda count: torch.arange(ways).repeat(count).expand(tasks, -1).contiguous()
    return TaskBatch(features(ways * shots), labels(shots), features(2 * ways), labels(2), ways, mask)


def plain(method, epochs=4, rate=1.0):
    hyperprior = Hyperprior(Constant(rate), LastOnly()).double()
    return MetaLearner(method, hyperprior, epochs)


def generated(method, epochs=4):
    psi = LstmGenerator(Context(Stats(transductive=True), transductive=True), 2, hidden=2)
    for part in psi.parameters():
        nn.init.normal_(part, std=0.3)
    values = [0.5 + 0.1 * epoch for epoch in range(epochs)]
    return MetaLearner(method, Hyperprior(Generated(values), Generated(values), psi).double(), epochs)


def exact(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def by_autograd(method, tasks, task, epochs, noise=None):
    """One task as published: a copy of its class's code for each example, inner gradients by autograd."""
    coder, real = method.coder, tasks.mask[task]
    support, labels = tasks.support[task][real], tasks.support_labels[task][real]
    codes = support @ coder.encoder
    count = len(codes)
    pairs = torch.cat([codes[:, None].expand(-1, count, -1), codes[None].expand(count, -1, -1)], -1)
    first, second, third = coder.relation
    related = ((pairs @ first).relu() @ second).relu() @ third
    by_class = torch.stack([related.mean(1)[labels == way].mean(0) for way in range(tasks.ways)])
    mean, exponent = by_class.chunk(2, -1)
    deviation = (exponent.exp() - 1).clamp_min(1e-10)
    owner = torch.cat([torch.full((int((labels == way).sum()),), way) for way in range(tasks.ways)])
    place = torch.cat([torch.arange(int((labels == way).sum())) for way in range(tasks.ways)])

    def draw(use, number, size):
        return noise.normal(use, number, int(place.max()) + 1, tasks.ways, size)[task][place, owner]

    def decode(latents, number):
        centre, spread = (latents @ coder.decoder).chunk(2, -1)
        if noise is None:
            return centre
        spread = (spread.exp() - 1 + (2 / (tasks.ways + FEATURES)) ** 0.5).clamp_min(1e-10)
        return centre + spread * draw("weights", number, FEATURES)

    def scores(weights, examples):
        return torch.stack([(examples @ weights[owner == way].mT).mean(-1) for way in range(tasks.ways)], -1)

    latents = mean[owner]
    if noise is not None:
        latents = latents + deviation[owner] * draw("codes", 0, LATENTS)
    weights = decode(latents, 0)
    for epoch in range(epochs):
        loss = F.cross_entropy(scores(weights, support), labels, reduction="sum")
        if epoch < method.latent_steps:
            (found,) = torch.autograd.grad(loss, latents, create_graph=True)
            latents = latents - method.latent_rates * found
            weights = decode(latents, epoch + 1)
        else:
            (found,) = torch.autograd.grad(loss, weights, create_graph=True)
            weights = weights - method.weight_rates * found
    return scores(weights, tasks.query[task])


UNEVEN = torch.tensor([[True] * 9 + [False, True, False], [True] * 8 + [False] * 4])


@pytest.mark.parametrize("mask", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("training", [False, True])
def test_it_is_the_published_loop_over_copies(training, mask):
    method, tasks = leo().train(training), batch(mask=mask)
    noise = TaskNoise(0, tasks) if training else None
    scores = plain(method)(tasks).scores
    expected = torch.stack([by_autograd(method, tasks, task, 4, noise) for task in range(2)])
    exact(scores, expected)
    parameters = list(method.parameters())
    ours = torch.autograd.grad(meta_loss(scores, tasks.query_labels), parameters)
    theirs = torch.autograd.grad(meta_loss(expected, tasks.query_labels), parameters)
    for found, wanted in zip(ours, theirs, strict=True):
        exact(found, wanted)


@pytest.mark.parametrize("training", [False, True])
def test_the_loss_has_the_right_derivative(training):
    """Through two steps on codes and two on weights; dropout and samples are constants of the task."""
    method = leo(dropout=0.2, encoder_penalty=0.0).train(training)
    learner, tasks = generated(method), batch(tasks=1)
    names = [name for name, _ in learner.named_parameters()]

    def loss(*values):
        trace = functional_call(learner, dict(zip(names, values, strict=True)), (tasks,))
        return meta_loss(trace.scores, tasks.query_labels) + 0.3 * trace.divergence.mean()

    values = tuple(value.detach().clone().requires_grad_() for value in learner.parameters())
    assert gradcheck(loss, values, fast_mode=True)


def test_the_encoder_penalty_pulls_the_start_alone():
    """Its derivative is that of a distance to where the codes came to rest, taken as a constant."""
    method, tasks = leo().train(), batch()
    problem = method.begin(tasks)
    trace = adapt(problem, Hyperprior(Constant(1.0), LastOnly()).double(), 4)
    first, state, one = problem.start(), problem.start(), torch.ones(2, dtype=torch.float64)
    for _ in range(2):
        state = problem.step(state, problem.direction(state), one)
    expected = (state.latents.detach() - first.latents).square().mean((1, 2, 3))
    exact(trace.moved, expected)
    found = torch.autograd.grad(trace.moved.sum(), method.coder.encoder, retain_graph=True)[0]
    exact(found, torch.autograd.grad(expected.sum(), method.coder.encoder)[0])


def test_first_order_takes_inner_gradients_as_constants():
    tasks, found = batch(), []
    for order in (True, False):
        method = leo(second_order=order).eval()
        scores = plain(method)(tasks).scores
        found.append((scores, torch.autograd.grad(meta_loss(scores, tasks.query_labels), list(method.parameters()))))
    exact(found[0][0], found[1][0])
    gaps = [float((one - two).abs().max()) for one, two in zip(found[0][1], found[1][1], strict=True)]
    assert min(gaps) > 1e-6


@pytest.mark.parametrize("epochs", [1, 4])
def test_without_moves_it_is_its_decoder(epochs):
    method, tasks = leo().eval(), batch()
    found = plain(method, epochs, rate=0.0)(tasks).scores
    with torch.no_grad():
        method.latent_rates.zero_()
        method.weight_rates.zero_()
    labelled = LabelledSupport(tasks.support_labels, tasks.mask, WAYS, torch.float64)
    mean, _ = method.coder.codes(tasks.support, labelled)
    expected = tasks.query @ (mean @ method.coder.decoder[:, :FEATURES]).mT
    exact(found, expected)
    exact(plain(method, epochs)(tasks).scores, expected)


def test_without_latent_steps_it_is_gradient_descent_from_the_decoded_weights():
    method, tasks = leo(latent_steps=0).eval(), batch(tasks=1, shots=1)
    labelled = LabelledSupport(tasks.support_labels, tasks.mask, WAYS, torch.float64)
    weight = method.coder.codes(tasks.support, labelled)[0][0] @ method.coder.decoder[:, :FEATURES]
    for _ in range(3):
        loss = F.cross_entropy(tasks.support[0] @ weight.mT, tasks.support_labels[0], reduction="sum")
        weight = weight - method.weight_rates * torch.autograd.grad(loss, weight, create_graph=True)[0]
    exact(plain(method, 3)(tasks).scores[0], tasks.query[0] @ weight.mT)


def test_classes_examples_and_queries_in_another_order():
    method, tasks = leo().eval(), batch()
    learner = generated(method)
    expected = learner(tasks).scores
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    shuffled = TaskBatch(
        tasks.support[:, order], tasks.support_labels[:, order], tasks.query.flip(1), tasks.query_labels.flip(1), WAYS
    )
    exact(learner(shuffled).scores.flip(1), expected)
    to = torch.tensor([2, 0, 3, 1])
    renamed = TaskBatch(tasks.support, to[tasks.support_labels], tasks.query, to[tasks.query_labels], WAYS)
    exact(learner(renamed).scores[:, :, to], expected)


def test_padding_has_no_influence():
    for training in (False, True):
        learner, tasks = generated(leo(dropout=0.3).train(training)), batch(mask=UNEVEN)
        expected = learner(tasks).scores
        changed = torch.where(UNEVEN.unsqueeze(-1), tasks.support, torch.full_like(tasks.support, 7.0))
        exact(
            learner(TaskBatch(changed, tasks.support_labels, tasks.query, tasks.query_labels, WAYS, tasks.mask)).scores,
            expected,
        )


@pytest.mark.parametrize("mask", [None, UNEVEN], ids=["even", "uneven"])
def test_chance_belongs_to_the_task(mask):
    """The same task has the same noise alone, in company and again; other tasks and other seeds have other noise."""
    learner, tasks = generated(leo(dropout=0.3).train()), batch(mask=mask)
    trace = learner(tasks)
    for task in range(2):
        alone = learner(tasks.tasks(task, task + 1))
        exact(alone.scores[0], trace.scores[task])
        exact(alone.divergence[0], trace.divergence[task])
    assert torch.equal(learner(tasks).scores, trace.scores)
    noise, other = TaskNoise(0, tasks), TaskNoise(1, tasks)
    first = noise.normal("codes", 0, 2, 3)
    assert torch.equal(noise.normal("codes", 0, 5, 3)[:, :2], first)
    for different in (noise.normal("codes", 1, 2, 3), noise.normal("weights", 0, 2, 3), other.normal("codes", 0, 2, 3)):
        assert float((different - first).abs().min()) > 0
    assert float((first[0] - first[1]).abs().min()) > 0


def test_dropout_keeps_the_mean():
    kept = TaskNoise(0, batch()).kept("support", 0, 0.75, 200, 50)
    assert set(kept.unique().tolist()) == {0.0, 1 / 0.75}
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.02)  # six standard deviations


def test_tests_have_neither_noise_nor_its_terms():
    method, tasks = leo(dropout=0.3), batch()
    trace = plain(method.eval())(tasks)
    assert not trace.divergence.any()
    assert not trace.moved.any()
    samples = plain(method.train())(tasks)
    assert bool((samples.moved > 0).all())
    assert not torch.allclose(samples.scores, trace.scores)


def test_the_terms_of_the_loss():
    method = leo(divergence=2.0, encoder_penalty=3.0, decay=0.0, orthogonality=0.0).train()
    tasks = batch()
    trace = plain(method)(tasks)
    expected = meta_loss(trace.scores, tasks.query_labels) + 2 * trace.divergence.mean() + 3 * trace.moved.mean()
    exact(method.training_loss(trace, tasks, 0.5), expected)
    coder = method.coder
    with torch.no_grad():
        coder.decoder.copy_(torch.eye(LATENTS, 2 * FEATURES, dtype=torch.float64))
        exact(coder.correlation(), torch.zeros((), dtype=torch.float64))
        coder.decoder.normal_()
        before = coder.correlation()
        coder.decoder[1] *= 7
    exact(coder.correlation(), before)
    # A code that is a standard normal: every sample's log density is that of the prior.
    with torch.no_grad():
        coder.decoder.zero_()
        coder.codes = lambda support, labelled: (torch.zeros(2, WAYS, 3).double(), torch.ones(2, WAYS, 3).double())
    exact(plain(method)(tasks).divergence, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("weight", [LastOnly, Equal, lambda: Learned([0.1, 0.2, 0.3, 0.4])])
def test_votes_collapse_into_one_matrix(weight):
    method, tasks = leo().eval(), batch()
    learner = MetaLearner(method, Hyperprior(Constant(1.0), weight()).double(), 4)
    trace, ensemble = learner.adapt(tasks, every_epoch=True)
    exact(trace.scores, torch.einsum("tm,tmqw->tqw", trace.weights, trace.epoch_scores))
    exact(method.begin(tasks).collapse(ensemble).scores(7 * tasks.query), trace.scores)


def test_any_number_of_ways_and_bad_settings():
    assert isinstance(leo(), Method)
    assert plain(leo())(batch(ways=7)).scores.shape == (2, 14, 7)
    with pytest.raises(SettingsError, match=r"at least 1 latent number .* found 0 numbers and 5 steps"):
        Leo(ReadyFeatures(FEATURES), latents=0)
    with pytest.raises(SettingsError, match=r"below 1, found 1\.0"):
        Leo(ReadyFeatures(FEATURES), dropout=1.0)
