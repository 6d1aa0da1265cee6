"""EGNN: edges, scores, losses and gradients of the published code, recorded once in float64, met to 1e-10."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from e3bm.backbones.normalisation import commit_statistics, pop_statistics
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods import ReadyFeatures
from e3bm.methods.egnn import Egnn, over_layers
from e3bm.methods.head_norm import HeadNorm

HERE = Path(__file__).parent / "systems"
SETTINGS = ("inductive", "transductive")
# One task: its statistics are the batch's. Two tasks: the published ones are of both together.
FILES = ("egnn_one_task", "egnn")


class JointNorm(HeadNorm):
    """As published: the rows of all tasks of the batch make one set of statistics."""

    def forward(self, values, counts=None):
        joint = None if counts is None else counts.flatten().unsqueeze(0)
        return super().forward(values.flatten(0, 1).unsqueeze(0), joint).view_as(values)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def load(name):
    return {key: torch.from_numpy(np.asarray(value)) for key, value in np.load(HERE / f"{name}.npz").items()}


def recorded_name(ours):
    """layers.0.node.layers.1.norm.weight -> layer0.node.norm1.weight; linear maps have no '.weight' there."""
    name = re.sub(r"^layers\.(\d+)\.", r"layer\1.", ours).replace(".out.", ".edge.out.")
    name = re.sub(r"\.layers\.(\d+)\.linear\.weight$", r".linear\1", name)
    return re.sub(r"\.layers\.(\d+)\.norm\.", r".norm\1.", name)


def published(data, setting, *, joint=False):
    features = data["features"].shape[-1]
    method = Egnn(ReadyFeatures(features), setting=setting, layers=int(data["layers"]), hidden=4, edge_hidden=3)
    if joint:
        for layer in method.layers:
            for part in (*layer.node.layers, *layer.edge.layers):
                part.norm = JointNorm(part.norm.num_features)
    method.double()
    with torch.no_grad():
        for name, value in method.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                value.copy_(data[f"weight/{recorded_name(name)}"])
    return method


def own_loss(method, tasks):
    """The published training loss."""
    problem = method.problem(tasks, observed=False)
    return over_layers(torch.stack([problem.edge_loss(edges) for edges in problem.all_layers()]))


def tasks(data):
    features = data["features"].clone().requires_grad_()
    support = data["support_labels"].shape[1]
    labels = data["support_labels"], data["query_labels"]
    batch = TaskBatch(features[:, :support], labels[0], features[:, support:], labels[1], int(data["ways"]))
    return batch, features


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", FILES)
def test_scores_in_tests(name, setting):
    data = load(name)
    method, (batch, _) = published(data, setting).eval(), tasks(data)
    close(
        method.problem(batch, observed=False).all_layers()[-1][:, :, 0].flatten(0, 1),
        data[f"eval_{setting}/similarity_2"],
    )
    sums = data[f"eval_{setting}/scores"]
    expected = (sums / sums.sum(-1, keepdim=True)).log()
    close(method.scores(batch), expected)
    learner = MetaLearner(method, Hyperprior(Constant(1.0), LastOnly()), 3).double().eval()
    close(learner(batch).scores, expected)
    accuracy = (expected.argmax(-1) == batch.query_labels).double().mean()
    close(accuracy, data[f"eval_{setting}/node_accuracy"])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", FILES)
def test_training(name, setting):
    data, prefix = load(name), f"train_{setting}"
    method, (batch, features) = published(data, setting, joint=name == "egnn").train(), tasks(data)
    problem = method.problem(batch, observed=False)
    found = problem.all_layers()
    for number, edges in enumerate(found):
        close(edges[:, :, 0].flatten(0, 1), data[f"{prefix}/similarity_{number}"])
    close(problem.edge_loss(found[-1]), data[f"{prefix}/last_layer_edge_loss"])
    right = (method.scores(batch).argmax(-1) == batch.query_labels).double().mean()
    close(right, data[f"{prefix}/node_accuracy"])
    loss = own_loss(method, batch)
    close(loss, data[f"{prefix}/loss"])
    loss.backward()
    close(features.grad, data[f"{prefix}/grad/features"])
    for parameter, value in method.named_parameters():
        close(value.grad, data[f"{prefix}/grad/{recorded_name(parameter)}"])


@pytest.mark.parametrize("name", FILES)
def test_running_averages_move_as_published(name):
    data = load(name)
    method, (batch, _) = published(data, "transductive", joint=name == "egnn").train(), tasks(data)
    method.scores(batch)
    commit_statistics(method, pop_statistics(method))
    moved = {key: value for key, value in method.state_dict().items() if "running" in key}
    assert moved
    for key, value in moved.items():
        close(value, data[f"train_transductive/after/{recorded_name(key)}"])


@pytest.mark.parametrize("setting", SETTINGS)
def test_constant_rate_one_and_the_last_vote_are_egnn_in_training(setting):
    """The further graph that a hyperprior may see has no influence on the others."""
    data = load("egnn_one_task")
    method, (batch, features) = published(data, setting), tasks(data)
    learner = MetaLearner(method, Hyperprior(Constant(1.0), LastOnly()), 3).double().train()
    trace = learner(batch)
    close(trace.scores, method.scores(batch))
    loss = learner.training_loss(trace, batch, 0.0)
    close(loss, data[f"train_{setting}/loss"])
    loss.backward()
    close(features.grad, data[f"train_{setting}/grad/features"])


def test_edges_at_the_start():
    data = load("egnn")
    batch, _ = tasks(data)
    found = published(data, "transductive").problem(batch, observed=False).start().edges[:, 0]
    recorded = data["train_transductive/initial_edges"]
    off = ~torch.eye(found.shape[-1], dtype=torch.bool)  # the diagonal is masked before it is used
    close(found[..., off], recorded[..., off])
