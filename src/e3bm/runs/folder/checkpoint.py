"""Checkpoints: weights as safetensors, optimiser and counters as a weights-only state, a pointer renamed into place.

A crash at any moment leaves the previous checkpoint whole: a new one becomes visible only by the pointer's rename.
"""

import hashlib
import io
import secrets
import shutil
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from e3bm.errors import CheckpointError
from e3bm.interruption import Interrupted
from e3bm.runs.engine import Engine
from e3bm.runs.folder.files import read_json, storage_errors, sweep_leftovers, write_bytes, write_json
from e3bm.runs.folder.run_folder import RunFolder

Which = Literal["last", "best"]
WEIGHTS, STATE = "weights.safetensors", "state.pt"
REASON = 160  # characters


def misfit(error: RuntimeError) -> str:
    """Why weights could not be loaded: torch's first reason, without the hundreds of names that may follow."""
    lines = str(error).splitlines()
    reason = lines[min(1, len(lines) - 1)].strip()  # below its headline, where it has one
    return reason if len(reason) <= REASON else f"{reason[:REASON].rpartition(' ')[0]} ..."


class Checkpoints:
    """The checkpoints of one run folder: the last, and the best on the validation classes."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints"

    def save(self, module: nn.Module, state: dict[str, Any], *, best: bool) -> None:
        """Make this the last checkpoint and, if so told, the best; drop those that are neither any more."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = {WEIGHTS: safetensors.torch.save(_weights(module)), STATE: buffer.getvalue()}
        # The best first: killed between the two, a run repeats its last steps and finds the same best again.
        self._write(state["step"], content, ("best", "last") if best else ("last",))

    def put_best(self, module: nn.Module) -> None:
        """Give the best checkpoint other weights: what was made of it after the training."""
        content = {WEIGHTS: safetensors.torch.save(_weights(module)), STATE: self._whole("best", STATE).read_bytes()}
        self._write(self._pointer("best")["step"], content, ("best",))

    def _write(self, step: int, content: dict[str, bytes], pointers: tuple[Which, ...]) -> None:
        """Write a checkpoint, let the pointers name it, and drop what no pointer names any more."""
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.sweep()
            # Steps repeat when a run is continued: a fresh name never touches a folder that a pointer names.
            place = self.folder / f"step-{step:08d}-{secrets.token_hex(4)}"
            place.mkdir()
        try:
            for name, part in content.items():
                write_bytes(place / name, part)
            digests = {name: hashlib.sha256(part).hexdigest() for name, part in content.items()}
            for which in pointers:
                write_json(self.folder / f"{which}.json", {"folder": place.name, "step": step, "sha256": digests})
        except CheckpointError:
            self.sweep()
            raise
        self.sweep()

    def has(self, which: Which) -> bool:
        return (self.folder / f"{which}.json").exists()

    def resume(self, module: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[int, float]:
        """Go back to the last checkpoint: its step and the best validation up to it; without one, to the start."""
        if not self.has("last"):
            return 0, float("-inf")
        self.load_weights(module, "last")
        state = self.state("last")
        try:
            optimiser.load_state_dict(state["optimiser"])
            return int(state["step"]), float(state["best"])
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{self.place('last') / STATE} does not fit this run: {error}.") from error

    def weights(self, which: Which) -> dict[str, Tensor]:
        """The tensors of a checkpoint."""
        return read_weights(self._whole(which, WEIGHTS))

    def load_weights(self, module: nn.Module, which: Which) -> None:
        """Put a checkpoint's weights into a module of the same shape."""
        try:
            module.load_state_dict(self.weights(which))
        except RuntimeError as error:
            raise CheckpointError(f"The weights in {self.place(which)} do not fit the model: {misfit(error)}") from None

    def state(self, which: Which) -> dict[str, Any]:
        """Counters and optimiser state of a checkpoint."""
        path = self._whole(which, STATE)
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:
            raise CheckpointError(f"{path} is damaged: {error}.") from error
        return state

    def place(self, which: Which) -> Path:
        """The folder that a pointer names."""
        if not self.has(which):
            raise CheckpointError(f"There is no {which} checkpoint in {self.folder}; train the run first.")
        return self.folder / str(self._pointer(which)["folder"])

    def _pointer(self, which: Which) -> dict[str, Any]:
        path = self.folder / f"{which}.json"
        pointer = read_json(path)
        if not isinstance(pointer, dict) or not isinstance(pointer.get("folder"), str):
            raise CheckpointError(f"{path} is damaged: it names no folder.")
        return pointer

    def _whole(self, which: Which, name: str) -> Path:
        """A file of a checkpoint, after its content was compared with what was saved."""
        path = self.place(which) / name
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from None
        if self._pointer(which).get("sha256", {}).get(name, found) != found:
            raise CheckpointError(f"{path} is damaged: its content is not what was saved. {_REMEDY}")
        return path

    def sweep(self) -> None:
        """Remove checkpoints that no pointer names: superseded ones, and leftovers of a crash."""
        kept = {self._pointer(which)["folder"] for which in ("last", "best") if self.has(which)}
        for place in self.folder.glob("step-*"):
            if place.name not in kept:
                shutil.rmtree(place, ignore_errors=True)
        sweep_leftovers(self.folder)


_REMEDY = "Restore it from a copy, or start again in another --run folder."


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"There is no weights file {path}.") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable weights file: {error}.") from None


def _weights(module: nn.Module) -> dict[str, Tensor]:
    # Contiguous copies: safetensors refuses tensors that share memory.
    return {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}


# Where a training stands in its run folder: taken up at the start, moved by every step, saved now and then.


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
