"""Checkpoints: weights as safetensors, optimiser and counters as a weights-only state, a pointer renamed into place.

A crash at any moment leaves the previous checkpoint whole: a new one becomes visible only by the pointer's rename.
Where a pointer is lost or damaged nothing is removed, since it may have named any of the checkpoints.
"""

import hashlib
import io
import math
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from torch import Tensor, nn

from e3bm.errors import CheckpointError
from e3bm.interruption import Interrupted
from e3bm.runs.engine import Engine
from e3bm.runs.folder.files import read_json, storage_errors, write_bytes, write_json
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.folder.tensor_files import read_tensor_file
from e3bm.storage import sweep

Which = Literal["last", "best"]
WEIGHTS, STATE = "weights.safetensors", "state.pt"
REASON = 160  # characters


def misfit(error: RuntimeError) -> str:
    """Why weights could not be loaded: torch's first reason, without the hundreds of names that may follow."""
    lines = str(error).splitlines()
    reason = lines[min(1, len(lines) - 1)].strip()  # below its headline, where it has one
    return reason if len(reason) <= REASON else f"{reason[:REASON].rpartition(' ')[0]} ..."


@dataclass(frozen=True)
class Pointer:
    """Which checkpoint is the last or the best, and what its files hold."""

    folder: str
    step: int
    sha256: dict[str, str]
    """Of its files by name; empty in pointers of former versions."""
    validated: bool | None
    """Whether a best one had been found when it was written; None where that was not noted."""
    saves: int
    """How many checkpoints had been saved then, this one among them; 0 where that was not noted."""

    @classmethod
    def read(cls, path: Path) -> "Pointer":
        """The pointer in a file; a CheckpointError says what is wrong with it."""
        values = read_json(path)
        wrong = lambda what: CheckpointError(f"{path} is damaged: {what}. {_REMEDY}")
        if not isinstance(values, dict) or not isinstance(values.get("folder"), str):
            raise wrong("it names no folder")
        folder, step, known = values["folder"], values.get("step", 0), values.get("sha256", {})
        if Path(folder).name != folder or folder in ("", ".", "..") or "\0" in folder:
            raise wrong("it names no folder beside it")
        if not isinstance(step, int) or not isinstance(known, dict) or not all(map(_is_digest, known.values())):
            raise wrong("its step or its digests are not valid")
        validated, saves = values.get("validated"), values.get("saves")
        return cls(
            folder,
            step,
            known,
            validated if isinstance(validated, bool) else None,
            saves if isinstance(saves, int) else 0,
        )


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == hashlib.sha256().digest_size * 2


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
        validated = best or math.isfinite(state["best"])
        self._write(state["step"], content, ("best", "last") if best else ("last",), validated=validated)

    def put_best(self, module: nn.Module) -> None:
        """Give the best checkpoint other weights: what was made of it after the training."""
        content = {WEIGHTS: safetensors.torch.save(_weights(module)), STATE: self._whole("best", STATE).read_bytes()}
        self._write(self.pointer("best").step, content, ("best",), validated=True)

    def _write(self, step: int, content: dict[str, bytes], pointers: tuple[Which, ...], *, validated: bool) -> None:
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
            saves = self.pointer("last").saves + 1 if self.has("last") else 1
            about = {
                "folder": place.name, "step": step, "sha256": digests, "validated": validated, "saves": saves
            }  # fmt: skip
            for which in pointers:
                write_json(self.folder / f"{which}.json", about)
        except CheckpointError:
            self.sweep()
            raise
        self.sweep()

    def has(self, which: Which) -> bool:
        return (self.folder / f"{which}.json").exists()

    def tested(self) -> Which:
        """The best on the validation classes; the last of a training that was stopped before its first validation."""
        if self.has("best") or not self.has("last"):
            return "best"
        self.check_best()
        return "last"

    def check_best(self) -> None:
        """Refuse a run whose best checkpoint is gone or damaged, before anything goes on without it."""
        if self.has("best"):
            self._whole("best", WEIGHTS)
        elif self._validated():
            raise CheckpointError(
                f"The best checkpoint of {self.folder.parent} is lost: there is no {self.folder / 'best.json'}, "
                "although the run has been validated. Restore it from a copy; "
                "`e3bm test --checkpoint last` tests the last one."
            )

    def _validated(self) -> bool:
        """Whether the last checkpoint knows of a best one."""
        noted = self.pointer("last").validated
        if noted is None and (self.place("last") / STATE).exists():  # of a former version
            best = self.state("last").get("best")
            noted = isinstance(best, float) and math.isfinite(best)
        return bool(noted)

    def resume(self, module: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[int, float]:
        """Go back to the last checkpoint: its step and the best validation up to it; without one, to the start."""
        if not self.has("last"):
            # A run that was killed in its first save may have a best one already, and begins again.
            if self.has("best") and self.pointer("best").saves > 1:
                raise CheckpointError(
                    f"The last checkpoint of {self.folder.parent} is lost: there is no {self.folder / 'last.json'}, "
                    f"although there are others. {_REMEDY}"
                )
            return 0, float("-inf")
        self.check_best()
        self.load_weights(module, "last")
        state = self.state("last")
        try:
            optimiser.load_state_dict(state["optimiser"])
            return int(state["step"]), float(state["best"])
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{self.place('last') / STATE} does not fit this run: {error}.") from error

    def without_state(self) -> bool:
        """Whether all there is are the best weights, as of a kept run that was unpacked: nothing to continue from."""
        return self.has("best") and not self.has("last") and not (self.place("best") / STATE).exists()

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
            state = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:
            raise CheckpointError(f"{path} is damaged: {error}.") from error
        if not isinstance(state, dict):
            raise CheckpointError(f"{path} is damaged: it holds no counters. {_REMEDY}")
        return state

    def place(self, which: Which) -> Path:
        """The folder that a pointer names."""
        return self.folder / self.pointer(which).folder

    def pointer(self, which: Which) -> Pointer:
        """What is known of a checkpoint."""
        if not self.has(which):
            raise CheckpointError(f"There is no {which} checkpoint in {self.folder}; train the run first.")
        return Pointer.read(self.folder / f"{which}.json")

    def _whole(self, which: Which, name: str) -> Path:
        """A file of a checkpoint, after its content was compared with what was saved."""
        pointer = self.pointer(which)
        path = self.folder / pointer.folder / name
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from None
        if pointer.sha256.get(name, found) != found:
            raise CheckpointError(f"{path} is damaged: its content is not what was saved. {_REMEDY}")
        return path

    def sweep(self) -> None:
        """Remove checkpoints that no pointer names: superseded ones, and leftovers of a crash.

        Where a pointer is lost or damaged nothing is removed: it may have named any of them.
        """
        sweep(self.folder)
        try:
            if not self.has("best") and self._validated():
                return
            kept = {self.place(which) for which in get_args(Which) if self.has(which)}
        except CheckpointError:
            return
        if all(place.is_dir() for place in kept):
            for place in self.folder.glob("step-*"):
                if place not in kept:
                    shutil.rmtree(place, ignore_errors=True)


_REMEDY = "Restore it from a copy, or start again in another --run folder."


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    return read_tensor_file(path)[1]


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
        last = ("val", total)  # the line of a training that was finished
        if self.checkpoints.without_state() and last in ((x.get("split"), x.get("step")) for x in run.lines("metrics")):
            self.step = total  # a kept run, unpacked again
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
