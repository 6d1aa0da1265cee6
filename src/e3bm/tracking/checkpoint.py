"""Checkpoints: weights as safetensors, optimiser and counters as a weights-only state, a pointer renamed into place.

A crash at any moment leaves the previous checkpoint whole: a new one becomes visible only by the pointer's rename.
"""

import io
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from e3bm.errors import CheckpointError
from e3bm.tracking.files import read_json, storage_errors, write_bytes, write_json

Which = Literal["last", "best"]


class Checkpoints:
    """The checkpoints of one run folder: the last, and the best on the validation classes."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints"

    def save(self, module: nn.Module, state: dict[str, Any], *, best: bool) -> None:
        """Make this the last checkpoint and, if so told, the best; drop those that are neither any more."""
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            # Steps repeat when a run is continued: a fresh name never touches a folder that a pointer names.
            place = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"step-{state['step']:08d}-"))
        try:
            write_bytes(place / "weights.safetensors", safetensors.torch.save(_weights(module)))
            buffer = io.BytesIO()
            torch.save(state, buffer)
            write_bytes(place / "state.pt", buffer.getvalue())
            write_json(self.folder / "last.json", {"folder": place.name, "step": state["step"]})
            if best:
                write_json(self.folder / "best.json", {"folder": place.name, "step": state["step"]})
        except CheckpointError:
            if self._pointed("last") != place.name:
                shutil.rmtree(place, ignore_errors=True)
            raise
        self._sweep()

    def has(self, which: Which) -> bool:
        return (self.folder / f"{which}.json").exists()

    def load_weights(self, module: nn.Module, which: Which) -> None:
        """Put a checkpoint's weights into a module of the same shape."""
        weights = read_weights(self.place(which) / "weights.safetensors")
        missing, unexpected = module.load_state_dict(weights, strict=False)
        if missing or unexpected:
            raise CheckpointError(
                f"The weights in {self.folder} do not fit the model: "
                f"missing {list(missing)[:3]}, unexpected {list(unexpected)[:3]}."
            )

    def state(self, which: Which) -> dict[str, Any]:
        """Counters and optimiser state of a checkpoint."""
        path = self.place(which) / "state.pt"
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:
            raise CheckpointError(f"{path} is damaged: {error}.") from error
        return state

    def place(self, which: Which) -> Path:
        """The folder that a pointer names."""
        if not self.has(which):
            raise CheckpointError(f"There is no {which} checkpoint in {self.folder}; train the run first.")
        return self.folder / str(self._pointed(which))

    def _pointed(self, which: Which) -> str | None:
        return str(read_json(self.folder / f"{which}.json")["folder"]) if self.has(which) else None

    def _sweep(self) -> None:
        """Remove checkpoints that no pointer names: superseded ones, and leftovers of a crash."""
        kept = {self._pointed("last"), self._pointed("best")}
        for place in self.folder.glob("step-*"):
            if place.name not in kept:
                shutil.rmtree(place, ignore_errors=True)


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
