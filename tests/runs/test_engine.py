"""One process alone: every exchange is the identity; and what an engine refuses."""

import pytest
import torch
from torch import nn

from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.runs.engine import Engine, _check_restarts
from e3bm.runs.folder.environment import is_leader
from e3bm.runs.settings import MachineSettings


def test_alone_everything_is_the_identity():
    engine, values = Engine.start(MachineSettings(threads=1)), torch.arange(6.0).view(2, 3)
    assert (engine.rank, engine.world, engine.leads) == (0, 1, True)
    assert engine.mine(range(5)) == range(5)
    assert engine.gather(values, 2) is values
    assert engine.agree(7) == 7
    assert (engine.any(True), engine.any(False)) == (True, False)
    engine.wait()


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 7, 8])
def test_shares_are_a_partition_that_gathering_would_undo(world, total):
    """Row j of process r is number j * world + r: what ``gather`` relies on."""
    shares = [Engine(rank, world).mine(range(total)) for rank in range(world)]
    assert sorted(number for share in shares for number in share) == list(range(total))
    most = -(-total // world)
    columns = [[share[row] if row < len(share) else None for row in range(most)] for share in shares]
    restored = [columns[rank][row] for row in range(most) for rank in range(world)]
    assert restored[:total] == list(range(total))
    assert all(number is None for number in restored[total:])


def test_parameters_that_nobody_used_have_a_zero_gradient():
    """With several processes they must, so with one they do as well: weight decay then acts on the same numbers."""
    used, unused, frozen = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    with Engine().summed_gradients([used, unused, frozen]):
        used.sum().backward()
    assert torch.equal(used.grad, torch.ones(2))
    assert torch.equal(unused.grad, torch.zeros(2))
    assert frozen.grad is None


def test_tasks_stay_where_they_are_on_a_cpu():
    batch = TaskBatch(torch.zeros(1, 2, 3), torch.tensor([[0, 1]]), torch.zeros(1, 1, 3), torch.tensor([[0]]), 2)
    assert Engine().place(batch) is batch


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(SettingsError, match=f"no {device} device; set machine.device to cpu"):
        Engine.start(MachineSettings(device=device))


def test_restarts_need_a_store_of_their_own(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(SettingsError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        _check_restarts()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    _check_restarts()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    _check_restarts()


def test_the_leader_is_the_first_process(monkeypatch):
    assert is_leader()
    monkeypatch.setenv("RANK", "1")
    assert not is_leader()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("total", [1, 5, 6])
@pytest.mark.parametrize("dim", [0, 1])
def test_gathered_rows_stand_in_the_order_of_their_numbers(monkeypatch, world, total, dim):
    whole = torch.arange(2.0 * total).view(total, 2)
    shares = [whole[rank::world] for rank in range(world)]

    def all_gather(parts, mine):
        for part, share in zip(parts, shares, strict=True):
            part.zero_()[: len(share)] = share

    monkeypatch.setattr("torch.distributed.all_gather", all_gather)
    for rank in range(world):
        found = Engine(rank, world).gather(shares[rank].movedim(0, dim), total, dim=dim)
        assert torch.equal(found, whole.movedim(0, dim))
