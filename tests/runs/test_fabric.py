"""Lightning Fabric brings processes together; everything else is the same."""

import sys

import pytest
import torch

from e3bm.errors import SettingsError
from e3bm.runs import engine as fabric
from e3bm.runs.engine import Engine
from e3bm.runs.settings import MachineSettings

VARIABLES = ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NNODES")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (1, 1)),
        ({"LOCAL_WORLD_SIZE": "4"}, (4, 1)),
        ({"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, (4, 2)),
        ({"SLURM_NTASKS": "6", "SLURM_NNODES": "3"}, (2, 3)),
        ({"SLURM_NTASKS": "6"}, (6, 1)),
    ],
)
def test_processes_are_counted_as_they_were_started(monkeypatch, variables, expected):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert fabric._places() == expected


def test_without_the_package_a_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(SettingsError, match=r"pip install .*lightning-fabric"):
        Engine.start(MachineSettings(engine="fabric"))


def test_alone_it_is_one_process():
    pytest.importorskip("lightning_fabric", reason="the extra e3bm[fabric] is not installed")
    engine = Engine.start(MachineSettings(engine="fabric"))
    assert (engine.rank, engine.world, engine.device) == (0, 1, torch.device("cpu"))
