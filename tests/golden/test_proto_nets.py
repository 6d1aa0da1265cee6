"""Prototypical Networks: scores and gradients of the published code, met to 1e-10."""

import pytest
from tests.golden.system_arrays import close, load, padded, tasks
from torch.nn.functional import cross_entropy

from e3bm.core.learner import meta_loss
from e3bm.methods.base import ReadyFeatures
from e3bm.methods.proto_nets import ProtoNets


@pytest.fixture(scope="module")
def data():
    return load("protonets")


@pytest.mark.parametrize("change", [lambda batch: batch, padded])
def test_squared_distances(data, change):
    batch = tasks(data)
    scores = ProtoNets(ReadyFeatures(16)).double()(change(batch)).scores
    close(scores, data["scores"])
    loss = meta_loss(scores, batch.query_labels)
    close(loss, data["loss"])
    close(cross_entropy(scores.mT, batch.query_labels, reduction="none").mean(1), data["task_losses"])
    close((scores.argmax(-1) == batch.query_labels).double().mean(1), data["accuracy"], 1e-7)  # of float32 there
    loss.backward()
    close(batch.support.grad, data["grad_support"])
    close(batch.query.grad, data["grad_query"])


def test_divided_and_scaled(data):
    batch = tasks(data)
    model = ProtoNets(ReadyFeatures(16), scale=float(data["divided_scale"]), learned_scale=True, divided=True).double()
    model.scale.data.fill_(float(data["divided_scale"]))
    scores = model(batch).scores
    close(scores, data["divided_scores"])
    loss = meta_loss(scores, batch.query_labels)
    close(loss, data["divided_loss"])
    loss.backward()
    close(batch.support.grad, data["divided_grad_support"])
    close(batch.query.grad, data["divided_grad_query"])
    close(model.scale.grad, data["divided_grad_scale"][0])
