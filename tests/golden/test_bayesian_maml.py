"""Bayesian MAML against numbers of the authors' particle update: with our classifiers, and with their regression."""

from pathlib import Path

import numpy as np
import pytest
import torch

from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods import ReadyFeatures
from e3bm.methods.bayesian_maml import BayesianMaml, stein_direction, stein_kernel

HERE = Path(__file__).parent / "systems"
WIDTHS = {"org": "matrix", "org_first_order": "matrix", "med": "pairs", "mean": "mean"}


def load(name):
    return {key: torch.from_numpy(np.asarray(value)) for key, value in np.load(HERE / f"{name}.npz").items()}


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def classifier(data, case, loss):
    method = BayesianMaml(
        ReadyFeatures(4),
        ways=int(data["ways"]),
        kernel=WIDTHS[case],
        prior_precision=float(data["prior_precision"]),
        loss=loss,
        leader_steps=int(data["leader_steps"]),
        leader_rate=float(data["leader_rate"]),
        second_order="first_order" not in case,
    ).double()
    with torch.no_grad():
        method.weight.copy_(data["weight"])
        method.bias.copy_(data["bias"])
    hyperprior = Hyperprior(Constant(0.0), LastOnly()).double()
    hyperprior.rate.value.copy_(data["follow_rate"])
    return MetaLearner(method, hyperprior, int(data["follow_steps"]))


@pytest.mark.parametrize("loss", ["mixture", "chaser"])
@pytest.mark.parametrize("case", ["org", "org_first_order", "med"])
def test_scores_losses_and_gradients(case, loss):
    data = load("bmaml")
    learner = classifier(data, case, loss)
    support, query = (data[part].clone().requires_grad_() for part in ("support", "query"))
    batch = TaskBatch(support, data["support_labels"], query, data["query_labels"], int(data["ways"]))
    trace = learner(batch)
    close(trace.scores, data[f"{case}/scores"])
    found = learner.method.training_loss(trace, batch, 0.0)
    close(found, data[f"{case}/{loss}_loss"])
    inputs = {"weight": learner.method.weight, "bias": learner.method.bias, "support": support, "query": query}
    gradients = torch.autograd.grad(found, list(inputs.values()), allow_unused=True)
    for name, gradient in zip(inputs, gradients, strict=True):
        expected = data[f"{case}/{loss}_grad/{name}"]
        close(torch.zeros_like(expected) if gradient is None else gradient, expected)


@pytest.mark.parametrize("case", ["org", "org_first_order", "med"])
def test_particles_and_kernel_widths_on_the_way(case):
    data = load("bmaml")
    method = classifier(data, case, "chaser").method
    batch = TaskBatch(data["support"], data["support_labels"], data["query"], data["query_labels"], int(data["ways"]))
    problem = method.begin(batch)
    state, rate = problem.start(), data["follow_rate"].expand(2)
    for step in range(int(data["follow_steps"])):
        close(stein_kernel(state.flatten(2), method.kernel).width, data[f"{case}/follower_h"][:, step])
        state = problem.step(state, problem.direction(state), rate)
    close(state[..., :-1], data[f"{case}/follower_weight"])
    close(state[..., -1], data[f"{case}/follower_bias"])
    close(problem.query.unsqueeze(1) @ state.mT, data[f"{case}/particle_scores"])
    close(stein_kernel(state.flatten(2), method.kernel).width, data[f"{case}/leader_h"][:, 0])
    state = state + method.leader_rate * method.ascent(state, problem._leader)
    close(state[..., :-1], data[f"{case}/leader_weight"])
    close(state[..., -1], data[f"{case}/leader_bias"])


class Regression:
    """The network and the log posterior of the authors' regression, for one task's particles [P, N]."""

    def __init__(self, data):
        self.data = data
        self.names = [key.removeprefix("particles/") for key in data if key.startswith("particles/")]
        self.shapes = [data[f"particles/{name}"].shape[1:] for name in self.names]

    def start(self):
        return {name: self.data[f"particles/{name}"].clone().requires_grad_() for name in self.names}

    def together(self, parts):
        return torch.cat([part.flatten(1) for part in parts.values()], 1)

    def apart(self, particles):
        pieces = particles.split([shape.numel() for shape in self.shapes], 1)
        return {
            name: piece.view(-1, *shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }

    def predictions(self, parts, x):
        hidden = x.expand(len(parts["w1"]), -1, -1)
        for layer in (1, 2, 3):
            hidden = hidden @ parts[f"w{layer}"] + parts[f"b{layer}"].unsqueeze(1)
            hidden = hidden.relu() if layer < 3 else hidden
        return hidden

    def log_posterior(self, particles, x, y):
        parts, data = self.apart(particles), self.data
        log_lambda, log_gamma = parts["log_lambda"][:, 0], parts["log_gamma"][:, 0]
        errors = (self.predictions(parts, x) - y).square().sum((1, 2))
        likelihood = len(x) * log_gamma / 2 - log_gamma.exp() * errors / 2
        weights = torch.cat([part.flatten(1) for name, part in parts.items() if not name.startswith("log")], 1)
        prior = weights.shape[1] * log_lambda / 2 - log_lambda.exp() * weights.square().sum(1) / 2
        for kind, log in (("lambda", log_lambda), ("gamma", log_gamma)):
            prior = prior + (data[f"a_{kind}"] - 1) * log - data[f"b_{kind}"] * log.exp() + log
        return (likelihood + prior).sum()

    def step(self, particles, x, y, rate, case):
        second = "first_order" not in case
        (scores,) = torch.autograd.grad(self.log_posterior(particles, x, y), particles, create_graph=second)
        return particles + rate * stein_direction(particles, scores, WIDTHS[case])


@pytest.mark.parametrize("case", WIDTHS)
def test_the_regression_of_the_release(case):
    data = load("bmaml_regression")
    model = Regression(data)
    parts = model.start()
    kernel = stein_kernel(model.together(parts).detach(), WIDTHS[case])
    close(kernel.values, data[f"{case}/kernel_at_start"])
    close(kernel.repulsion, data[f"{case}/kernel_gradient_at_start"])
    close(kernel.width, data[f"{case}/h_at_start"])
    losses, network = [], sum(shape.numel() for shape in model.shapes) - 2
    for task in range(2):
        particles = model.together(parts)
        x, y = data["follow_x"][task], data["follow_y"][task]
        for step in range(int(data["follow_steps"])):
            close(stein_kernel(particles, WIDTHS[case]).width, data[f"{case}/follower_h"][task, step])
            particles = model.step(particles, x, y, data["follow_rate"], case)
        close(particles, data[f"{case}/follower"][task])
        found = model.predictions(model.apart(particles), data["query_x"][task])
        close(found, data[f"{case}/follower_query_predictions"][task])
        close(stein_kernel(particles, WIDTHS[case]).width, data[f"{case}/leader_h"][task, 0])
        leader = model.step(particles, data["leader_x"][task], data["leader_y"][task], data["leader_rate"], case)
        close(leader, data[f"{case}/leader"][task])
        losses.append((particles - leader.detach())[:, :network].square().sum())
    loss = torch.stack(losses).mean()
    close(loss, data[f"{case}/chaser_loss"])
    for name, gradient in zip(parts, torch.autograd.grad(loss, list(parts.values())), strict=True):
        close(gradient, data[f"{case}/grad/{name}"])


def test_the_mixture_is_the_meta_loss():
    """The release's mean negative logarithm of the mean probability is Eq. 13 on these scores."""
    data = load("bmaml")
    close(meta_loss(data["org/scores"], data["query_labels"]), data["org/mixture_loss"])
