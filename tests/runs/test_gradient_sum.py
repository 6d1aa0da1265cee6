"""Gradients that are sent in buckets while the backward pass runs, with peers that are made up."""

import pytest
import torch
from torch import distributed, nn

from e3bm.errors import PeerError, SettingsError
from e3bm.runs.engine import Engine, patience
from e3bm.runs.gradient_sum import _buckets, summed_gradients


class Sent:
    """Notes what is sent, and when; the peers' gradients are nine times ours."""

    def __init__(self, events: list[str]) -> None:
        self.events, self.sizes = events, []

    def __call__(self, flat, async_op=False):
        assert async_op
        self.events.append("sent")
        self.sizes.append(flat.numel())
        ours = flat.clone()
        return type("Work", (), {"wait": lambda work: flat.copy_(10 * ours)})()


@pytest.fixture
def sent(monkeypatch):
    found = Sent([])
    monkeypatch.setattr(distributed, "all_reduce", found)
    return found


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def test_buckets_leave_while_the_backward_pass_runs(sent):
    network = layers()
    rows = torch.randn(3, 4)
    network(rows).sum().backward()
    alone = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    # The gradient of the first layer's output comes last but one.
    network[0].register_full_backward_hook(lambda *_: sent.events.append("the first layer"))
    with summed_gradients(network.parameters(), bucket_bytes=1):
        network(rows.requires_grad_()).sum().backward()
        sent.events.append("the end of the backward pass")
    assert sent.events.index("sent") < sent.events.index("the first layer")
    assert sent.events.count("sent") == 6
    # From the last layer to the first, bias before weight.
    assert sent.sizes == [parameter.numel() for parameter in reversed(list(network.parameters()))]
    for parameter, expected in zip(network.parameters(), alone, strict=True):
        torch.testing.assert_close(parameter.grad, 10 * expected)


def test_processes_send_in_one_order_whatever_they_used(sent):
    """One that uses the first layer only, and one that has no task at all, send what the others send."""
    everything = [parameter.numel() for parameter in reversed(list(layers().parameters()))]
    for used in (lambda network: network[0](torch.ones(1, 4)).sum().backward(), lambda network: None):
        sent.sizes.clear()
        network = layers()
        with summed_gradients(network.parameters(), bucket_bytes=1):
            used(network)
        assert sent.sizes == everything
        assert all(parameter.grad is not None for parameter in network.parameters())
        assert float(network[4].weight.grad.abs().max()) == 0


def test_what_is_not_trained_is_not_sent_and_no_hook_stays(sent):
    network = layers()
    network[2].requires_grad_(False)
    with summed_gradients(network.parameters()):
        network(torch.ones(1, 4)).sum().backward()
    assert sum(sent.sizes) == sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    sent.sizes.clear()
    network(torch.ones(1, 4)).sum().backward()
    assert sent.sizes == []


def test_buckets_have_one_precision_and_about_the_bytes_asked_for():
    parameters = [nn.Parameter(torch.zeros(size)) for size in (10, 10, 10)] + [nn.Parameter(torch.zeros(5).double())]
    sizes = [[parameter.numel() for parameter in bucket.parameters] for bucket in _buckets(parameters, 60)]
    assert sizes == [[5], [10, 10], [10]]
    assert _buckets([], 60) == []


def test_a_second_backward_pass_is_noticed(sent):
    network = layers()
    with summed_gradients(network.parameters()):
        network(torch.ones(1, 4)).sum().backward()
        second = network(torch.ones(1, 4)).sum()
        with pytest.raises(AssertionError, match="second backward pass"):
            second.backward()


def test_one_process_sends_nothing_and_unused_parameters_have_zero(sent):
    network = layers()
    with Engine().summed_gradients(network.parameters()):
        network[0](torch.ones(1, 4)).sum().backward()
    assert sent.sizes == []
    assert float(network[4].weight.grad.abs().max()) == 0


def test_a_peer_that_is_gone_is_a_sentence_and_a_defect_stays_one(monkeypatch):
    def fails(words):
        def barrier():
            raise RuntimeError(words)

        monkeypatch.setattr(distributed, "barrier", barrier)

    monkeypatch.setenv("E3BM_PATIENCE", "30")
    fails("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1\nand more")
    with pytest.raises(PeerError, match="gone, or has not answered for 30 seconds"):
        Engine(0, 2).wait()
    fails("The size of tensor a (3) must match the size of tensor b (4)")
    with pytest.raises(RuntimeError, match="size of tensor"):
        Engine(0, 2).wait()


@pytest.mark.parametrize("word", ["", "soon", "0", "-5", "nan", "inf"])
def test_patience_is_a_number_of_seconds(monkeypatch, word):
    monkeypatch.setenv("E3BM_PATIENCE", word)
    with pytest.raises(SettingsError, match="E3BM_PATIENCE must be a number of seconds"):
        patience()
