"""Bayesian MAML: particles by hand, their symmetries, the limits that are other methods, and the chaser's leader."""

import math

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import config
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

from e3bm.core.context import Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, Method, meta_loss
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly
from e3bm.errors import SettingsError
from e3bm.methods import Maml, Mtl, ReadyFeatures
from e3bm.methods.bayesian_maml import BayesianMaml, stein_direction, stein_kernel
from e3bm.paper.presets import find_preset
from e3bm.runs.settings import TrainSettings
from e3bm.settings import read_settings

FEATURES, WAYS = 4, 3


def bayesian(**settings):
    torch.manual_seed(1)
    options = {"ways": WAYS, "particles": 4, "spread": 1.0} | settings
    method = BayesianMaml(ReadyFeatures(FEATURES), **options).double()
    nn.init.normal_(method.bias)
    return method


def batch(tasks=2, shots=2, ways=WAYS, mask=None):
    draw = torch.Generator().manual_seed(0)
    features = lambda count: torch.randn(tasks, count, FEATURES, generator=draw, dtype=torch.float64)
    labels = lambda count: torch.arange(ways).repeat(count).expand(tasks, -1).contiguous()
    return TaskBatch(features(ways * shots), labels(shots), features(2 * ways), labels(2), ways, mask)


def plain(method, rate=0.05, epochs=3):
    hyperprior = Hyperprior(Constant(0.0), LastOnly()).double()
    hyperprior.rate.value.fill_(rate)
    return MetaLearner(method, hyperprior, epochs)


def generated(method, epochs=3):
    psi = LstmGenerator(Context(Stats(transductive=True), transductive=True), 2, hidden=2)
    for part in psi.parameters():
        nn.init.normal_(part, std=0.3)
    schedules = Generated([0.05, 0.04, 0.06]), Generated([0.2, 0.3, 0.5])
    return MetaLearner(method, Hyperprior(*schedules, psi).double(), epochs)


def exact(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def by_hand(method, tasks, task, rate, epochs):
    """One task's particles, one number of the kernel at a time."""
    particles = [torch.cat([weight, bias[:, None]], 1) for weight, bias in zip(method.weight, method.bias, strict=True)]
    ones = torch.ones(tasks.support.shape[1], 1, dtype=torch.float64)
    support = torch.cat([tasks.support[task], ones], 1)
    query = torch.cat([tasks.query[task], torch.ones(tasks.query.shape[1], 1, dtype=torch.float64)], 1)
    count = len(particles)
    for _ in range(epochs):
        scores = []
        for particle in particles:
            loss = F.cross_entropy(support @ particle.mT, tasks.support_labels[task], reduction="sum")
            loss = loss + method.prior_precision / 2 * particle.square().sum()
            scores.append(-torch.autograd.grad(loss, particle, create_graph=True)[0])
        distances = [float((p - q).detach().square().sum()) for q in particles for p in particles]
        ordered = torch.tensor(distances, dtype=torch.float64).sort().values
        middle = (ordered[(count * count - 1) // 2] + ordered[count * count // 2]) / 2
        width = middle / math.log(count)
        moved = []
        for own in particles:
            total = torch.zeros_like(own)
            for other, score in zip(particles, scores, strict=True):
                kernel = (-(own - other).square().sum() / width).exp()
                total = total + kernel * score + kernel * (own - other) / width
            moved.append(own + rate * total / count)
        particles = moved
    probabilities = torch.stack([(query @ particle.mT).softmax(-1) for particle in particles])
    return probabilities.mean(0).log()


def test_it_is_the_published_update_particle_by_particle():
    method, tasks = bayesian(prior_precision=0.3), batch()
    scores = plain(method)(tasks).scores
    expected = torch.stack([by_hand(method, tasks, task, 0.05, 3) for task in range(2)])
    exact(scores, expected)
    parameters = [method.weight, method.bias]
    ours = torch.autograd.grad(meta_loss(scores, tasks.query_labels), parameters)
    theirs = torch.autograd.grad(meta_loss(expected, tasks.query_labels), parameters)
    for found, wanted in zip(ours, theirs, strict=True):
        exact(found, wanted)
    exact(scores.exp().sum(-1), torch.ones(2, 6, dtype=torch.float64))


@pytest.mark.parametrize("interaction", ["stein", "kernel", "independent"])
@pytest.mark.parametrize("kernel", ["matrix", "pairs", "mean"])
def test_the_loss_has_the_right_derivative(kernel, interaction, monkeypatch):
    """Widths by medians are constants, so they are held still here; that of the mean has its derivative."""
    if kernel != "mean":
        monkeypatch.setattr(
            "e3bm.methods.bayesian_maml.kernel_width", lambda squares, width: squares.new_full(squares.shape[:-2], 7.0)
        )
    method = bayesian(kernel=kernel, interaction=interaction, particles=2, prior_precision=0.2)
    learner, tasks = generated(method), batch(tasks=1)
    names = [name for name, _ in learner.named_parameters()]

    def loss(*values):
        trace = functional_call(learner, dict(zip(names, values, strict=True)), (tasks,))
        return meta_loss(trace.scores, tasks.query_labels)

    values = tuple(value.detach().clone().requires_grad_() for value in learner.parameters())
    assert gradcheck(loss, values, fast_mode=True)


@pytest.mark.parametrize("second_order", [True, False])
@pytest.mark.parametrize("interaction", ["stein", "kernel", "independent"])
def test_one_particle_is_mtl_with_a_linear_head(interaction, second_order):
    """Their likelihood is a sum, ours a mean: the rate is multiplied by the number of examples."""
    one = bayesian(particles=1, interaction=interaction, second_order=second_order)
    tasks = batch()
    mtl = Mtl(ReadyFeatures(FEATURES), ways=WAYS, second_order=second_order).double()
    with torch.no_grad():
        mtl.initialiser.weight.copy_(one.weight[0])
        mtl.initialiser.bias.copy_(one.bias[0])
    ours, theirs = plain(one, 0.05)(tasks), plain(mtl, 0.05 * 6)(tasks)
    exact(ours.scores, theirs.scores.log_softmax(-1))
    exact(ours.losses, theirs.losses)
    losses = [meta_loss(trace.scores, tasks.query_labels) for trace in (ours, theirs)]
    exact(torch.autograd.grad(losses[0], one.weight)[0][0], torch.autograd.grad(losses[1], mtl.initialiser.weight)[0])


def test_one_particle_is_maml_with_a_network_without_weights():
    class Pixels(nn.Flatten):
        feature_size, feature_positions = FEATURES, 1

    one, tasks = bayesian(particles=1), batch()
    maml = Maml(Pixels(), ways=WAYS, loss_scale="mean").double()
    with torch.no_grad():
        maml.head.weight.copy_(one.weight[0])
        maml.head.bias.copy_(one.bias[0])
    shape = lambda values: values.view(*values.shape[:2], 1, 2, 2)
    images = TaskBatch(shape(tasks.support), tasks.support_labels, shape(tasks.query), tasks.query_labels, WAYS)
    found = plain(one, 0.05)(tasks).scores
    exact(found, plain(maml, 0.05 * 6)(images).scores.log_softmax(-1))


def test_independent_particles_are_each_alone():
    tasks, together = batch(), bayesian(interaction="independent")
    answers = []
    for particle in range(4):
        alone = bayesian(particles=1)
        with torch.no_grad():
            alone.weight.copy_(together.weight[particle : particle + 1])
            alone.bias.copy_(together.bias[particle : particle + 1])
        answers.append(plain(alone)(tasks).scores.exp())
    exact(plain(together)(tasks).scores.exp(), torch.stack(answers).mean(0))


def test_particles_classes_and_examples_in_another_order():
    tasks, method = batch(), bayesian()
    expected = plain(method)(tasks).scores
    with torch.no_grad():
        method.weight.copy_(method.weight[[2, 0, 3, 1]])
        method.bias.copy_(method.bias[[2, 0, 3, 1]])
    exact(plain(method)(tasks).scores, expected)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(3))
    shuffled = TaskBatch(
        tasks.support[:, order], tasks.support_labels[:, order], tasks.query.flip(1), tasks.query_labels.flip(1), WAYS
    )
    exact(plain(method)(shuffled).scores.flip(1), expected)
    to = torch.tensor([2, 0, 1])
    renamed = TaskBatch(tasks.support, to[tasks.support_labels], tasks.query, to[tasks.query_labels], WAYS)
    with torch.no_grad():  # the start is the classes' own
        method.weight.copy_(method.weight[:, to.argsort()])
        method.bias.copy_(method.bias[:, to.argsort()])
    exact(plain(method)(renamed).scores[:, :, to], expected)


@pytest.mark.parametrize("width", ["matrix", "pairs", "mean"])
@pytest.mark.parametrize("count", [2, 4, 5])
def test_the_kernel(count, width):
    particles = torch.randn(2, count, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = stein_kernel(particles, width)
    exact(kernel.values, kernel.values.mT)
    assert torch.equal(kernel.values.diagonal(dim1=1, dim2=2), torch.ones(2, count, dtype=torch.float64))
    exact(kernel.repulsion.sum(1), torch.zeros(2, 7, dtype=torch.float64))
    moved = stein_kernel(particles + 3.0, width)
    exact(moved.values, kernel.values)
    exact(moved.repulsion, kernel.repulsion)
    # Half the kernel's gradient: the published code leaves out the 2 of the square.
    wide = kernel.width.view(-1, 1, 1)
    own = particles.clone().requires_grad_()
    squares = (own.unsqueeze(2) - particles.unsqueeze(1)).square().sum(-1)
    exact(kernel.repulsion, -torch.autograd.grad((-squares / wide).exp().sum(), own)[0] / 2)


def test_repulsion_drives_particles_apart():
    particles = torch.randn(1, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spread = lambda where: torch.pdist(where[0]).mean()
    nothing = torch.zeros_like(particles)
    moved = particles + stein_direction(particles, nothing, "matrix")
    assert spread(moved) > spread(particles)
    assert torch.equal(stein_direction(particles, nothing, "matrix", repulsion=False), nothing)


@pytest.mark.parametrize("width", ["matrix", "pairs", "mean"])
def test_equal_particles_stay_together(width):
    particles = torch.ones(1, 3, 2, dtype=torch.float64, requires_grad=True)
    scores = torch.full((1, 3, 2), 2.0, dtype=torch.float64)
    moved = stein_direction(particles, scores, width)
    exact(moved, scores)
    assert bool(torch.isfinite(torch.autograd.grad(moved.sum(), particles)[0]).all())


def test_padding_has_no_influence():
    mask = torch.tensor([[True] * 5 + [False], [True, True, True, False, True, False]])
    tasks, learner = batch(mask=mask), generated(bayesian(loss="chaser", prior_precision=0.1))
    changed = torch.where(mask.unsqueeze(-1), tasks.support, torch.full_like(tasks.support, 9.0))
    other = TaskBatch(changed, tasks.support_labels, tasks.query, tasks.query_labels, WAYS, mask)
    found, expected = learner(other), learner(tasks)
    exact(found.scores, expected.scores)
    exact(found.chase, expected.chase)
    short = TaskBatch(
        tasks.support[:1, :5], tasks.support_labels[:1, :5], tasks.query[:1], tasks.query_labels[:1], WAYS
    )
    exact(learner(short).scores[0], expected.scores[0])


def test_the_leader_is_never_heard_of_in_the_scores():
    tasks, learner = batch(), plain(bayesian(loss="chaser"))
    other = TaskBatch(tasks.support, tasks.support_labels, tasks.query, (tasks.query_labels + 1) % WAYS, WAYS)
    trace, changed = learner(tasks), learner(other)
    assert torch.equal(trace.scores, changed.scores)
    assert bool((trace.chase != changed.chase).all())
    query = tasks.query.clone().requires_grad_()
    trace = learner(TaskBatch(tasks.support, tasks.support_labels, query, tasks.query_labels, WAYS))
    assert torch.autograd.grad(trace.chase.sum(), query, allow_unused=True)[0] is None


def test_the_chaser_without_steps_has_nothing_to_chase():
    tasks = batch()
    assert not plain(bayesian(loss="chaser", leader_steps=0))(tasks).chase.any()
    method = bayesian(loss="chaser")
    assert plain(method.eval())(tasks).chase is None
    with pytest.raises(SettingsError, match=r"leader that only training has; call train\(\)"):
        method.training_loss(plain(method)(tasks), tasks, 0.0)
    unlabelled = TaskBatch(tasks.support, tasks.support_labels, tasks.query, None, WAYS)
    assert plain(method.train())(unlabelled).chase is None


def test_the_chaser_has_no_use_for_votes_that_are_learned():
    """Settings that ask for both are refused when they are read, and a learner made by hand when it is trained."""
    for weight in ("learned", "generated"):
        chosen = {"method": {"name": "bayesian_maml", "loss": "chaser"}, "hyperprior": {"weight": weight}}
        with pytest.raises(SettingsError, match=r"^Settings: the chaser loss does not use the votes, .* to mixture\.$"):
            read_settings(TrainSettings, chosen)
    with pytest.raises(SettingsError, match="chaser loss does not use the votes"):
        find_preset("small-bmaml-fc100-1shot-lstm-inductive").train.but(method__loss="chaser")
    chosen = {"method": {"name": "bayesian_maml", "loss": "chaser"}, "hyperprior": {"rate": "generated"}}
    assert read_settings(TrainSettings, chosen).method.loss == "chaser"
    tasks, learner = batch(), generated(bayesian(loss="chaser"))
    with pytest.raises(SettingsError, match="chaser loss does not use the votes"):
        learner.training_loss(learner(tasks), tasks, 0.0)


def test_votes_are_a_weighted_sum_of_epochs():
    tasks = batch()
    for learner in (generated(bayesian()), MetaLearner(bayesian(), Hyperprior(Constant(0.05), Equal()).double(), 3)):
        trace = learner(tasks, every_epoch=True)
        exact(trace.scores, torch.einsum("tm,tmqw->tqw", trace.weights, trace.epoch_scores))
        for task in range(2):
            exact(learner(tasks.tasks(task, task + 1)).scores[0], trace.scores[task])


def test_what_a_hyperprior_sees():
    tasks, method = batch(), bayesian()
    problem = method.begin(tasks)
    state = problem.start().detach().requires_grad_()
    seen = problem.observe(state, problem.direction(state))
    logits = problem.lesson.examples.unsqueeze(1) @ state.mT  # T P S W
    labels = tasks.support_labels.unsqueeze(1).expand(-1, 4, -1)
    loss = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(2, 4, 6).mean((1, 2))
    exact(seen.loss(), loss)
    gradient = torch.autograd.grad(loss.sum(), state)[0].sum(1)  # the gradient of all particles, moved as one
    exact(problem.basis().dense(seen.coefficients()).mT, gradient[..., :-1])
    exact(seen.squared_norm(), gradient.square().sum((1, 2)))
    exact(seen.query_scores(), problem.query_scores(state))


def test_features_of_one_length():
    tasks, method = batch(), bayesian(feature_length=2.0)
    longer = TaskBatch(3 * tasks.support, tasks.support_labels, 5 * tasks.query, tasks.query_labels, WAYS)
    exact(plain(method)(longer).scores, plain(method)(tasks).scores)
    exact(method.begin(tasks).lesson.examples[..., :-1].norm(dim=-1), torch.full((2, 6), 2.0, dtype=torch.float64))


@pytest.fixture
def _without_shape_checks():
    """Users run without them: their errors must be ours."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("_without_shape_checks")
def test_bad_settings_are_one_clear_sentence():
    assert isinstance(bayesian(), Method)
    with pytest.raises(SettingsError, match=r"^The distances between 1000000 particles .* use fewer particles\.$"):
        bayesian(particles=1_000_000)
    with pytest.raises(
        SettingsError, match=r"need more than a million GB for one task, more than half of this machine's [\d,.]+ GB;"
    ):
        bayesian(particles=1_000_000_000)
    assert bayesian(particles=100_000, interaction="independent").weight.shape[0] == 100_000  # there are no distances
    with pytest.raises(SettingsError, match=r"^1000000000000 particles of .* use fewer particles\.$"):
        bayesian(particles=1_000_000_000_000, interaction="independent")
    with pytest.raises(SettingsError, match=r"made for 3 ways because of its particles, .* the tasks have 5"):
        bayesian().begin(batch(ways=5))
    with pytest.raises(SettingsError, match=r"at least 1 particle .* found 0 particles"):
        bayesian(particles=0)
    with pytest.raises(SettingsError, match="no kernel 'org'; known: matrix, pairs, mean"):
        bayesian(kernel="org")


def test_distances_of_all_tasks_and_epochs_of_a_training_step_must_fit_into_memory(monkeypatch):
    """A step keeps them for its gradients: particles that fit into memory once may not fit all at a time."""
    at_once = 4**2 * WAYS * (FEATURES + 1) * 4  # bytes of one task and epoch
    memory = lambda times: {"SC_PAGE_SIZE": 2 * at_once, "SC_PHYS_PAGES": times}
    monkeypatch.setattr("os.sysconf", lambda name: memory(6)[name])  # half of it: two tasks of three epochs
    method = bayesian(epochs=3)
    method.begin(batch(tasks=2))
    with pytest.raises(SettingsError, match=r"for 3 tasks of 3 epochs, more than half .* fewer tasks in a step"):
        method.begin(batch(tasks=3))
    with torch.no_grad():
        method.begin(batch(tasks=6))
    with torch.no_grad(), pytest.raises(SettingsError, match=r"for 7 tasks, more than half"):
        method.begin(batch(tasks=7))
    monkeypatch.setattr("os.sysconf", lambda name: memory(1)[name])
    with pytest.raises(SettingsError, match=r"for one task of 3 epochs, .* use fewer particles\.$"):
        method.begin(batch(tasks=1))
