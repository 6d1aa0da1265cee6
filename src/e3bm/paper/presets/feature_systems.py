"""Other systems of the paper's tables, and rivals on the same features: for two cores, on the data that `small.py` has.

Methods on frozen features have the centred, whitened ones, like MTL and SIB at their best. Some of them have nothing to
train by themselves and are validated as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from e3bm.paper.presets.configurations import KINDS, Kind, Preset, hyperprior_settings
from e3bm.paper.presets.small import SMALL_DATA, SmallData, resnet12_pretrain, small_about
from e3bm.runs.settings import TestSettings, TrainSettings
from e3bm.settings import read_settings

# The whole backbone is trained, gently: it has been trained before.
FULL: dict[str, Any] = {
    "backbone": {"adapt": "full", "batchnorm": "running"},
    "optimiser": {"steps": 100, "tasks": 2, "theta": 1e-2, "encoder": 1e-4, "schedule": "cosine"},
    "validation": {"every": 50, "episodes": 100},
}
FROZEN: dict[str, Any] = {
    "backbone": {"whitened": True},
    "optimiser": {"steps": 300, "tasks": 16, "schedule": "cosine"},
    "validation": {"every": 25, "episodes": 500},
}
SLOWLY = {"steps": 200, "theta": 1e-4}
MAPS = {"theta": 1e-3, "schedule": "constant"}
# EGNN trains with one query of a class, as published, and is tested with fifteen like everything else.
GRAPH: dict[str, Any] = {"name": "egnn", "hidden": 48, "embedding": 64, "dropout": 0.1}
GRAPHS = {"steps": 1000, "tasks": 20}


@dataclass(frozen=True)
class System:
    """A method's row: its options, what is trained, and with which hyperpriors."""

    word: str
    """What the preset's name calls it."""
    method: dict[str, Any]
    training: dict[str, Any]
    queries: int
    kinds: tuple[Kind, ...] = ("plain",)
    optimiser: dict[str, Any] | None = None
    train_shots: int | None = None
    """Shots in training where they are not those of the test."""
    hyperprior: dict[str, Any] | None = None
    """What is changed of the hyperprior where rates and votes are generated."""


SYSTEMS = (
    System("proto_nets", {"name": "proto_nets", "divided": True, "learned_scale": True, "scale": 5.0}, FULL, 8),
    System("matching_nets", {"name": "matching_nets", "learned_scale": True}, FULL, 8),
    System(
        "matching_nets_fce", {"name": "matching_nets_fce"}, FROZEN, 15, ("plain", "lstm-inductive"), optimiser=SLOWLY
    ),
    # One training serves any number of shots: more of them in training than at test, as published.
    System("meta_opt_net", {"name": "meta_opt_net", "scale": 5.0}, FULL, 6, train_shots=5),
    System(
        "meta_opt_net-ridge",
        {"name": "meta_opt_net", "learner": "ridge", "penalty": 100.0, "scale": 5.0},
        FULL,
        6,
        train_shots=5,
    ),
    System(
        "meta_opt_net_descent",
        {"name": "meta_opt_net_descent", "penalty": 100.0, "scale": 5.0},
        FROZEN,
        15,
        ("plain", "lstm-inductive"),
    ),
    System(
        "soft_k_means",
        {"name": "soft_k_means", "unit_length": True, "scale": 10.0, "epochs": 5},
        FROZEN,
        15,
        ("plain", "lstm-transductive"),
    ),
    # Learned MAP begins with the rule as it is, a vote for the last round only; other votes can then not be factors.
    System(
        "map_rounds",
        {"name": "map_rounds"},
        FROZEN,
        15,
        KINDS,
        hyperprior={"mixing": "shifted", "weight_start": "last"},
    ),
    # One number is trained, far from where it begins, so fast; a learned scale cost accuracy on validation classes.
    System(
        "map_rounds-balanced",
        {"name": "map_rounds", "learned_balance": True},
        {**FROZEN, "validation": {"every": 100, "episodes": 500}},
        15,
        ("plain", "lstm-transductive"),
        optimiser={"steps": 100, "theta": 5e-2},
        hyperprior={"mixing": "shifted", "weight_start": "last"},
    ),
    # On whitened features, which are centred, no power was better on validation classes than the published root.
    System("pt_map", {"name": "pt_map", "power": 1.0}, FROZEN, 15, ("plain", "lstm-transductive")),
    System("tim", {"name": "tim", "epochs": 30}, FROZEN, 15, ("plain", "lstm-transductive")),
    System("laplacian_shot", {"name": "laplacian_shot"}, FROZEN, 15),
    System("ridge_regression", {"name": "ridge_regression"}, FROZEN, 15),
    System("logistic_regression", {"name": "logistic_regression"}, FROZEN, 15),
    System("nearest_mean", {"name": "nearest_mean"}, FROZEN, 15),
    System("can", {"name": "can"}, FULL, 6, optimiser=MAPS),
    System("can_t", {"name": "can_t"}, FULL, 6, ("plain", "lstm-transductive"), optimiser=MAPS),
    System("egnn", GRAPH, FROZEN, 1, ("plain", "lstm-transductive"), optimiser=GRAPHS),
    System("egnn-inductive", {**GRAPH, "graph": "inductive"}, FROZEN, 1, ("plain", "lstm-inductive"), optimiser=GRAPHS),
)


def feature_system_presets() -> Iterator[Preset]:
    """Every system with one and five shots; its hyperprior is part of the name where it has an inner loop."""
    for data, system, shots in product(SMALL_DATA.values(), SYSTEMS, (1, 5)):
        for kind in system.kinds:
            yield _preset(data, system, shots, kind)


def _preset(data: SmallData, system: System, shots: int, kind: Kind) -> Preset:
    hyperprior = hyperprior_settings(system.word, "e3bm", kind)
    if hyperprior.generated:
        hyperprior = hyperprior.but(**(system.hyperprior or {}))
    train = read_settings(
        TrainSettings,
        {
            "data": data.settings,
            "episode": {"ways": 5, "shots": system.train_shots or shots, "queries": system.queries},
            "backbone": {"name": "resnet12", "width": 0.5, **system.training["backbone"]},
            "method": system.method,
            "hyperprior": hyperprior.model_dump(),
            "optimiser": {**system.training["optimiser"], **(system.optimiser or {})},
            "validation": system.training["validation"],
        },
    )
    name = f"small-{system.word}-{data.name}-{shots}shot" + ("" if system.kinds == ("plain",) else f"-{kind}")
    test = TestSettings(episodes=3000, queries=15, shots=None if system.train_shots in (None, shots) else shots)
    pretrain = resnet12_pretrain(data).but(backbone__whitened=train.backbone.whitened)
    return Preset(name, small_about(train, kind, data, shots), train, pretrain, test)
