"""The rows of the paper's tables, each method with the backbones and the recipe it was published with."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from e3bm.presets.configurations import (
    KINDS,
    PAPER_PSI_RATE,
    PSI_GROUPS,
    Kind,
    hyperprior_settings,
    method_settings,
)
from e3bm.presets.preset import Preset
from e3bm.presets.variants import ablation_arms, five_seeds, kind_of
from e3bm.settings import PretrainSettings, TestSettings, TrainSettings, read_settings

# Pixels of a side that 4CONV sees: FC100 keeps its own size, as is the custom with MAML.
PAPER_DATA = {"miniimagenet": 84, "tieredimagenet": 84, "fc100": 32}
NORMALISATIONS = {"maml": "none", "mtl": "mtl", "sib": "gidaris"}  # as each method was published
PAPER_BACKBONES = {"maml": ("conv4",), "mtl": ("resnet12", "resnet25"), "sib": ("wrn28_10_sib",)}
_PSI = dict.fromkeys(PSI_GROUPS, PAPER_PSI_RATE)
PAPER_OPTIMISERS: dict[str, dict[str, Any]] = {
    "mtl": {
        "kind": "adam", "steps": 10_000, "tasks": 1, "theta": 1e-4, "encoder": 1e-4, **_PSI,
        "schedule": "step", "step_every": 1000, "step_factor": 0.5, "clip": None,
    },
    "mtl-cosine": {
        "kind": "sgd", "steps": 10_000, "tasks": 1, "theta": 5e-4, "encoder": 5e-4, **_PSI, "weight_decay": 5e-4,
        "schedule": "step", "step_every": 1000, "step_factor": 0.5, "clip": None,
    },
    "sib": {"kind": "sgd", "steps": 50_000, "tasks": 1, "theta": 1e-3, **_PSI, "weight_decay": 5e-4, "clip": None},
    "maml": {"kind": "adam", "steps": 60_000, "tasks": 4, "theta": 1e-3, **_PSI, "clip": None, "clip_elements": 10.0},
}  # fmt: skip


def paper_presets() -> Iterator[Preset]:
    """Every data set, method, backbone, number of shots and kind of hyperprior."""
    for data in PAPER_DATA:
        for method, backbones in PAPER_BACKBONES.items():
            for backbone in backbones:
                for shots in (1, 5):
                    for kind in KINDS:
                        yield _preset(data, method, backbone, shots, kind)


def paper_variants(rows: list[Preset]) -> Iterator[Preset]:
    """Rows that are another row with something changed."""
    for preset in rows:
        yield from five_seeds(preset)
        if preset.train.method.name == "maml" and kind_of(preset) in ("plain", "lstm-inductive"):
            about = f"{preset.about}, with the alpha' of 1e-3 that the paper states"
            train = preset.train.but(method__rate=1e-3)
            yield replace(preset, name=f"{preset.name}-alpha1e-3", about=about, train=train)
        yield from ablation_arms(preset)


def _preset(data: str, method: str, backbone: str, shots: int, kind: Kind) -> Preset:
    # The published ResNet-12 results use the cosine head; ResNet-25 is MTL's own linear head.
    variant = "mtl-cosine" if backbone == "resnet12" else method
    image_size = {"conv4": PAPER_DATA[data], "resnet12": 84, "resnet25": 80, "wrn28_10_sib": 80}[backbone]
    images = {"dataset": data, "image_size": image_size, "recipe": method, "normalisation": NORMALISATIONS[method]}
    name = f"paper-{method}-{backbone.removesuffix('_sib')}-{data}-{shots}shot-{kind}"
    train = read_settings(
        TrainSettings,
        {
            "data": {**images, "augment": variant == "mtl-cosine"},
            "episode": {"ways": 5, "shots": shots, "queries": 16 if variant == "mtl-cosine" else 15},
            "backbone": _backbone(method, backbone),
            "method": method_settings(variant, "paper").model_dump(),
            "hyperprior": hyperprior_settings(variant, "paper", kind).model_dump(),
            "optimiser": PAPER_OPTIMISERS[variant],
            "validation": {"every": 1000 if method != "mtl" else 100, "episodes": 3000 if method != "maml" else 600},
        },
    )
    pretrain = None if method == "maml" else _pretrain(method, backbone, images)
    episodes, queries = (600, shots) if method == "maml" else (3000, 15)
    test = TestSettings(episodes=episodes, ways=5, shots=shots, queries=queries)
    about = f"{train.title} ({kind}) on {backbone}, {data}, {shots}-shot, as published"
    return Preset(name, about, train, pretrain, test)


def _backbone(method: str, backbone: str) -> dict[str, Any]:
    if method == "maml":
        return {"name": backbone, "adapt": "full", "batchnorm": "batch"}
    if method == "mtl":
        return {"name": backbone, "adapt": "scale_shift", "batchnorm": "batch_then_running"}
    return {"name": backbone, "adapt": "frozen", "batchnorm": "running"}


def _pretrain(method: str, backbone: str, images: dict[str, Any]) -> PretrainSettings:
    common = {"backbone": {"name": backbone, "adapt": "full"}, "rate": 0.1, "weight_decay": 5e-4}
    if method == "sib":
        recipe: dict[str, Any] = {
            "classifier": "cosine", "batch": 64, "epochs": 60, "schedule": "warmup_step", "warmup": 6000,
            "step_every": 50, "step_factor": 0.1,
            "data": {**images, "augment": True},
        }  # fmt: skip
    else:
        recipe = {
            "classifier": "linear", "batch": 128, "epochs": 110 if backbone == "resnet25" else 120,
            "schedule": "step", "step_every": 30, "step_factor": 0.2,
            "data": {**images, "augment": True},
        }  # fmt: skip
    return read_settings(PretrainSettings, {**common, **recipe})
