"""What a run refers to, found again: its backbone by the digest of its weights, other runs by their name beside it.

The path that was typed when a run began says little on another day or another machine; the digest says everything.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from e3bm.errors import CheckpointError, E3BMError
from e3bm.runs.folder.checkpoint import Checkpoints, Which, read_weights
from e3bm.runs.folder.run import BACKBONE, Run, beside
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.kept.group_files import RUNS
from e3bm.runs.kept.store import KeptResults, kept_run
from e3bm.runs.settings import TrainSettings

INSIDE = "backbone."


def with_relatives(run: Run, places: Sequence[Path] = ()) -> TrainSettings:
    """The settings of a training run, with the runs that it names where they are now.

    They are looked for where they were, next to the run, and in ``places``: run folders, or folders of such.
    """
    train = run.trained
    if train is None:
        raise CheckpointError(f"{run.path} holds no run of `e3bm train`, but one of kind {run.kind}.")
    changes: dict[str, Path] = {}
    if train.backbone.pretrained is not None:
        changes["backbone__pretrained"] = find_backbone(run, train.backbone.pretrained, places)
    if train.hyperprior.frozen_from is not None:
        changes["hyperprior__frozen_from"] = beside(run.path, train.hyperprior.frozen_from)
    return train.but(**changes) if changes else train


def find_backbone(run: Run, named: Path, places: Sequence[Path] = ()) -> Path:
    """Where the weights are that a run calls its pre-trained backbone; the first with the digest that it noted."""
    digests = run.inputs.get(BACKBONE, ())
    tried: list[Path] = []
    for candidate in _candidates(run.path, named, places):
        if candidate in tried or not has_weights(candidate):
            continue
        tried.append(candidate)
        if not digests or _digest(candidate) in digests:
            return candidate
    if named.exists():
        return named  # not the one it was: whoever builds the model says so
    raise CheckpointError(
        f"The run {run.path} began with the pre-trained backbone of {named} (sha256 {(*digests, 'not noted')[0]:.12}), "
        "which is neither there nor next to the run; name the folder that holds it with --runs."
    )


def has_weights(source: Path) -> bool:
    """Whether there is a run folder, a weights file, or a run that is kept with its weights."""
    return source.exists() or _kept_weights(source) is not None


def tested_weights(source: Path, which: Which | None) -> dict[str, Tensor]:
    """The tensors of a run's checkpoint, None for the one that is tested, from its folder or from kept results."""
    kept = _kept_weights(source)
    if kept is not None:
        return kept
    checkpoints = Checkpoints(source)
    return checkpoints.weights(which or checkpoints.tested())


def backbone_weights(source: Path, which: Which | None = None) -> dict[str, Tensor]:
    """The tensors of a backbone: of a pre-training, as a folder or kept, or of a weights file."""
    if source.is_file():
        return read_weights(source)
    found = tested_weights(source, which)
    return {name.removeprefix(INSIDE): value for name, value in found.items() if name.startswith(INSIDE)}


def digest_of_weights(weights: Mapping[str, Tensor]) -> str:
    """A name for exactly these weights, as a float32 model has them."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        plain = value.float() if value.is_floating_point() else value
        digest.update(plain.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _kept_weights(source: Path) -> dict[str, Tensor] | None:
    kept = None if source.exists() else kept_run(source)
    weights = kept[0].weights(kept[1]) if kept else None
    return None if weights is None else {name: torch.from_numpy(value) for name, value in weights.items()}


def _digest(candidate: Path) -> str | None:
    try:
        return digest_of_weights(backbone_weights(candidate))
    except E3BMError:
        return None  # damaged, or no backbone: not the one


def _candidates(run: Path, named: Path, places: Sequence[Path]) -> Iterator[Path]:
    yield named
    yield run.parent / named.name
    for place in places:
        yield place
        yield place / named.name
    for folder in (run.parent, *places):
        if folder.is_dir():
            yield from sorted(folder.glob("*.safetensors"))
            yield from (each for each in sorted(folder.iterdir()) if _is_pretraining(each))
            yield from _kept_pretrainings(folder)


def _kept_pretrainings(folder: Path) -> Iterator[Path]:
    """In a folder of kept results, or one group of it."""
    results = KeptResults(folder.parent if (folder / RUNS).is_file() else folder)
    for group in results.groups:
        if folder in (results.root, results.root / group):
            kept = results.group(group)
            yield from (kept.folder / name for name, kind in kept.kinds.items() if kind == "pretrain")


def _is_pretraining(folder: Path) -> bool:
    try:
        return bool(RunFolder(folder).config()["kind"] == "pretrain")
    except E3BMError:
        return False
