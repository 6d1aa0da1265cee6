"""Where a training stands in its run folder: taken up at the start, moved by every step, saved now and then."""

import torch
from torch import nn

from e3bm.engine import Engine
from e3bm.errors import CheckpointError
from e3bm.interruption import Interrupted
from e3bm.tracking.checkpoint import Checkpoints
from e3bm.tracking.run_folder import RunFolder


class Continuation:
    """The step, the best validation so far, and the checkpoints from which both come back."""

    def __init__(
        self, module: nn.Module, optimiser: torch.optim.Optimizer, run: RunFolder, engine: Engine, total: int
    ) -> None:
        """Put the last checkpoint into the module and its optimiser, and forget what was logged after it."""
        self.module, self.optimiser, self.engine, self.total = module, optimiser, engine, total
        self.checkpoints = Checkpoints(run.path)
        self.step, self.best = self.checkpoints.resume(module, optimiser)
        if engine.any(engine.agree(self.step) != self.step):
            raise CheckpointError(
                f"The processes find different checkpoints in {run.path}; the --run folder must be one that all "
                "machines share."
            )
        self._best_is_new = False
        if engine.leads:
            run.rewind(self.step)
            self.checkpoints.sweep()  # a run that was killed after its last save never saves again

    def advance(self) -> int:
        """One more step is done."""
        self.step += 1
        return self.step

    def judge(self, accuracy: float) -> bool:
        """Whether this validation is the best so far; the next save keeps it as such."""
        self._best_is_new = accuracy > self.best
        self.best = max(self.best, accuracy)
        return self._best_is_new

    def save(self) -> None:
        """Write a checkpoint; all wait for it."""
        if self.engine.leads:
            state = {"step": self.step, "best": self.best, "optimiser": self.optimiser.state_dict()}
            self.checkpoints.save(self.module, state, best=self._best_is_new)
        self._best_is_new = False
        self.engine.wait()

    def stop(self) -> None:
        """Somebody asked to stop: save and leave, unless all is done anyway."""
        if self.step < self.total:
            self.save()
            raise Interrupted(
                f"Stopped after step {self.step} of {self.total}; run the same command again to continue."
            )
