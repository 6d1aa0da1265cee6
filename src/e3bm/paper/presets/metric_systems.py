"""Published recipes of systems that are trained from scratch on their own backbone: metrics, convex heads, graphs.

ProtoNets, Matching Networks, MetaOptNet, CAN and EGNN. Small presets of the same methods are in `feature_systems.py`.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from e3bm.paper.presets.configurations import PAPER_PSI_RATE, Preset
from e3bm.paper.presets.published import PAPER_DATA
from e3bm.runs.settings import HYPERPRIOR_RATES, TestSettings, TrainSettings
from e3bm.settings import read_settings

IMAGENETS = ("miniimagenet", "tieredimagenet")
NORMALISATIONS = {"miniimagenet": "gidaris", "tieredimagenet": "gidaris", "fc100": "cifar"}
SCRATCH = {"adapt": "full", "batchnorm": "batch_then_running"}
PROTO_WAYS = {1: 30, 5: 20}  # in training, by the number of shots
META_OPT_NET_SHOTS = {"miniimagenet": 15, "tieredimagenet": 10, "fc100": 15}
META_OPT_NET_EPOCH = 1000  # steps
# Epochs and steps of an epoch, epochs at which the rate falls, and by which factors.
CAN_SCHEDULES: dict[str, tuple[int, int, tuple[int, ...], tuple[float, ...]]] = {
    "miniimagenet": (90, 300, (60, 70, 80), (0.06, 0.2, 0.2)),
    "tieredimagenet": (80, 3495, (20, 40, 60), (0.1, 0.1, 0.1)),
}
# Steps in all, steps after which the rate is halved, and dropout.
EGNN_STEPS = {"miniimagenet": (100_000, 15_000, 0.1), "tieredimagenet": (200_000, 30_000, 0.0)}
_PSI = dict.fromkeys(HYPERPRIOR_RATES, PAPER_PSI_RATE)


def metric_system_presets() -> Iterator[Preset]:
    """All of them; methods with an inner loop are called plain, like those of the paper."""
    yield from _proto_nets()
    yield from _matching_nets()
    yield from _meta_opt_net()
    yield from _can()
    yield from _egnn()


def _proto_nets() -> Iterator[Preset]:
    """More ways in training than at test; published until 20,000 episodes brought nothing, here 60,000 in all."""
    for data in IMAGENETS:
        for shots, ways in PROTO_WAYS.items():
            train = {
                "data": {"dataset": data, "image_size": 84, "recipe": "maml", "normalisation": NORMALISATIONS[data]},
                "episode": {"ways": ways, "shots": shots, "queries": 15},
                "backbone": {"name": "conv4_64", **SCRATCH},
                "method": {"name": "proto_nets"},
                "optimiser": {"steps": 60_000, "tasks": 1, "theta": 1e-3, "encoder": 1e-3, "clip": None}
                | {"schedule": "step", "step_every": 2000, "step_factor": 0.5},
                "validation": {"every": 1000, "episodes": 600, "ways": 5},
            }
            yield _preset("proto_nets-conv4", shots, train, 600)


def _matching_nets() -> Iterator[Preset]:
    """As in the code that the tables quote; its dropout of a tenth after each pooling is left out."""
    for word in ("matching_nets", "matching_nets_fce"):
        for shots in (1, 5):
            context = word == "matching_nets_fce"
            train = {
                "data": {"dataset": "miniimagenet", "image_size": 84, "recipe": "maml", "normalisation": "none"},
                "episode": {"ways": 5, "shots": shots, "queries": 15},
                "backbone": {"name": "conv4_64", **SCRATCH},
                "method": {"name": word, "scale": 1.0, "rule": "summed"},
                "optimiser": {"steps": 75_000, "tasks": 1, "theta": 1e-4, "encoder": 1e-4}
                | ({"clip": 0.25, **_PSI} if context else {"clip": None}),
                "validation": {"every": 1000, "episodes": 600},
            }
            yield _preset(f"{word}-conv4", shots, train, 600, ending="-plain" if context else "")


def _meta_opt_net() -> Iterator[Preset]:
    """The SVM, which the tables quote, and ridge; one training with many shots serves both tests, chosen with five."""
    learners: dict[str, dict[str, Any]] = {
        "meta_opt_net": {"looks_at_test": 3},
        "meta_opt_net-ridge": {"learner": "ridge", "penalty": 50.0},
    }
    for data, train_shots in META_OPT_NET_SHOTS.items():
        for word, shots in product(learners, (1, 5)):
            train = {
                "data": {
                    "dataset": data,
                    "image_size": PAPER_DATA[data],
                    "recipe": "sib",
                    "normalisation": NORMALISATIONS[data],
                    "augment": True,
                },
                "episode": {"ways": 5, "shots": train_shots, "queries": 6},
                "backbone": {"name": "resnet12_flat", **SCRATCH},
                "method": {
                    "name": "meta_opt_net",
                    "smoothing": 0.1 if data == "miniimagenet" else 0.0,
                    **learners[word],
                },
                "optimiser": _sgd(60, META_OPT_NET_EPOCH, (20, 40, 50), (0.06, 0.2, 0.2)) | {"tasks": 8},
                "validation": {"every": META_OPT_NET_EPOCH, "episodes": 2000, "shots": 5},
            }
            yield _preset(f"{word}-resnet12", shots, train, 1000)


def _can() -> Iterator[Preset]:
    """CAN, and CAN+T, which is trained alike; chosen on validation classes, not on test classes as in the release."""
    for data, schedule in CAN_SCHEDULES.items():
        for word in ("can", "can_t"):
            for shots in (1, 5):
                rounds = word == "can_t"
                train = {
                    "data": {
                        "dataset": data,
                        "image_size": 84,
                        "recipe": "can",
                        "normalisation": NORMALISATIONS[data],
                        "augment": True,
                    },
                    "episode": {"ways": 5, "shots": shots, "queries": 6},
                    "backbone": {"name": "resnet12_can", **SCRATCH},
                    "method": {"name": word},
                    "optimiser": _sgd(*schedule) | {"tasks": 4} | (_PSI if rounds else {}),
                    "validation": {"every": schedule[1], "episodes": 600},
                }
                yield _preset(f"{word}-resnet12", shots, train, 2000, ending="-plain" if rounds else "")


def _egnn() -> Iterator[Preset]:
    """One query of a class in training, as published; fifteen at test, as everywhere here."""
    words = {"transductive": "egnn", "inductive": "egnn-inductive"}
    for data, (steps, halved, dropout) in EGNN_STEPS.items():
        for (graph, word), shots in product(words.items(), (1, 5)):
            train = {
                "data": {
                    "dataset": data,
                    "image_size": 84,
                    "recipe": "egnn",
                    "normalisation": NORMALISATIONS[data],
                    "augment": True,
                },
                "episode": {"ways": 5, "shots": shots, "queries": 1},
                "backbone": {"name": "conv4_egnn", **SCRATCH},
                "method": {"name": "egnn", "graph": graph, "dropout": dropout},
                "optimiser": {"steps": steps, "tasks": 40, "theta": 1e-3, "encoder": 1e-3, "weight_decay": 1e-6}
                | {"schedule": "step", "step_every": halved, "step_factor": 0.5, "clip": None, **_PSI},
                "validation": {"every": 5000, "episodes": 1000},
            }
            yield _preset(f"{word}-conv4", shots, train, 600, ending="-plain")


def _sgd(epochs: int, epoch: int, falls: tuple[int, ...], factors: tuple[float, ...]) -> dict[str, Any]:
    """Nesterov momentum from 0.1 with falls after whole epochs."""
    return {
        "kind": "sgd", "steps": epochs * epoch, "theta": 0.1, "encoder": 0.1, "weight_decay": 5e-4, "clip": None,
        "schedule": "milestones", "milestones": [fall * epoch for fall in falls], "factors": factors,
    }  # fmt: skip


def _preset(word: str, shots: int, train: dict[str, Any], episodes: int, ending: str = "") -> Preset:
    settings = read_settings(TrainSettings, train)
    data = settings.data.dataset
    about = f"{settings.title} on {settings.backbone.name}, {data}, {shots}-shot, after its published recipe"
    test = TestSettings(episodes=episodes, ways=5, shots=shots, queries=15)
    return Preset(f"paper-{word}-{data}-{shots}shot{ending}", about, settings, None, test)
