"""Lightning Fabric as the one who joins processes (the extra `e3bm[fabric]`): torchrun, SLURM and others alike."""

import os

import torch

from e3bm.errors import SettingsError
from e3bm.settings import MachineSettings


def join(machine: MachineSettings) -> tuple[int, int, torch.device]:
    """This process's rank, the number of processes and its device, after Fabric has brought them together.

    What processes exchange, and when, stays our own.
    """
    try:
        from lightning_fabric import Fabric  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise SettingsError("Lightning Fabric is not installed; `pip install 'e3bm[fabric]'` adds it.") from None
    local, nodes = _places()
    fabric = Fabric(
        accelerator=machine.device, devices=local, num_nodes=nodes, strategy="ddp" if local * nodes > 1 else "auto"
    )
    fabric.launch()
    return fabric.global_rank, fabric.world_size, fabric.device


def _places() -> tuple[int, int]:
    """Processes on this machine, and machines, as torchrun or SLURM tell them."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if "SLURM_NTASKS" in os.environ:
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        return int(os.environ["SLURM_NTASKS"]) // nodes, nodes
    return 1, 1
