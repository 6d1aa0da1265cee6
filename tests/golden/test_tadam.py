"""TADAM against numbers of the authors' graph, recorded once in float64.

The weights and their derivatives are kept as one row of numbers each, in the order of ``names``, which makes a smaller
file than hundreds of small arrays; the numbers are as they were recorded. BatchNorm was recorded with the statistics of
all tasks of a pass together, as published, of every task by itself, and with running averages; the first of these is
not a form of ours, and the test puts it in place.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from e3bm.backbones.encode import TaskEncoder
from e3bm.backbones.normalisation import TaskBatchNorm2d, task_batchnorms
from e3bm.backbones.tadam_resnet import TadamResNet
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.methods.heads.labelled import LabelledSupport
from e3bm.methods.tadam import Tadam

DATA = dict(np.load(Path(__file__).parent / "systems" / "tadam.npz").items())
NAMES = [str(name) for name in DATA["names"]]
PLACES = (
    (r"block\.(\d)\.conv\.(\d)\.weight", "encoder.backbone.blocks.{0}.residual.{1}.conv.weight"),
    (r"block\.(\d)\.conv\.(\d)\.norm\.(\w+)", "encoder.backbone.blocks.{0}.residual.{1}.norm.{2}"),
    (r"block\.(\d)\.shortcut\.weight", "encoder.backbone.blocks.{0}.shortcut.conv.weight"),
    (r"block\.(\d)\.shortcut\.norm\.(\w+)", "encoder.backbone.blocks.{0}.shortcut.norm.{1}"),
)


class JointNorm(TaskBatchNorm2d):
    """As published: the images of all tasks of a pass make one set of statistics."""

    def forward(self, input):
        return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)


def tensor(name):
    return torch.from_numpy(np.asarray(DATA[name]))


def ours(name):
    """Where the model keeps what the recording calls so."""
    for pattern, place in PLACES:
        if found := re.fullmatch(pattern, name):
            return place.format(*found.groups())
    if found := re.fullmatch(r"ten\.(\d)\.(\d)\.(\w+)\.(\d)\.(\w+)", name):
        block, conv, kind, layer, part = found.groups()
        return f"embedding.{kind}.{3 * int(block) + int(conv)}.{('first', 'second', 'third')[int(layer)]}.{part}"
    if found := re.fullmatch(r"(gamma|beta)0\.(\d)\.(\d)", name):
        kind, block, conv = found.groups()
        return f"embedding.{kind}.{3 * int(block) + int(conv)}.scale"
    return name  # the auxiliary layer


def model(batchnorm, metric="euclidean"):
    backbone = TadamResNet(DATA["filters"].tolist(), channels=3)
    tadam = Tadam(TaskEncoder(backbone, batchnorm), classes=9, scale=float(DATA["alpha"]), metric=metric).double()
    state = tadam.state_dict()
    for name, values in zip(NAMES, np.split(DATA["weights"], DATA["sizes"].cumsum()[:-1]), strict=True):
        state[ours(name)].copy_(torch.from_numpy(values).view_as(state[ours(name)]))
    return tadam


def published_model(metric="euclidean"):
    """With joint statistics: where running averages are asked for, all images of a pass go through together."""
    tadam = model("running", metric)
    for norm in task_batchnorms(tadam):
        norm.__class__ = JointNorm
    return tadam


def batch(*, differentiable=False):
    support, query = (tensor(name).clone().requires_grad_(differentiable) for name in ("support", "query"))
    return TaskBatch(support, tensor("support_labels"), query, tensor("query_labels"), int(DATA["ways"]))


def close(found, expected):
    torch.testing.assert_close(found.detach(), expected, rtol=1e-10, atol=1e-10)


def check_gradients(tadam, kind):
    places = DATA[f"{kind}_names"]
    sizes = DATA["sizes"][places]
    parameters = dict(tadam.named_parameters())
    for place, values in zip(places, np.split(DATA[kind], sizes.cumsum()[:-1]), strict=True):
        parameter = parameters[ours(NAMES[place])]
        close(parameter.grad, torch.from_numpy(values).view_as(parameter))
    return {ours(NAMES[place]) for place in places}


def test_joint_statistics():
    tadam, tasks = published_model(), batch(differentiable=True)
    scores = tadam.scores(tasks)
    close(scores, tensor("scores"))
    loss = meta_loss(scores, tasks.query_labels)
    close(loss, tensor("loss"))
    loss.backward()
    close(tasks.support.grad, tensor("grad_support"))
    close(tasks.query.grad, tensor("grad_query"))


def test_conditioned_features():
    tadam, tasks = published_model(), batch()
    labelled = LabelledSupport(tasks.support_labels, tasks.mask, tasks.ways, torch.float64)
    films = tadam.embedding(labelled.class_means(tadam.encoder(tasks.support)).mean(1))
    close(tadam.conditioned(tasks.support, films), tensor("support_features"))
    close(tadam.conditioned(tasks.query, films), tensor("query_features"))


def test_every_task_by_its_own_statistics():
    tadam, tasks = model("batch"), batch(differentiable=True)
    scores = tadam.scores(tasks)
    close(scores, tensor("alone_scores"))
    loss = meta_loss(scores, tasks.query_labels)
    close(loss, tensor("alone_loss"))
    loss.backward()
    close(tasks.support.grad, tensor("alone_grad_support"))
    close(tasks.query.grad, tensor("alone_grad_query"))
    checked = check_gradients(tadam, "alone_grad")
    trained = {name for name, parameter in tadam.named_parameters() if parameter.requires_grad}
    assert checked == trained - {"auxiliary.weight", "auxiliary.bias"}


def test_running_statistics():
    tadam, tasks = model("running"), batch(differentiable=True)
    scores = tadam.scores(tasks)
    close(scores, tensor("test_scores"))
    loss = meta_loss(scores, tasks.query_labels)
    close(loss, tensor("running_loss"))
    loss.backward()
    close(tasks.support.grad, tensor("running_grad_support"))
    close(tasks.query.grad, tensor("running_grad_query"))
    check_gradients(tadam, "running_grad")


def test_cosine_metric():
    close(model("running", "cosine").scores(batch()), tensor("cosine_test_scores"))
    tasks = batch()
    scores = published_model("cosine").scores(tasks)
    close(scores, tensor("cosine_scores"))
    close(meta_loss(scores, tasks.query_labels), tensor("cosine_loss"))


def test_the_auxiliary_task():
    tadam, labels = model("batch"), tensor("auxiliary_labels").long()
    images = tensor("auxiliary_images").clone().requires_grad_()
    close(tadam.auxiliary_scores(images), tensor("auxiliary_scores"))
    loss = tadam.auxiliary_loss(tadam.encoder(images[None])[0], labels)
    close(loss, tensor("auxiliary_loss"))
    loss.backward()
    close(images.grad, tensor("auxiliary_grad_images"))
    check_gradients(tadam, "auxiliary_grad")


@pytest.mark.parametrize("name", ["penalty", "auxiliary_penalty"])
def test_penalties(name):
    close(getattr(model("batch"), name)(), tensor(name))


def test_what_is_penalised():
    tadam = model("batch")
    tadam.penalty().backward()
    moved = {name for name, parameter in tadam.named_parameters() if parameter.grad is not None}
    assert moved == {ours(str(name)) for name in DATA["penalised"]}
