"""CAN and CAN+T: scores, losses, gradients and rounds of the published code, recorded once in float64, met to 1e-10."""

from pathlib import Path

import numpy as np
import pytest
import torch

from e3bm.backbones.normalisation import commit_statistics, pop_statistics
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import DirectLearner, MetaLearner, meta_loss
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods.base import ReadyMaps
from e3bm.methods.can import Can, CanT, most_confident
from e3bm.methods.head_norm import HeadNorm

HERE = Path(__file__).parent / "systems"
FILES = ("can", "can_6x6")
NAMES = {
    "attention.first.linear.weight": "first.weight",
    "attention.first.linear.bias": "first.bias",
    "attention.first.norm.weight": "norm.weight",
    "attention.first.norm.bias": "norm.bias",
    "attention.first.norm.running_mean": "norm.running_mean",
    "attention.first.norm.running_var": "norm.running_var",
    "attention.second.weight": "second.weight",
    "attention.second.bias": "second.bias",
    "classifier.weight": "classifier.weight",
    "classifier.bias": "classifier.bias",
}


class JointNorm(HeadNorm):
    """As published: the rows of all tasks of the batch make one set of statistics."""

    def forward(self, values, counts=None):
        return super().forward(values.flatten(0, 1).unsqueeze(0)).view_as(values)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def load(name):
    return {key: torch.from_numpy(np.asarray(value)) for key, value in np.load(HERE / f"{name}.npz").items()}


def published(data, kind=CanT, *, joint=False):
    hidden, positions = data["weights.first.weight"].shape[:2]
    classes, channels = data["weights.classifier.weight"].shape[:2]
    method = kind(
        ReadyMaps(tuple(data["support"].shape[2:])),
        channels=channels,
        positions=positions,
        classes=classes,
        hidden=hidden,
        scale=float(data["scale"]),
        temperature=float(data["temperature"]),
        dense_share=float(data["nearest_share"]),
    )
    if joint:
        method.attention.first.norm = JointNorm(hidden)
    method.double()
    state = method.state_dict()
    with torch.no_grad():
        for ours, theirs in NAMES.items():
            state[ours].copy_(data[f"weights.{theirs}"].view_as(state[ours]))
    return method


def tasks(data):
    support, query = (data[name].clone().requires_grad_() for name in ("support", "query"))
    classes = (data["classes"].gather(1, data[f"{part}_labels"]) for part in ("support", "query"))
    return TaskBatch(support, data["support_labels"], query, data["query_labels"], int(data["ways"]), None, *classes)


def check_gradients(method, batch, data, prefix):
    close(batch.support.grad, data[f"{prefix}_grad_support"])
    close(batch.query.grad, data[f"{prefix}_grad_query"])
    for name, parameter in method.named_parameters():
        if prefix == "test" and name.startswith("classifier"):
            assert parameter.grad is None  # it serves training only
        else:
            close(parameter.grad, data[f"{prefix}_grad.{NAMES[name]}"].view_as(parameter))


@pytest.mark.parametrize("name", FILES)
def test_scores_in_tests(name):
    data = load(name)
    method, batch = published(data).eval(), tasks(data)
    scores = method.scores(batch)
    close(scores, data["test_scores"])
    loss = meta_loss(scores, batch.query_labels)
    close(loss, data["test_loss"])
    loss.backward()
    check_gradients(method, batch, data, "test")


@pytest.mark.parametrize("mode", ["joint", "alone", "running"])
@pytest.mark.parametrize("name", FILES)
def test_training_losses(name, mode):
    data = load(name)
    method, batch = published(data, joint=mode == "joint"), tasks(data)
    method.train(mode != "running")
    classes, query = method.maps(batch)
    looks = method.look(classes, query)
    close(method.dense_scores(looks, query), data[f"{mode}_dense_scores"].flatten(3))
    losses = method.losses(looks, query, batch)
    close(losses.dense, data[f"{mode}_nearest_loss"])
    close(losses.overall, data[f"{mode}_global_loss"])
    loss = method.total(losses)
    close(loss, data[f"{mode}_loss"])
    loss.backward()
    check_gradients(method, batch, data, mode)


@pytest.mark.parametrize("kind", [Can, CanT])
@pytest.mark.parametrize("name", FILES)
def test_both_train_on_the_published_loss(name, kind):
    data = load(name)
    method, batch = published(data, kind), tasks(data)
    learner = DirectLearner(method) if kind is Can else MetaLearner(method, Hyperprior(Constant(1.0), LastOnly()), 2)
    learner.double().train()
    loss = learner.training_loss(learner(batch), batch, 0.0)
    close(loss, data["alone_loss"])
    loss.backward()
    check_gradients(method, batch, data, "alone")


@pytest.mark.parametrize("name", FILES)
def test_running_averages_move_as_published(name):
    data = load(name)
    method, batch = published(data, joint=True).train(), tasks(data)
    method.scores(batch)
    commit_statistics(method, pop_statistics(method))
    close(method.attention.first.norm.running_mean, data["joint_running_mean"])
    close(method.attention.first.norm.running_var, data["joint_running_var"])


@pytest.mark.parametrize("name", FILES)
def test_rounds(name):
    data = load(name)
    method, batch = published(data).eval(), tasks(data)
    problem = method.begin(batch)
    state, one = problem.start(), torch.ones(len(batch), dtype=torch.float64)
    close(state.scores, data["transductive_scores"][:, 0])
    for number in range(method.rounds(batch.query.shape[1])):
        wanted = data["transductive_chosen"][:, number]
        chosen, _ = most_confident(state.scores, int((wanted[0] >= 0).sum()))
        for task in range(len(batch)):
            assert set(chosen[task].nonzero().flatten().tolist()) == set(wanted[task][wanted[task] >= 0].tolist())
        state = problem.step(state, problem.direction(state), one)
        close(state.scores, data["transductive_scores"][:, number + 1])


@pytest.mark.parametrize("name", FILES)
def test_constant_rate_one_and_the_last_vote_are_can_t(name):
    data = load(name)
    batch = tasks(data)
    learner = MetaLearner(published(data), Hyperprior(Constant(1.0), LastOnly()), 2).double().eval()
    trace = learner(batch, every_epoch=True)
    close(trace.scores, data["transductive_scores"][:, -1])
    close(trace.epoch_scores, data["transductive_scores"][:, 1:])
