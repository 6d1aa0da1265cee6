"""CAN, CAN+T and EGNN on FC100 for two cores, on the backbone that `small.py` pre-trains; not tuned."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from e3bm.paper.presets.configurations import Kind, Preset, hyperprior_settings
from e3bm.runs.settings import TestSettings, TrainSettings
from e3bm.settings import read_settings

# CAN trains the whole backbone, gently: it has been trained before.
ON_MAPS: dict[str, Any] = {
    "episode": {"ways": 5, "queries": 6},
    "backbone": {"adapt": "full", "batchnorm": "running"},
    "optimiser": {"steps": 300, "tasks": 2, "theta": 1e-3, "encoder": 1e-4},
    "validation": {"every": 50, "episodes": 100},
}
# EGNN trains with one query of a class, as published, and is tested with fifteen like everything else.
ON_GRAPHS: dict[str, Any] = {
    "episode": {"ways": 5, "queries": 1},
    "backbone": {},
    "optimiser": {"steps": 1000, "tasks": 20, "theta": 1e-3, "schedule": "cosine"},
    "validation": {"every": 25, "episodes": 200},
}
GRAPH: dict[str, Any] = {"name": "egnn", "hidden": 48, "embedding": 64, "dropout": 0.1}


@dataclass(frozen=True)
class GraphSystem:
    """A method's row: its options, what is trained, and with which hyperpriors."""

    word: str
    """What the preset's name calls it."""
    method: dict[str, Any]
    training: dict[str, Any]
    kinds: tuple[Kind, ...] = ("plain",)


SYSTEMS = (
    GraphSystem("can", {"name": "can"}, ON_MAPS),
    GraphSystem("can_t", {"name": "can_t"}, ON_MAPS, ("plain", "lstm-transductive")),
    GraphSystem("egnn", GRAPH, ON_GRAPHS, ("plain", "lstm-transductive")),
    GraphSystem("egnn-inductive", {**GRAPH, "graph": "inductive"}, ON_GRAPHS, ("plain", "lstm-inductive")),
)


def graph_presets(small: list[Preset]) -> Iterator[Preset]:
    """Every system with one and five shots, beside the small rows; its hyperprior is named where it has epochs."""
    shared = next(preset for preset in small if preset.train.method.name == "mtl")
    for system in SYSTEMS:
        for shots in (1, 5):
            for kind in system.kinds:
                yield _preset(system, shots, kind, shared)


def _preset(system: GraphSystem, shots: int, kind: Kind, shared: Preset) -> Preset:
    train = read_settings(
        TrainSettings,
        {
            "data": shared.train.data.model_dump(),
            "episode": {**system.training["episode"], "shots": shots},
            "backbone": {"name": "resnet12", "width": 0.5, **system.training["backbone"]},
            "method": system.method,
            "hyperprior": hyperprior_settings(system.word, "e3bm", kind).model_dump(),
            "optimiser": system.training["optimiser"],
            "validation": system.training["validation"],
        },
    )
    name = f"small-{system.word}-fc100-{shots}shot" + ("" if system.kinds == ("plain",) else f"-{kind}")
    about = f"{train.title} ({kind}) on FC100 at 32 px, {shots}-shot, for two cores"
    return Preset(name, about, train, shared.pretrain, TestSettings(episodes=3000, queries=15))
