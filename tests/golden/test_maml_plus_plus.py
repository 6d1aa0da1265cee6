"""MAML++ against numbers of the authors' code, in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from e3bm.backbones.conv4 import functional_conv4
from e3bm.backbones.layers import ConvNorm
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods.maml_plus_plus import MamlPlusPlus, cosine_factor, step_importance
from e3bm.methods.networks.step_statistics import StatisticsLedger, step_of

GOLDEN = Path(__file__).parent / "systems" / "mamlpp.npz"
CASES = {  # epoch of training, slope of the activation
    "multi_step_epoch0": (0, 0.01),
    "multi_step_epoch5": (5, 0.01),
    "last_only": (10, 0.01),
    "first_order": (2, 0.01),
    "relu_multi_step_epoch0": (0, 0.0),
    "relu_last_only": (10, 0.0),
}


@pytest.fixture(scope="module")
def data():
    return {name: torch.from_numpy(np.asarray(value)) for name, value in np.load(GOLDEN).items()}


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


class TwoBlocks(nn.Module):
    """The recording's network: two blocks of convolution, BatchNorm, activation and pooling."""

    feature_size, feature_positions = 16, 4

    def __init__(self, slope):
        super().__init__()
        self.blocks = nn.ModuleList(ConvNorm(inputs, 4, bias=True, slope=slope) for inputs in (3, 4))

    def forward(self, images):
        for block in self.blocks:
            images = F.max_pool2d(block(images), 2)
        return images.flatten(1)

    def functional_pass(self):
        return functional_conv4(self.blocks, image_size=8, strided=False, average=False)


def published(data, case, *, fast=True, batchnorm="batch"):
    slope = 0.01 if case == "evaluation" else CASES[case][1]
    method = MamlPlusPlus(
        TwoBlocks(slope),
        ways=int(data["ways"]),
        epochs=int(data["steps"]),
        multi_step_epochs=int(data["multi_step_epochs"]),
        second_order=case != "first_order",
        batchnorm=batchnorm,
        fast=fast,
    ).double()
    method.step_rates.base.fill_(0.1)
    with torch.no_grad():
        for name, parameter in named(method).items():
            value = data[f"weight/{name}"]
            (parameter[:, 0] if name.startswith("rate/") else parameter).copy_(
                value[:-1] if name.startswith("rate/") else value
            )
    hyperprior = Hyperprior(Constant(0.0), LastOnly()).double()
    hyperprior.rate.value.fill_(0.1)
    return MetaLearner(method, hyperprior, int(data["steps"]))


def named(method):
    """Our parameters by the recording's names; a tensor's rates are a column of ours."""
    found = {}
    for number, block in enumerate(method.maml.backbone.blocks):
        for part in ("weight", "bias"):
            found[f"block{number}.conv.{part}"] = getattr(block.conv, part)
        found[f"block{number}.norm.weight"] = method.step_norms.values[2 * number]
        found[f"block{number}.norm.bias"] = method.step_norms.values[2 * number + 1]
    found["head.weight"], found["head.bias"] = method.maml.head.weight, method.maml.head.bias
    tensors = [name for name in found if "norm" not in name]
    for column, name in enumerate(tensors):
        found[f"rate/{name}"] = method.step_rates.values[:, column : column + 1]
    return found


def tasks(data, *, derivatives=False):
    support, query = (data[part].clone().requires_grad_(derivatives) for part in ("support", "query"))
    return TaskBatch(support, data["support_labels"], query, data["query_labels"], int(data["ways"]))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_scores_loss_and_gradients(data, case, fast):
    learner, batch, progress = published(data, case, fast=fast), tasks(data, derivatives=True), CASES[case][0] / 100
    method = learner.method
    method.at(progress)
    trace = learner(batch)
    close(trace.scores, data[f"{case}/scores"])
    loss = method.training_loss(trace, batch, progress)
    close(loss, data[f"{case}/loss"])
    parts = {name: part for name, part in named(method).items() if not name.startswith("rate/")}
    inputs = {**parts, "rates": method.step_rates.values}
    if f"{case}/grad/support" in data:
        inputs |= {"support": batch.support, "query": batch.query}
    found = dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values())), strict=True))
    rates = found.pop("rates")
    for name, gradient in found.items():
        close(gradient, data[f"{case}/grad/{name}"])
    for column, name in enumerate(name for name in parts if "norm" not in name):
        expected = data[f"{case}/grad/rate/{name}"]
        close(rates[:, column], expected[:-1])
        assert expected[-1] == 0  # of a step that is never taken


def test_evaluation(data):
    learner, batch = published(data, "evaluation").eval(), tasks(data)
    with torch.no_grad():
        trace = learner(batch)
    close(trace.scores, data["evaluation/scores"])
    assert trace.epoch_scores is None
    loss = learner.method.training_loss(trace, batch, 1.0)
    close(loss, data["evaluation/loss"])


@pytest.mark.parametrize("case", ["multi_step_epoch0", "last_only"])
def test_statistics_of_every_step(data, case, monkeypatch):
    """Every pass sees the recording's statistics and leaves them in its step's set.

    The authors move the set by every pass in turn, we by the mean of a task's passes, so that processes agree: their
    rule is applied here to what our passes saw.
    """
    seen = []
    note = StatisticsLedger.note

    def watched(self, part, updates, task, statistics):
        seen.append((task, updates, part == "query", step_of(part, updates), [each.clone() for each in statistics]))
        return note(self, part, updates, task, statistics)

    monkeypatch.setattr(StatisticsLedger, "note", watched)
    learner = published(data, case, batchnorm="per_step")
    learner.method.at(CASES[case][0] / 100)
    learner(tasks(data))
    assert len(learner.method.maml.statistics.steps) == int(data["steps"])
    running = {}
    for layer in range(2):
        for statistic in ("running_mean", "running_var"):
            running[layer, statistic] = data[f"weight/block{layer}.norm.{statistic}"].clone()
    for _, _, _, step, statistics in sorted(seen, key=lambda each: each[:3]):  # by task, and by step in it
        for layer, pair in enumerate(statistics):
            for statistic, value in zip(("running_mean", "running_var"), pair, strict=True):
                running[layer, statistic][step].lerp_(value, 0.1)
    for (layer, statistic), found in running.items():
        close(found, data[f"{case}/after/block{layer}.norm.{statistic}"])


def test_annealing(data):
    for epoch, expected in enumerate(data["importance"]):
        found = step_importance(epoch, int(data["steps"]), int(data["multi_step_epochs"]))
        close(torch.tensor(found, dtype=torch.float64), expected)
    for epoch, expected in data["cosine_epoch_and_rate"].tolist():
        assert 1e-3 * cosine_factor(int(epoch), 100, 0.01) == pytest.approx(expected, rel=1e-12)
