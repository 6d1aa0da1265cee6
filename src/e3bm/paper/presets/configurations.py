"""The `paper` and the `e3bm` configuration of every method, its hyperprior, and the paper's ablations of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from e3bm.errors import SettingsError
from e3bm.methods.maml import MamlSettings
from e3bm.methods.mtl import MtlSettings
from e3bm.methods.sib import SibSettings
from e3bm.runs.settings import HyperpriorSettings, PretrainSettings, TestSettings, TrainSettings
from e3bm.settings import InnerLoopSettings, read_settings

Configuration = Literal["paper", "e3bm"]
Kind = Literal["plain", "fc-inductive", "fc-transductive", "lstm-inductive", "lstm-transductive"]
KINDS: tuple[Kind, ...] = ("plain", "fc-inductive", "fc-transductive", "lstm-inductive", "lstm-transductive")

PAPER_PSI_RATE = 1e-6  # meta-learning rate of Psi, alpha' and v'

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
SETTINGS: dict[str, type[InnerLoopSettings]] = {
    "mtl": MtlSettings, "mtl-cosine": MtlSettings, "sib": SibSettings, "maml": MamlSettings,
}  # fmt: skip
PAPER_SUMMARIES = {"mtl": "flat", "mtl-cosine": "class_mean", "sib": "class_mean", "maml": "rms"}


def method_settings(method: str, configuration: Configuration) -> InnerLoopSettings:
    """The inner loop of a method; 'mtl-cosine' is MTL with the cosine head."""
    known = METHOD_SETTINGS[configuration]
    if method not in known:
        raise SettingsError(f"There is no configuration for '{method}'; known: {', '.join(known)}.")
    return read_settings(SETTINGS[method], known[method])


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


# What a preset is.


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


# The rows of the paper that are another row with something changed, for published and small presets alike.


def kind_of(preset: Preset) -> Kind | None:
    """The kind of hyperprior that the preset's name ends in; methods without an inner loop have none."""
    return next((kind for kind in KINDS if preset.name.endswith(kind)), None)


def five_seeds(preset: Preset) -> Iterator[Preset]:
    """5x MAML, five seeds that answer together, for a row that is MAML alone."""
    if preset.train.method.name == "maml" and kind_of(preset) == "plain":
        name = preset.name.removesuffix("-plain").replace("-maml-", "-5xmaml-")
        about = preset.about.replace("MAML (plain)", "5x MAML, the mean of five seeds,")
        yield replace(preset, name=name, about=about, members=5)


def ablation_arms(preset: Preset) -> Iterator[Preset]:
    """Figure 4, which has MTL+E3BM (LSTM, inductive) as in Table 1."""
    train, kind = preset.train, kind_of(preset)
    if not isinstance(train.method, MtlSettings) or kind != "lstm-inductive" or train.method.head != "linear":
        return
    rename = lambda word: preset.name.removesuffix(kind) + word
    for arm, (rate, weight) in ABLATIONS.items():
        learned = Path("runs") / train.data.dataset / f"{rename(LEARNED_BY[arm])}-s0" if arm in LEARNED_BY else None
        about = preset.about.replace("MTL+E3BM (lstm-inductive)", f"MTL, ablation ({arm}): alpha {rate}, v {weight},")
        yield replace(preset, name=rename(arm), about=about, train=ablation_settings(train, arm, learned))
