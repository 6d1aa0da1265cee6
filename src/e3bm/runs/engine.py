"""One process or many: tasks are dealt out by number, gradients are summed, and every process holds the same model.

Start many with ``torchrun``; without it everything here is the identity. Only gloo on CPU has been run; nccl and cuda
are untested.
"""

import atexit
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module

import torch
from torch import Tensor, distributed, nn

from e3bm.core.episode import TaskBatch
from e3bm.errors import PeerError, SettingsError, install_command
from e3bm.runs.gradient_sum import summed_gradients
from e3bm.runs.settings import MachineSettings

PATIENCE_VARIABLE, PATIENCE = "E3BM_PATIENCE", 600.0
"""Seconds for which processes wait for one that is alive: a dead one is noticed at once, by its closed connection."""


PEER_WORDS = ("gloo", "NCCL", "TCPStore", "Connection closed by peer", "Connection reset", "Timed out waiting")
"""Some of these are in what torch says of a peer that is gone or silent."""


@dataclass(frozen=True)
class Engine:
    """This process among its peers."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def start(cls, machine: MachineSettings) -> "Engine":
        """Join the processes that torchrun started, if it did."""
        torch.set_num_threads(machine.threads)
        world = int(os.environ.get("WORLD_SIZE", "1"))
        rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
        if (machine.device == "cuda" and not torch.cuda.is_available()) or (
            machine.device == "mps" and not torch.backends.mps.is_available()
        ):
            raise SettingsError(f"This machine has no {machine.device} device; set machine.device to cpu.")
        if world > 1:
            # Its functions bind the group of all processes as a default when they are imported, which an optimiser
            # does: imported afterwards they would keep gloo's threads alive into the interpreter's end, which aborts.
            import_module("torch.distributed.nn.functional")
        if machine.engine == "fabric":
            return cls(*_join_by_fabric(machine))
        device = torch.device(machine.device, local) if machine.device == "cuda" else torch.device(machine.device)
        if world > 1 and not distributed.is_initialized():
            _check_restarts()
            backend = "nccl" if machine.device == "cuda" else "gloo"
            with _answering():
                distributed.init_process_group(backend, timeout=timedelta(seconds=patience()))
            # Once for all work of this process: a second group would find the first one's addresses.
            atexit.register(distributed.destroy_process_group)
        return cls(rank, world, device)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def mine(self, numbers: Sequence[int]) -> Sequence[int]:
        """This process's share: every world-th task, starting at its rank."""
        return numbers[self.rank :: self.world]

    def place(self, batch: TaskBatch) -> TaskBatch:
        """Tasks on this process's device."""
        return batch if self.device.type == "cpu" else batch.to(self.device)

    @property
    def local(self) -> tuple[int, int]:
        """This process's number on its machine, and how many there are on it."""
        return int(os.environ.get("LOCAL_RANK", "0")) if self.world > 1 else 0, _places()[0] if self.world > 1 else 1

    @contextmanager
    def summed_gradients(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """Around a backward pass: gradients are then the sums over all processes, zero where nobody used a parameter.

        They are sent in pieces while the pass still runs.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if self.world == 1:
            yield
        else:
            with _answering(), summed_gradients(trained):
                yield
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def share_buffers(self, module: nn.Module) -> None:
        """The leader's buffers (running statistics), for all."""
        if self.world > 1:
            with _answering():
                for buffer in module.buffers():
                    distributed.broadcast(buffer, 0)

    def gather(self, mine: Tensor, total: int, dim: int = 0) -> Tensor:
        """All processes' rows in the order of their numbers; ``mine`` holds this process's share of ``total``."""
        if self.world == 1:
            return mine
        rows = mine.to(self.device).movedim(dim, 0).contiguous()
        most = -(-total // self.world)
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        with _answering():
            distributed.all_gather(parts, padded)
        # Row j of process r is number j * world + r.
        return torch.stack(parts, 1).flatten(0, 1)[:total].movedim(0, dim).to(mine.device)

    def agree(self, value: int) -> int:
        """The leader's number, for all."""
        if self.world == 1:
            return value
        told = torch.tensor([value], device=self.device)
        with _answering():
            distributed.broadcast(told, 0)
        return int(told)

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.world == 1:
            return flag
        told = torch.tensor([int(flag)], device=self.device)
        with _answering():
            distributed.all_reduce(told, distributed.ReduceOp.MAX)
        return bool(told)

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            with _answering():
                distributed.barrier()


def patience() -> float:
    """Seconds that processes wait for one another."""
    word = os.environ.get(PATIENCE_VARIABLE, str(PATIENCE))
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < 1e7:
        raise SettingsError(f"{PATIENCE_VARIABLE} must be a number of seconds, 1 or more; found '{word[:40]}'.")
    return seconds


@contextmanager
def _answering() -> Iterator[None]:
    """Inside of the block other processes are waited for; that one is gone or stands still is nobody's defect here."""
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error) for word in PEER_WORDS):
            raise
        raise PeerError(
            f"Another process of this run is gone, or has not answered for {patience():g} seconds "
            f"({str(error).strip().splitlines()[0][:160]}); the same command continues from the last checkpoint, and "
            f"{PATIENCE_VARIABLE} sets the seconds."
        ) from None


def _check_restarts() -> None:
    """Processes that torchrun starts again must not find the addresses of those that died in a store they share."""
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise SettingsError(
            "torchrun --max-restarts needs the environment variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: "
            "without it restarted processes may wait for dead ones. Set it and start torchrun again."
        )


def _join_by_fabric(machine: MachineSettings) -> tuple[int, int, torch.device]:
    """This process's rank, the number of processes and its device, after Fabric has brought them together.

    What processes exchange, and when, stays our own.
    """
    try:
        from lightning_fabric import Fabric  # type: ignore[import-not-found,unused-ignore]
        from lightning_fabric.strategies import DDPStrategy  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise SettingsError(f"Lightning Fabric is not installed; run: {install_command('fabric')}") from None
    local, nodes = _places()
    fabric = Fabric(
        accelerator=machine.device,
        devices=local,
        num_nodes=nodes,
        strategy=DDPStrategy(timeout=timedelta(seconds=patience())) if local * nodes > 1 else "auto",
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
