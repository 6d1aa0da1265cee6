"""Named settings: the `paper` and the `e3bm` configuration of every method, and the presets built from them.

`paper` is what the paper or its published code says; `e3bm` is ours. docs/deviations.md has the reasons.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from e3bm.errors import SettingsError
from e3bm.settings import (
    HyperpriorSettings,
    MethodSettings,
    PretrainSettings,
    TestSettings,
    TrainSettings,
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
# The paper's ablations as pairs of schedules (alpha, v); (a4) and (v5) are both the method alone.
ABLATIONS: dict[str, tuple[str, str]] = {
    "v1": ("constant", "generated"), "v2": ("constant", "learned"), "v3": ("constant", "frozen"),
    "v4": ("constant", "equal"), "v5": ("constant", "last"),
    "a1": ("generated", "last"), "a2": ("learned", "last"), "a3": ("frozen", "last"), "a4": ("constant", "last"),
}  # fmt: skip
LEARNED_BY = {"v3": "v2", "a3": "a2"}  # (v3) is read as using the values of (v2)
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


def ablation_settings(settings: TrainSettings, arm: str, learned: Path | None = None) -> TrainSettings:
    """One of the paper's ablations of a method with E3BM; ``learned`` is the run whose values (v3) and (a3) freeze."""
    rate, weight = ABLATIONS[arm]
    if (rate, weight) == ("constant", "last"):
        return settings.but(hyperprior=HyperpriorSettings())
    source = learned if arm in LEARNED_BY else None
    return settings.but(hyperprior=settings.hyperprior.but(rate=rate, weight=weight, frozen_from=source))


@dataclass(frozen=True)
class Preset:
    """Everything a row of results needs: how its backbone is made, how it is trained, how it is tested."""

    name: str
    about: str
    train: TrainSettings
    pretrain: PretrainSettings | None
    test: TestSettings
    members: int = 1
    """How many runs with seeds of their own answer together, as in 5x MAML."""


# Pixels of a side that 4CONV sees: FC100 keeps its own size, as is the custom with MAML.
PAPER_DATA = {"miniimagenet": 84, "tieredimagenet": 84, "fc100": 32}
NORMALISATIONS = {"maml": "none", "mtl": "mtl", "sib": "gidaris"}  # as each method was published
PAPER_BACKBONES = {"maml": ("conv4",), "mtl": ("resnet12", "resnet25"), "sib": ("wrn28_10_sib",)}


def presets() -> dict[str, Preset]:
    """All presets by name."""
    rows = [*_paper_presets(), *_small_presets()]
    found = [*rows, *(variant for preset in rows for variant in _variants(preset)), *_omniglot_presets()]
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
    images = {"dataset": data, "image_size": image_size, "recipe": method, "normalisation": NORMALISATIONS[method]}
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


# What the study on validation classes (docs/study.md) found; both arms of a comparison have the same.
SMALL_OPTIMISERS: dict[str, dict[str, Any]] = {
    "mtl": {"steps": 300, "tasks": 16, "schedule": "cosine"},
    "sib": {"steps": 800, "tasks": 16, "schedule": "cosine", "base_rate": 1e-4},
    # More than two cores do in a day: a run that was stopped before is reported with what it had, and can go on.
    "maml": {"steps": 20_000, "tasks": 4},
}  # fmt: skip
SIB_RATES = {1: 1e-2, 5: 3e-3}  # by the number of shots
PRETRAINED_MAML_RATES = {1: 0.01, 5: 0.03}
PRETRAINED_MAML: dict[str, Any] = {
    "data__recipe": "cifar", "data__augment": True, "method__start": "zero",
    "optimiser__steps": 2000, "optimiser__schedule": "cosine", "validation__every": 500, "validation__episodes": 400,
}  # fmt: skip
SMALL_VALIDATIONS: dict[str, dict[str, Any]] = {
    "mtl": {"every": 25, "episodes": 500},
    "sib": {"every": 100, "episodes": 500},
    "maml": {"every": 100, "episodes": 200},
}
# Minutes instead of days: a head that starts at zero, few queries, and a rate that five steps bear from the start.
SMALL_OMNIGLOT: dict[str, Any] = {
    "method__start": "zero", "method__loss_scale": "mean", "method__rate": 0.1, "episode__queries": 5,
    "optimiser__steps": 1000, "optimiser__schedule": "cosine", "optimiser__theta": 2e-3,
    "validation__every": 250, "validation__episodes": 200,
}  # fmt: skip


def _small_presets() -> Iterator[Preset]:
    """What two cores can do: FC100 at its own 32 pixels, half-width ResNet-12."""
    data = {"dataset": "fc100", "recipe": "cifar", "normalisation": "cifar"}
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
        inner = inner.but(epochs=30, start="prototype", rate=0.1, feature_length=10**0.5)
    train = read_settings(
        TrainSettings,
        {
            "data": data if deep else {"dataset": "fc100", "recipe": "maml", "normalisation": "none"},
            "episode": {"ways": 5, "shots": shots, "queries": 15 if deep else 5},  # MAML pays for every query M times
            "backbone": {"name": "resnet12", "width": 0.5}
            if deep
            else {"name": "conv4", "adapt": "full", "batchnorm": "batch"},
            "method": inner.model_dump(),
            "hyperprior": hyperprior_settings(method, "e3bm", kind).model_dump(),
            "optimiser": SMALL_OPTIMISERS[method]
            | (dict.fromkeys(("theta", "gradient_net"), SIB_RATES[shots]) if method == "sib" else {}),
            "validation": SMALL_VALIDATIONS[method],
        },
    )
    name = f"small-{method}-fc100-{shots}shot-{kind}"
    about = f"{train.title} ({kind}) on FC100 at 32 px, {shots}-shot, for two cores"
    test = TestSettings(episodes=3000, queries=15)
    return Preset(name, about, train, pretrain if deep else None, test)


def _variants(preset: Preset) -> Iterator[Preset]:
    """The rows of the paper that are another row with something changed."""
    method, kind, train = preset.train.method.name, _kind(preset), preset.train
    rename = lambda word: preset.name.removesuffix(kind) + word
    if method == "maml" and kind == "plain":
        name = preset.name.removesuffix("-plain").replace("-maml-", "-5xmaml-")
        about = preset.about.replace("MAML (plain)", "5x MAML, the mean of five seeds,")
        yield replace(preset, name=name, about=about, members=5)
    if preset.name.startswith("paper-maml") and kind in ("plain", "lstm-inductive"):
        about = f"{preset.about}, with the alpha' of 1e-3 that the paper states"
        yield replace(preset, name=f"{preset.name}-alpha1e-3", about=about, train=train.but(method__rate=1e-3))
    if method == "mtl" and train.backbone.name == "resnet12" and preset.name.startswith("small"):
        changes = {"backbone__adapt": "scale_shift", "optimiser__steps": 200, "optimiser__tasks": 2}
        changes |= {"validation__every": 50, "validation__episodes": 100}  # images, not features
        name, about = preset.name.replace("-mtl-", "-mtl-scaled-"), f"{preset.about}, scale and shift trained"
        yield replace(preset, name=name, about=about, train=train.but(**changes))
    if method == "mtl" and preset.name.startswith("small") and preset.pretrain is not None:
        pretrain = preset.pretrain.but(backbone__levelled=True)
        name, about = preset.name.replace("-mtl-", "-mtl-levelled-"), f"{preset.about}, features levelled"
        yield replace(preset, name=name, about=about, train=train.but(backbone__levelled=True), pretrain=pretrain)
    if preset.name.startswith("small-maml"):
        tuned = PRETRAINED_MAML_RATES[5 if train.episode.shots == 5 else 1]
        name, about = preset.name.replace("-maml-", "-maml-pretrained-"), f"{preset.about}, from a pre-trained 4CONV"
        changed = train.but(method__rate=tuned, **PRETRAINED_MAML)
        yield replace(preset, name=name, about=about, train=changed, pretrain=_conv4_pretrain())
    # Figure 4 has MTL+E3BM (LSTM, inductive) as in Table 1.
    if method == "mtl" and kind == "lstm-inductive" and train.method.head == "linear":
        for arm, (rate, weight) in ABLATIONS.items():
            learned = Path("runs") / train.data.dataset / f"{rename(LEARNED_BY[arm])}-s0" if arm in LEARNED_BY else None
            about = preset.about.replace(
                "MTL+E3BM (lstm-inductive)", f"MTL, ablation ({arm}): alpha {rate}, v {weight},"
            )
            yield replace(preset, name=rename(arm), about=about, train=ablation_settings(train, arm, learned))


def _conv4_pretrain() -> PretrainSettings:
    return read_settings(
        PretrainSettings,
        {
            "data": {"dataset": "fc100", "recipe": "cifar", "normalisation": "none", "augment": True},
            "backbone": {"name": "conv4", "adapt": "full"},
            "epochs": 30,
            "label_smoothing": 0.1,
            "validation": {"every": 1, "episodes": 500},
        },
    )


def _kind(preset: Preset) -> str:
    return next(kind for kind in KINDS if preset.name.endswith(kind))


def _omniglot_presets() -> Iterator[Preset]:
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


__all__ = [
    "ABLATIONS",
    "KINDS",
    "LEARNED_BY",
    "Configuration",
    "Kind",
    "Preset",
    "ablation_settings",
    "find_preset",
    "hyperprior_settings",
    "method_settings",
    "presets",
]
