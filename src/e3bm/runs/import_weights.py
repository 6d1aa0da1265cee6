"""`e3bm import-weights`: backbone checkpoints as the field publishes them, into a weights file of ours."""

import hashlib
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from e3bm.backbones import build
from e3bm.backbones.published_weights import PUBLISHED_NAMES, Translation, neutral_value, translate
from e3bm.errors import CheckpointError, SettingsError
from e3bm.runs.folder.files import write_bytes
from e3bm.runs.folder.tensor_files import parse_tensor_file, tensor_file

DEEPEST = 3
NAMED_IN_MESSAGE = 3


@dataclass(frozen=True)
class ImportedWeights:
    """What of a published file became ours, and what did not."""

    file: Path
    out: Path
    backbone: str
    found_in: str
    """The entry of the file that held the state, and what stood before its layer names."""
    matched: int
    """Tensors of the backbone that the file has."""
    parameters: int
    """Numbers in them that training moves."""
    folded: int
    """Kernels into which a learned scale of MTL was multiplied."""
    filled: tuple[str, ...]
    """Our tensors that the file lacks and that must be zero: counters, and biases in front of BatchNorm."""
    left_out: tuple[str, ...]
    """The file's tensors that are no part of the backbone."""

    def as_json(self) -> dict[str, Any]:
        """The same in plain values."""
        return {**asdict(self), "file": str(self.file), "out": str(self.out)}


@dataclass(frozen=True)
class _Fit:
    backbone: str
    found_in: str
    translation: Translation
    weights: dict[str, Tensor]
    filled: tuple[str, ...]
    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    parameters: int

    @property
    def matched(self) -> int:
        return len(self.weights) - len(self.filled)


def import_weights(
    file: Path, backbone: str | None = None, out: Path | None = None, *, width: float = 1.0
) -> ImportedWeights:
    """Read a published checkpoint without running anything in it, and write the backbone's weights as safetensors.

    ``backbone`` names ours; unset, the one that fits is found. ``out`` is a .safetensors file, by default beside it.
    """
    source = Path(file)
    target = Path(out) if out is not None else source.with_suffix(".safetensors")
    if target.suffix != ".safetensors":
        raise SettingsError(
            f"The result is a safetensors file, so its name must end in .safetensors; found '{target.name}'."
        )
    if target.resolve() == source.resolve():
        raise SettingsError(f"{source} would be overwritten by the result; give another name for it.")
    if backbone is not None and backbone not in PUBLISHED_NAMES:
        known = ", ".join(PUBLISHED_NAMES)
        raise SettingsError(f"There are no published names for the backbone '{backbone}'; known: {known}.")
    names = [backbone] if backbone is not None else list(PUBLISHED_NAMES)
    states = list(_states(_load(source), ""))
    if not states:
        raise CheckpointError(f"{source} holds no named tensors; expected a PyTorch state, such as {{'params': ...}}.")
    fits = [_fit(name, place, state, width) for name in names for place, state in states]
    best = max(fits, key=lambda fit: (not fit.missing and not fit.misshapen, fit.matched))
    _check(best, source)
    metadata = {"kind": "backbone", "backbone": best.backbone, "width": str(width), "from": source.name}
    metadata["from_sha256"] = hashlib.sha256(source.read_bytes()).hexdigest()
    write_bytes(target, tensor_file(_plain(best.weights), metadata))
    return ImportedWeights(
        source,
        target,
        best.backbone,
        best.found_in + best.translation.prefix,
        best.matched,
        best.parameters,
        best.translation.folded,
        best.filled,
        best.translation.left_out,
    )


def _load(source: Path) -> Any:
    """The file's content: tensors, containers and numbers, or an error; code in it is never run."""
    try:
        if source.suffix == ".safetensors":
            return parse_tensor_file(source.read_bytes())[1]
        return torch.load(source, weights_only=True, map_location="cpu")
    except FileNotFoundError as error:
        raise CheckpointError(f"{source} does not exist; give the published file.") from error
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)|(?:class|type|instance of) ([\w.]+)", str(error))
        if "operand" in str(error) or named is None:
            raise CheckpointError(f"{source} is damaged or not a PyTorch file; fetch it again.") from error
        raise CheckpointError(
            f"{source} holds '{named.group(1) or named.group(2)}', which could run code; it is refused and nothing of "
            "it was run. Save it again with the state alone."
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{source} is damaged or not a PyTorch file ({first}); fetch it again.") from error


def _states(content: Any, place: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every dictionary with tensors in it, and where it lies."""
    if not isinstance(content, Mapping) or depth > DEEPEST:
        return
    tensors = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if tensors:
        yield place, tensors
    for name, value in content.items():
        yield from _states(value, f"{place}{name}: ", depth + 1)


def _fit(backbone: str, place: str, state: dict[str, Tensor], width: float) -> _Fit:
    """How a state fills a backbone."""
    translation = translate(backbone, state)
    # Only the first convolution has as few inputs as an image has channels.
    channels = min((int(value.shape[1]) for value in translation.weights.values() if value.ndim == 4), default=3)
    with torch.device("meta"):
        network = build(backbone, width=width, channels=channels)
    weights: dict[str, Tensor] = {}
    filled: list[str] = []
    missing: list[str] = []
    misshapen: list[str] = []
    for name, expected in network.state_dict().items():
        found = translation.weights.get(name)
        zero = neutral_value(name, torch.zeros(expected.shape, dtype=expected.dtype))
        if found is not None and found.shape != expected.shape:
            misshapen.append(f"{name} is {_shape(found)}, expected {_shape(expected)}")
        elif found is not None:
            weights[name] = found
        elif zero is not None:
            weights[name] = zero
            filled.append(name)
        else:
            missing.append(name)
    strangers = [name for name in translation.weights if name not in network.state_dict()]
    left_out = (*translation.left_out, *(translation.prefix + name for name in strangers))
    parameters = sum(value.numel() for value in network.parameters())
    translation = Translation(translation.weights, translation.prefix, left_out, translation.folded)
    return _Fit(backbone, place, translation, weights, tuple(filled), tuple(missing), tuple(misshapen), parameters)


def _plain(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of their own in single precision, as the file format asks for."""
    return {
        name: value.detach().to(torch.float32 if value.is_floating_point() else value.dtype).contiguous().clone()
        for name, value in weights.items()
    }


def _check(fit: _Fit, source: Path) -> None:
    if fit.missing or fit.misshapen:
        total = len(fit.weights) + len(fit.missing) + len(fit.misshapen)
        details = [*(f"{name} is not in the file" for name in fit.missing), *fit.misshapen]
        shown = "; ".join(details[:NAMED_IN_MESSAGE])
        more = f"; and {len(details) - NAMED_IN_MESSAGE} more" if len(details) > NAMED_IN_MESSAGE else ""
        raise CheckpointError(
            f"{source} does not fit {fit.backbone}: {fit.matched} of {total} tensors match; {shown}{more}. "
            "Name the backbone it was made with, and its width."
        )
    bad = next((name for name, value in fit.weights.items() if not bool(torch.isfinite(value).all())), None)
    if bad is not None:
        raise CheckpointError(f"{source} holds numbers that are not finite in {bad}; fetch it again.")


def _shape(value: Tensor) -> str:
    return " x ".join(str(size) for size in value.shape) or "a single number"
