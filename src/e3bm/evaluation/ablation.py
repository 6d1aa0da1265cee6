"""The paper's ablations as lists of settings: where alpha comes from, where v comes from, which hyperprior."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from e3bm.presets import ABLATIONS, KINDS, LEARNED_BY, Kind, ablation_settings
from e3bm.settings import HyperpriorSettings, TrainSettings

Study = Literal["rate", "weight", "hyperprior"]
STUDIES: tuple[Study, ...] = get_args(Study)
WORDS = {
    "v1": "E3BM", "v2": "learnable", "v3": "optimal", "v4": "equal",
    "a1": "E3BM", "a2": "learnable", "a3": "optimal",
}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One line of a study: its run's name, what tables call it, and the settings it makes of the study's own."""

    name: str
    title: str
    settings: Callable[[TrainSettings, Path | None], TrainSettings]
    learned_by: str | None = None
    """The arm whose learned values this one freezes; it is trained first."""


def study_arms(study: Study) -> tuple[Arm, ...]:
    """The arms in the order in which they can be trained; the method alone, (a4) and (v5) in one, belongs to all."""
    if study == "hyperprior":
        return (PLAIN, *(_kind_arm(kind) for kind in KINDS if kind != "plain"))
    letter, last = ("a", "a4") if study == "rate" else ("v", "v5")
    return (*(_schedule_arm(name) for name in ABLATIONS if name.startswith(letter) and name != last), PLAIN)


PLAIN = Arm("plain", "{method} (a4, v5)", lambda base, learned: base.but(hyperprior=HyperpriorSettings()))


def _schedule_arm(name: str) -> Arm:
    change = lambda base, learned: ablation_settings(base, name, learned)
    return Arm(name, arm_title(name, "{method}"), change, LEARNED_BY.get(name))


def arm_title(name: str, method: str) -> str:
    """What tables and figures call an arm: MTL (v2) learnable."""
    return f"{method} ({name}) {WORDS[name]}"


def _kind_arm(kind: Kind) -> Arm:
    generator, setting = kind.split("-")
    change = lambda base, learned: base.but(
        hyperprior=base.hyperprior.but(rate="generated", weight="generated", generator=generator, setting=setting)
    )
    return Arm(kind, f"{{method}}+E3BM ({generator.upper()}, {setting})", change)


def arm_of(settings: TrainSettings) -> str | None:
    """Which of the paper's ablations a run is, by its schedules; the method alone is 'plain'."""
    pair = (settings.hyperprior.rate, settings.hyperprior.weight)
    if pair == ("constant", "last"):
        return PLAIN.name
    return next((name for name, schedules in ABLATIONS.items() if schedules == pair), None)
