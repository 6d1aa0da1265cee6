"""The authors' loops give what our batched forms give; every method has a line of the table."""

import pytest
import torch
from benchmarks.systems_reference import ctm_scores, egnn_scores

from benchmarks import systems
from e3bm.methods import METHODS


@pytest.mark.parametrize("graph", ["inductive", "transductive"])
@pytest.mark.parametrize("shots", [1, 2])
def test_egnn_graph_by_graph(graph, shots):
    method, batch = systems.egnn(shots, graph)
    method, batch = method.double(), systems.tasks(2, shots, 2, (systems.FEATURES,), torch.double)
    for task in range(2):
        found = egnn_scores(method, batch, task)
        torch.testing.assert_close(found, method.scores(batch)[task], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shots", [1, 2])
def test_ctm_example_by_example(shots):
    method, batch = systems.ctm(shots)
    method, batch = method.double(), systems.tasks(2, shots, 2, (32, 4, 4), torch.double)
    for task in range(2):
        found = ctm_scores(method, batch, task)
        torch.testing.assert_close(found, method.scores(batch)[task], rtol=1e-10, atol=1e-10)


def test_every_method_has_a_small_preset_to_be_timed_by():
    assert set(systems.small_presets(1)) == set(systems.small_presets(5)) == set(METHODS)


@pytest.mark.parametrize("name", ["map_rounds", "egnn", "leo", "nearest_mean"])
def test_a_line_can_be_measured(name):
    train = systems.small_presets(1)[name].train
    learner, shape = systems.build(train)
    batch = systems.tasks(2, 1, 2, shape)
    assert systems.answering_time(learner, batch, 1) >= 0
    trained = systems.training_time(learner, batch, 1)
    assert trained == "nothing to train" if name in ("map_rounds", "nearest_mean") else trained >= 0
