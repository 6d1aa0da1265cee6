"""The rows of the paper's tables, each method with the backbones and the recipe it was published with."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from e3bm.paper.presets.configurations import (
    KINDS,
    PAPER_PSI_RATE,
    Kind,
    Preset,
    ablation_arms,
    five_seeds,
    hyperprior_settings,
    kind_of,
    method_settings,
)
from e3bm.runs.settings import HYPERPRIOR_RATES, PretrainSettings, TestSettings, TrainSettings
from e3bm.settings import read_settings

# Pixels of a side that 4CONV sees: FC100 keeps its own size, as is the custom with MAML.
PAPER_DATA = {"miniimagenet": 84, "tieredimagenet": 84, "fc100": 32}
NORMALISATIONS = {"maml": "none", "mtl": "mtl", "sib": "gidaris"}  # as each method was published
PAPER_BACKBONES = {"maml": ("conv4",), "mtl": ("resnet12", "resnet25"), "sib": ("wrn28_10_sib",)}
_PSI = dict.fromkeys(HYPERPRIOR_RATES, PAPER_PSI_RATE)
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


# MAML on Omniglot by its common recipe, and the same in minutes for two cores.


# Minutes instead of days: a head that starts at zero, few queries, and a rate that five steps bear from the start.
SMALL_OMNIGLOT: dict[str, Any] = {
    "method__start": "zero", "method__loss_scale": "mean", "method__rate": 0.1, "episode__queries": 5,
    "optimiser__steps": 500, "optimiser__schedule": "cosine", "optimiser__theta": 2e-3,
    "validation__every": 125, "validation__episodes": 200,
}  # fmt: skip


def omniglot_presets() -> Iterator[Preset]:
    """The common recipe of MAML on Omniglot, as published, and with five epochs plain and with E3BM."""
    for ways, tasks, rate, steps in ((5, 32, 0.4, (1, 3)), (20, 16, 0.1, (5, 5))):
        for shots in (1, 5):
            for kind in (None, *KINDS):
                epochs, test_epochs = (5, None) if kind else steps
                hyperprior = hyperprior_settings("maml", "e3bm", kind or "plain")
                train = read_settings(
                    TrainSettings,
                    {
                        # Packed Omniglot has light ink already: nothing is left to do but to divide by 255.
                        "data": {
                            "dataset": "omniglot",
                            "recipe": "maml",
                            "normalisation": "none",
                            "image_size": 28,
                            "rotations": True,
                        },
                        "episode": {"ways": ways, "shots": shots, "queries": 15},
                        "backbone": {"name": "conv4_stride", "adapt": "full", "batchnorm": "batch"},
                        "method": {"name": "maml", "epochs": epochs, "test_epochs": test_epochs, "rate": rate},
                        "hyperprior": hyperprior.model_dump(),
                        "optimiser": {"steps": 60_000, "tasks": tasks},
                        "validation": {"every": 500, "episodes": 300},
                    },
                )
                word = kind or "published"
                name = f"omniglot-maml-{ways}way-{shots}shot-{word}"
                about = f"{train.title} ({word}) on Omniglot, {ways}-way {shots}-shot, by the common recipe of MAML"
                yield Preset(name, about, train, None, TestSettings(episodes=3000))
                if kind is not None:
                    small = train.but(optimiser__tasks=40 // ways + 2, **SMALL_OMNIGLOT)
                    about = f"{train.title} ({kind}) on Omniglot, {ways}-way {shots}-shot, for two cores"
                    yield Preset(f"small-{name}", about, small, None, TestSettings(episodes=1000, queries=15))
