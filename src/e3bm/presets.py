"""Named settings: the `paper` and the `e3bm` configuration of every method, and the presets built from them.

`paper` is what the paper or its published code says; `e3bm` is ours. docs/deviations.md has the reasons.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from e3bm.errors import SettingsError
from e3bm.settings import (
    HyperpriorSettings,
    MethodSettings,
    OptimiserSettings,
    PretrainSettings,
    TestSettings,
    TrainSettings,
    ValidationSettings,
    read_settings,
)

Configuration = Literal["paper", "e3bm"]
Kind = Literal["plain", "fc-inductive", "fc-transductive", "lstm-inductive", "lstm-transductive"]
KINDS: tuple[Kind, ...] = ("plain", "fc-inductive", "fc-transductive", "lstm-inductive", "lstm-transductive")

PAPER_PSI_RATE = 1e-6  # meta-learning rate of Psi, alpha' and v'
PSI_GROUPS = ("psi_rate", "psi_weight", "base_rate", "base_weight")

METHOD_SETTINGS: dict[Configuration, dict[str, dict[str, Any]]] = {
    "paper": {
        "mtl": {"epochs": 100, "rate": 0.01, "order": "first"},
        "mtl-cosine": {"epochs": 100, "rate": 0.1, "order": "first", "head": "cosine", "start": "prototype"},
        "sib": {"epochs": 3, "rate": 1e-3, "order": "second"},
        "maml": {"epochs": 5, "rate": 0.01, "order": "second"},
    },
    "e3bm": {
        "mtl": {"epochs": 100, "rate": 0.01, "order": "second"},
        "mtl-cosine": {"epochs": 100, "rate": 0.1, "order": "second", "head": "cosine", "start": "prototype"},
        "sib": {"epochs": 3, "rate": 1e-3, "order": "second"},
        "maml": {"epochs": 5, "rate": 0.01, "order": "second"},
    },
}
PAPER_SUMMARIES = {"mtl": "flat", "mtl-cosine": "class_mean", "sib": "class_mean", "maml": "rms"}


def method_settings(method: str, configuration: Configuration) -> MethodSettings:
    """The inner loop of a method; 'mtl-cosine' is MTL with the cosine head."""
    known = METHOD_SETTINGS[configuration]
    if method not in known:
        raise SettingsError(f"There is no configuration for '{method}'; known: {', '.join(known)}.")
    return read_settings(MethodSettings, {"name": method.removesuffix("-cosine"), **known[method]})


def hyperprior_settings(method: str, configuration: Configuration, kind: Kind) -> HyperpriorSettings:
    """Psi of a configuration, in one of the paper's four kinds; 'plain' is the method without E3BM."""
    if kind == "plain":
        return HyperpriorSettings()
    generator, setting = kind.split("-")
    values: dict[str, Any] = {"rate": "generated", "weight": "generated", "generator": generator, "setting": setting}
    if configuration == "paper":
        values |= {
            "weight_start": "last",
            "summary": PAPER_SUMMARIES[method],
            "embedding": True,
            "mixing": "residual",
            "hidden": 1,
            "readout": False,
            "separate": True,
        }
    return read_settings(HyperpriorSettings, values)


@dataclass(frozen=True)
class Preset:
    """Everything a row of results needs: how its backbone is made, how it is trained, how it is tested."""

    name: str
    about: str
    train: TrainSettings
    pretrain: PretrainSettings | None
    test: TestSettings


# Pixels of a side that 4CONV sees: FC100 keeps its own size, as is the custom with MAML.
PAPER_DATA = {"miniimagenet": 84, "tieredimagenet": 84, "fc100": 32}
PAPER_BACKBONES = {"maml": ("conv4",), "mtl": ("resnet12", "resnet25"), "sib": ("wrn28_10_sib",)}


def presets() -> dict[str, Preset]:
    """All presets by name."""
    found = [*_paper_presets(), *_small_presets()]
    return {preset.name: preset for preset in found}


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    known = presets()
    if name not in known:
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise SettingsError(f"There is no preset '{name}'; `e3bm presets` lists the {len(known)} there are.{hint}")
    return known[name]


def _paper_presets() -> Iterator[Preset]:
    for data in PAPER_DATA:
        for method, backbones in PAPER_BACKBONES.items():
            for backbone in backbones:
                for shots in (1, 5):
                    for kind in KINDS:
                        yield _paper_preset(data, method, backbone, shots, kind)


def _paper_preset(data: str, method: str, backbone: str, shots: int, kind: Kind) -> Preset:
    # The published ResNet-12 results use the cosine head; ResNet-25 is MTL's own linear head.
    variant = "mtl-cosine" if backbone == "resnet12" else method
    image_size = {"conv4": PAPER_DATA[data], "resnet12": 84, "resnet25": 80, "wrn28_10_sib": 80}[backbone]
    images = {"dataset": data, "image_size": image_size, "recipe": method}
    name = f"paper-{method}-{backbone.removesuffix('_sib')}-{data}-{shots}shot-{kind}"
    train = read_settings(
        TrainSettings,
        {
            "data": {**images, "augment": variant == "mtl-cosine"},
            "episode": {"ways": 5, "shots": shots, "queries": 16 if variant == "mtl-cosine" else 15},
            "backbone": _paper_backbone(method, backbone),
            "method": method_settings(variant, "paper").model_dump(),
            "hyperprior": hyperprior_settings(variant, "paper", kind).model_dump(),
            "optimiser": PAPER_OPTIMISERS[variant],
            "validation": {"every": 1000 if method != "mtl" else 100, "episodes": 3000 if method != "maml" else 600},
        },
    )
    pretrain = None if method == "maml" else _paper_pretrain(method, backbone, images)
    episodes, queries = (600, shots) if method == "maml" else (3000, 15)
    test = TestSettings(episodes=episodes, ways=5, shots=shots, queries=queries)
    about = f"{train.title} ({kind}) on {backbone}, {data}, {shots}-shot, as published"
    return Preset(name, about, train, pretrain, test)


def _paper_backbone(method: str, backbone: str) -> dict[str, Any]:
    if method == "maml":
        return {"name": backbone, "adapt": "full", "batchnorm": "batch"}
    if method == "mtl":
        return {"name": backbone, "adapt": "scale_shift", "batchnorm": "batch_then_running"}
    return {"name": backbone, "adapt": "frozen", "batchnorm": "running"}


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


def _paper_pretrain(method: str, backbone: str, images: dict[str, Any]) -> PretrainSettings:
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


def _small_presets() -> Iterator[Preset]:
    """What two cores can do: FC100 at its own 32 pixels, half-width ResNet-12."""
    data = {"dataset": "fc100", "recipe": "cifar"}
    pretrain = read_settings(
        PretrainSettings,
        {
            "data": {**data, "augment": True},
            "backbone": {"name": "resnet12", "width": 0.5, "adapt": "full"},
            "epochs": 16,
            "rate": 0.15,
            "label_smoothing": 0.1,
            "schedule": "one_cycle",
        },
    )
    for method in ("maml", "mtl", "sib"):
        for shots in (1, 5):
            for kind in KINDS:
                yield _small_preset(method, shots, kind, data, pretrain)


def _small_preset(method: str, shots: int, kind: Kind, data: dict[str, Any], pretrain: PretrainSettings) -> Preset:
    deep = method != "maml"
    inner = method_settings(method, "e3bm")
    if method == "mtl":
        inner = inner.but(epochs=30, start="prototype", rate=0.05)
    train = read_settings(
        TrainSettings,
        {
            "data": data if deep else {"dataset": "fc100", "recipe": "maml"},
            "episode": {"ways": 5, "shots": shots, "queries": 15},
            "backbone": {"name": "resnet12", "width": 0.5}
            if deep
            else {"name": "conv4", "adapt": "full", "batchnorm": "batch"},
            "method": inner.model_dump(),
            "hyperprior": hyperprior_settings(method, "e3bm", kind).model_dump(),
            "optimiser": OptimiserSettings(steps=2000, tasks=16 if deep else 4).model_dump(),
            "validation": ValidationSettings(every=250, episodes=500).model_dump(),
        },
    )
    name = f"small-{method}-fc100-{shots}shot-{kind}"
    about = f"{train.title} ({kind}) on FC100 at 32 px, {shots}-shot, for two cores"
    test = TestSettings(episodes=3000)
    return Preset(name, about, train, pretrain if deep else None, test)


__all__ = [
    "KINDS",
    "Configuration",
    "Kind",
    "Preset",
    "find_preset",
    "hyperprior_settings",
    "method_settings",
    "presets",
]
