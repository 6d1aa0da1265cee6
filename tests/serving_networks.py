"""Backbones for servers in tests: a module of its own, which the processes that work with them can import."""

import time
from pathlib import Path

from torch import nn


class Stoppable(nn.Module):
    """Gives features once a file is there; while it waits, another one says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.may, self.entered = folder / "may", folder / "entered"

    def forward(self, images):
        self.entered.touch()
        for _ in range(6000):
            if self.may.exists():
                return images.mean((2, 3))
            time.sleep(0.01)
        raise AssertionError("nobody let it go on within a minute")


class Broken(nn.Module):
    """A defect."""

    def forward(self, images):
        raise ZeroDivisionError


class Killed(nn.Module):
    """Takes its process with it, as the system does where memory is short."""

    def forward(self, images):
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
