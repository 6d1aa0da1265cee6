"""What two cores can do: FC100 at its own 32 pixels, miniImageNet at 42, half-width ResNet-12 or 4CONV."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from e3bm.paper.presets.configurations import (
    KINDS,
    Kind,
    Preset,
    ablation_arms,
    five_seeds,
    hyperprior_settings,
    method_settings,
)
from e3bm.runs.settings import PretrainSettings, TestSettings, TrainSettings
from e3bm.settings import read_settings


@dataclass(frozen=True)
class SmallData:
    """A data set as two cores can have it, and for how many epochs its backbones are pre-trained."""

    words: str
    settings: dict[str, Any]
    resnet12_epochs: int
    conv4_epochs: int

    @property
    def name(self) -> str:
        return str(self.settings["dataset"])


FC100 = SmallData("FC100 at 32 px", {"dataset": "fc100", "recipe": "cifar", "normalisation": "cifar"}, 16, 30)
# At half of its 84 pixels: a pass over the training images takes minutes, not half an hour.
MINI = SmallData(
    "miniImageNet at 42 px",
    {"dataset": "miniimagenet", "image_size": 42, "recipe": "cifar", "normalisation": "mtl"},
    10,
    15,
)
SMALL_DATA = {data.name: data for data in (FC100, MINI)}
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
    "optimiser__steps": 600, "optimiser__schedule": "cosine", "optimiser__theta": 2e-4,
    # Slow: its tasks are of classes that it could classify before, and what alpha and v gain there is confidence.
    "optimiser__base_rate": 1e-5, "optimiser__base_weight": 1e-4, "optimiser__psi_rate": 1e-4,
    "optimiser__psi_weight": 1e-4, "validation__every": 200, "validation__episodes": 400,
}  # fmt: skip
SMALL_VALIDATIONS: dict[str, dict[str, Any]] = {
    "mtl": {"every": 25, "episodes": 500},
    "sib": {"every": 100, "episodes": 500},
    "maml": {"every": 100, "episodes": 200},
}


def small_presets() -> Iterator[Preset]:
    """Every method, number of shots and kind of hyperprior; MTL and SIB share one pre-trained backbone."""
    for data in SMALL_DATA.values():
        for method in ("maml", "mtl", "sib"):
            for shots in (1, 5):
                for kind in KINDS:
                    yield _preset(method, shots, kind, data)


def small_about(train: TrainSettings, kind: Kind, data: SmallData, shots: int) -> str:
    """What `e3bm presets` says of a preset for two cores."""
    return f"{train.title} ({kind}) on {data.words}, {shots}-shot, for two cores"


def resnet12_pretrain(data: SmallData) -> PretrainSettings:
    """The half-width ResNet-12 that small rows share."""
    return read_settings(
        PretrainSettings,
        {
            "data": {**data.settings, "augment": True},
            "backbone": {"name": "resnet12", "width": 0.5, "adapt": "full"},
            "epochs": data.resnet12_epochs,
            "rate": 0.15,
            "label_smoothing": 0.1,
            "schedule": "one_cycle",
        },
    )


def small_variants(rows: list[Preset]) -> Iterator[Preset]:
    """Rows that are another row with something changed."""
    for preset in rows:
        yield from five_seeds(preset)
        method = preset.train.method.name
        if method == "mtl":
            yield _scaled(preset)
        if method == "maml":
            yield (pretrained := _pretrained_maml(preset))
            yield from five_seeds(pretrained)
        else:
            yield _whitened(preset)
            yield _cross_fitted(_whitened(preset))
        yield from ablation_arms(preset)


def _preset(method: str, shots: int, kind: Kind, data: SmallData) -> Preset:
    deep = method != "maml"
    inner = method_settings(method, "e3bm")
    if method == "mtl":
        inner = inner.but(epochs=30, start="prototype", rate=0.1, feature_length=10**0.5)
    train = read_settings(
        TrainSettings,
        {
            "data": data.settings if deep else data.settings | {"recipe": "maml", "normalisation": "none"},
            "episode": {"ways": 5, "shots": shots, "queries": 15 if deep else 5},  # MAML pays for every query M times
            "backbone": {"name": "resnet12", "width": 0.5}
            if deep
            else {"name": "conv4", "adapt": "full", "batchnorm": "batch"},
            "method": inner.model_dump() | ({"gradient_net_rate": SIB_RATES[shots]} if method == "sib" else {}),
            "hyperprior": hyperprior_settings(method, "e3bm", kind).model_dump(),
            "optimiser": SMALL_OPTIMISERS[method] | ({"theta": SIB_RATES[shots]} if method == "sib" else {}),
            "validation": SMALL_VALIDATIONS[method],
        },
    )
    name = f"small-{method}-{data.name}-{shots}shot-{kind}"
    test = TestSettings(episodes=3000, queries=15)
    pretrain = resnet12_pretrain(data) if deep else None
    return Preset(name, small_about(train, kind, data, shots), train, pretrain, test)


def _scaled(preset: Preset) -> Preset:
    changes = {"backbone__adapt": "scale_shift", "optimiser__steps": 200, "optimiser__tasks": 2}
    changes |= {"validation__every": 50, "validation__episodes": 100}  # images, not features
    name, about = preset.name.replace("-mtl-", "-mtl-scaled-"), f"{preset.about}, scale and shift trained"
    return replace(preset, name=name, about=about, train=preset.train.but(**changes))


def _whitened(preset: Preset) -> Preset:
    train = preset.train.but(backbone__whitened=True)
    pretrain = preset.pretrain and preset.pretrain.but(backbone__whitened=True)
    dataset = preset.train.data.dataset
    name = preset.name.replace(f"-{dataset}-", f"-whitened-{dataset}-")
    about = f"{preset.about}, features centred and partially whitened"
    return replace(preset, name=name, about=about, train=train, pretrain=pretrain)


def _cross_fitted(preset: Preset) -> Preset:
    changes: dict[str, Any] = {"tasks": "cross-fitted"}
    if preset.train.method.name == "sib":
        changes["method__feature_weight"] = False
    name = preset.name.replace("-whitened-", "-cross-fitted-")
    about = f"{preset.about}, trained on classes new to their features"
    return replace(preset, name=name, about=about, train=preset.train.but(**changes))


def _pretrained_maml(preset: Preset) -> Preset:
    tuned = PRETRAINED_MAML_RATES[5 if preset.train.episode.shots == 5 else 1]
    train = preset.train.but(method__rate=tuned, **PRETRAINED_MAML)
    name, about = preset.name.replace("-maml-", "-maml-pretrained-"), f"{preset.about}, from a pre-trained 4CONV"
    data = SMALL_DATA[preset.train.data.dataset]
    return replace(preset, name=name, about=about, train=train, pretrain=conv4_pretrain(data))


def conv4_pretrain(data: SmallData) -> PretrainSettings:
    """The 4CONV that small presets with a pre-trained one share."""
    return read_settings(
        PretrainSettings,
        {
            "data": {**data.settings, "normalisation": "none", "augment": True},
            "backbone": {"name": "conv4", "adapt": "full"},
            "epochs": data.conv4_epochs,
            "label_smoothing": 0.1,
            "validation": {"every": 1, "episodes": 500},
        },
    )
