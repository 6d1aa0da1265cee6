"""A made-up data set and settings so small that a whole training takes less than a second."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from e3bm.backbones import build
from e3bm.data.store.packed import PackedWriter
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import PretrainSettings, TrainSettings
from e3bm.settings import read_settings

TRAIN_CLASSES, VAL_CLASSES, TEST_CLASSES = 8, 4, 7
IMAGES_PER_CLASS, SIZE = 10, 16
BACKBONE = {"backbone.name": "conv4", "backbone.width": 0.25}
COMMON: dict[str, Any] = {
    "data.dataset": "small", "data.recipe": "cifar", "episode.ways": 3, "episode.shots": 1, "episode.queries": 2,
    "method.epochs": 3, "optimiser.steps": 12, "optimiser.tasks": 3, "validation.every": 4, "validation.episodes": 5,
    "checkpoint_every": 3, **BACKBONE,
}  # fmt: skip
E3BM = {"hyperprior.rate": "generated", "hyperprior.weight": "generated"}
METHODS: dict[str, dict[str, Any]] = {
    "maml": {"method.name": "maml", "backbone.adapt": "full", "backbone.batchnorm": "batch", "method.rate": 0.05},
    "mtl": {"method.name": "mtl", "method.rate": 0.1},
    "mtl-scaled": {
        "method.name": "mtl", "method.rate": 0.1, "backbone.adapt": "scale_shift",
        "backbone.batchnorm": "batch_then_running",
    },
    "sib": {"method.name": "sib", "method.rate": 0.01},
    "bayesian_maml": {"method.name": "bayesian_maml", "method.rate": 0.1, "method.particles": 3},
    # Few features: at the published rate of codes their exponential runs away.
    "leo": {"method.name": "leo", "method.latents": 4, "method.latent_steps": 2, "method.latent_rate": 0.1},
    "maml_plus_plus": {
        "method.name": "maml_plus_plus", "method.rate": 0.05, "method.first_order_epochs": 40,
        "method.multi_step_epochs": 60, "method.lowest_outer_rate": 0.1, "backbone.adapt": "full",
        "backbone.batchnorm": "per_step",
    },
}  # fmt: skip
for _name in list(METHODS):
    METHODS[f"{_name}+e3bm"] = METHODS[_name] | E3BM
_TRAINED = {"method.epochs": None, "backbone.adapt": "full", "backbone.batchnorm": "batch_then_running"}
METHODS |= {
    "nearest_mean": {"method.name": "nearest_mean", "method.epochs": None},  # nothing to train
    "ctm": {"method.name": "ctm", "method.epochs": None, "method.widths": (2,), "method.batchnorm": "running"},
    "proto_nets": {"method.name": "proto_nets", **_TRAINED},
    "ctm-trained": {
        "method.name": "ctm",
        "method.widths": (2,),
        "method.batchnorm": "running",
        **_TRAINED,
    },
    "tadam": {"method.name": "tadam", "method.conditioned": 2, **_TRAINED},
    "robust": {"method.name": "robust_ensemble", "method.networks": 2, "method.coefficient": 1.0, **_TRAINED},
}
PRETRAIN: dict[str, Any] = {
    "data.dataset": "small", "data.recipe": "cifar", "episode.ways": 3, "episode.queries": 2, "epochs": 3, "batch": 20,
    "validation.episodes": 5, "checkpoint_every": 3, **BACKBONE,
}  # fmt: skip


def write_data(folder: Path, poisoned: str = "") -> None:
    """The data sets `small` (colour) and `small_grey`: noisy pictures around one picture per class.

    Images of the ``poisoned`` split are noise instead; nothing else changes by it.
    """
    rng = np.random.default_rng(0)
    classes = TRAIN_CLASSES + VAL_CLASSES + TEST_CLASSES
    centres = rng.integers(40, 216, (classes, SIZE, SIZE, 3))
    labels = rng.permutation(np.repeat(np.arange(classes), IMAGES_PER_CLASS))
    images = np.clip(centres[labels] + rng.normal(0, 60, (len(labels), SIZE, SIZE, 3)), 0, 255).astype(np.uint8)
    first_test = TRAIN_CLASSES + VAL_CLASSES
    splits = {
        "train": range(TRAIN_CLASSES),
        "val": range(TRAIN_CLASSES, first_test),
        "test": range(first_test, classes),
    }
    if poisoned:
        where = np.isin(labels, list(splits[poisoned]))
        images[where] = rng.integers(0, 256, images[where].shape, dtype=np.uint8)
    for name, pixels in (("small", images), ("small_grey", images[..., :1])):
        with PackedWriter(folder / name, pixels.shape[1:], name) as writer:
            writer.append(pixels, labels)
            writer.finish([f"{name} class {number}" for number in range(classes)], splits)


def write_backbone(path: Path, channels: int = 3, seed: int = 5) -> None:
    """Weights of a backbone that was trained elsewhere, as far as anybody can tell."""
    torch.manual_seed(seed)
    backbone = build("conv4", width=0.25, channels=channels, image_size=SIZE)
    safetensors.torch.save_file(backbone.state_dict(), path)


@functools.cache
def write_inputs(folder: Path, poisoned: str = "") -> None:
    """The data sets and backbones of small runs, where they are not there yet."""
    if not (folder / "small").exists():
        write_data(folder, poisoned)
        write_backbone(folder / "backbone.safetensors")
        write_backbone(folder / "backbone_grey.safetensors", channels=1)


def flags(folder: Path, method: str, **changes: Any) -> dict[str, Any]:
    """Settings of a small run as dotted names, after its inputs were written; changes as ``group__field``."""
    write_inputs(folder)
    found = COMMON | METHODS[method] | {"data.folder": str(folder)}
    if not method.startswith("maml"):
        found["backbone.pretrained"] = str(folder / "backbone.safetensors")
    found = {name: value for name, value in found.items() if value is not None}  # None: a method without that option
    return found | {name.replace("__", "."): value for name, value in changes.items()}


def pretrain_flags(folder: Path, **changes: Any) -> dict[str, Any]:
    """The same for a small pretraining."""
    write_inputs(folder)
    return PRETRAIN | {"data.folder": str(folder)} | {name.replace("__", "."): value for name, value in changes.items()}


def settings(folder: Path, method: str, **changes: Any) -> TrainSettings:
    """A small run."""
    return read_settings(TrainSettings, nested(flags(folder, method, **changes)))


def pretrain_settings(folder: Path, **changes: Any) -> PretrainSettings:
    """A small pretraining."""
    return read_settings(PretrainSettings, nested(pretrain_flags(folder, **changes)))


def nested(dotted: dict[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    found: dict[str, Any] = {}
    for name, value in dotted.items():
        *groups, field = name.split(".")
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        place[field] = value
    return found


def words(dotted: dict[str, Any]) -> list[str]:
    """The same on the command line."""
    several = lambda value: map(str, value) if isinstance(value, tuple) else [str(value)]
    return [word for name, value in dotted.items() for word in (f"--{name.replace('_', '-')}", *several(value))]


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    """What a run logged, without what depends on the clock."""
    clock = ("seconds", "tasks_per_second", "images_per_second")
    return [{key: value for key, value in line.items() if key not in clock} for line in RunFolder(run).lines(name)]


def assert_same_run(found: Path, expected: Path) -> None:
    """Weights (last and best), optimiser state and logs of two finished runs are equal to the last bit."""
    for which in ("last", "best"):
        ours, theirs = Checkpoints(found), Checkpoints(expected)
        assert_equal(ours.weights(which), theirs.weights(which))
        assert_equal(ours.state(which), theirs.state(which))
    for name in ("metrics", "schedules"):
        assert lines(found, name) == lines(expected, name)


def assert_equal(found: Any, expected: Any) -> None:
    """Nested values with tensors are equal to the last bit."""
    assert type(found) is type(expected)
    if isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(found, dict):
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert_equal(value, expected[key])
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected
