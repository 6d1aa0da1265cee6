"""Other packages, where they are installed, compute the same meta-gradients as the plain loop."""

import warnings

import pytest
import torch
from benchmarks.maml import learner, reference, reference_step, tasks_of_images
from benchmarks.peers import PEERS, step, tables


@pytest.mark.parametrize("name", PEERS)
def test_meta_gradients_are_equal(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn of while they are imported is not ours
        pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")
    batch, network = tasks_of_images(16, 1, dtype=torch.float64), reference(learner(16).double(), 16)
    names = [each for each, _ in network.named_parameters()]
    expected = dict(zip(names, reference_step(network, batch)(), strict=True))
    for _ in range(2):  # a second call must find the network as it was
        found = dict(zip(network.adapted_names(), step(PEERS[name], network, batch)(), strict=True))
        for each, gradient in found.items():
            torch.testing.assert_close(gradient, expected[each], rtol=1e-10, atol=1e-12)


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr("benchmarks.peers.installed", dict)
    (table,) = tables(quick=True)
    assert "not installed" in table.markdown()
