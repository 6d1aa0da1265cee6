"""Other systems of the paper's tables: their recipes of record, and what two cores can do, with E3BM beside.

One function for each system, listed in SYSTEMS. It is given the presets there are so far by name, so that a small
preset can share the pre-trained backbone and the episodes of a row that it is compared with.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from e3bm.methods.bayesian_maml import BayesianMamlSettings
from e3bm.methods.leo import LeoSettings
from e3bm.methods.maml_plus_plus import MamlPlusPlusSettings
from e3bm.paper.presets.configurations import PAPER_PSI_RATE, Kind, Preset, hyperprior_settings
from e3bm.paper.presets.published import PAPER_DATA
from e3bm.paper.presets.small import SMALL_DATA, small_about
from e3bm.runs.settings import HYPERPRIOR_RATES, TestSettings, TrainSettings
from e3bm.settings import read_settings

System = Callable[[Mapping[str, Preset]], Iterator[Preset]]
SMALL_KINDS: tuple[Kind, ...] = ("plain", "lstm-inductive")
_PSI = dict.fromkeys(HYPERPRIOR_RATES, PAPER_PSI_RATE)

# LEO's hyperparameters, found by its authors' search for each data set and number of shots.
LEO_FOUND: dict[tuple[str, int], dict[str, float]] = {
    ("miniimagenet", 1): {
        "theta": 2.74e-4, "decay": 3.62e-10, "orthogonality": 0.188, "dropout": 0.308,
        "divergence": 0.756, "encoder_penalty": 5.76e-6,
    },
    ("miniimagenet", 5): {
        "theta": 4.10e-4, "decay": 8.54e-9, "orthogonality": 1.52e-3, "dropout": 0.300,
        "divergence": 0.466, "encoder_penalty": 2.66e-7,
    },
    ("tieredimagenet", 1): {
        "theta": 8.66e-4, "decay": 4.15e-10, "orthogonality": 5.45e-3, "dropout": 0.475,
        "divergence": 2.03e-3, "encoder_penalty": 8.30e-5,
    },
    ("tieredimagenet", 5): {
        "theta": 6.11e-4, "decay": 1.69e-10, "orthogonality": 2.48e-2, "dropout": 0.415,
        "divergence": 1.62, "encoder_penalty": 2.67e-5,
    },
}  # fmt: skip
# For a few hundred steps: rates of weights that start at the published 0.001 would not get far.
SMALL_LEO: dict[str, Any] = {
    "latents": 32, "weight_rate": 1.0, "dropout": 0.3, "divergence": 0.1, "encoder_penalty": 1e-6,
}  # fmt: skip
SMALL_LEO_ORTHOGONALITY = {1: 0.1, 5: 0.01}  # by the number of shots
SMALL_BMAML: dict[str, Any] = {"epochs": 10, "particles": 5, "spread": 0.1, "feature_length": 10**0.5}
SMALL_BMAML_RATE = 1.0  # over the number of examples: the likelihood is a sum
# 240 steps in sixty parts: the multi-step loss in the first 80 steps, first order in the first 40.
SMALL_MAMLPP: dict[str, Any] = {
    "epochs": 5, "start": "zero", "training_epochs": 60, "multi_step_epochs": 20, "first_order_epochs": 10,
    "lowest_outer_rate": 0.0,
}  # fmt: skip
SMALL_MAMLPP_RATES = {1: 0.05, 5: 0.15}


def inner_system_presets(rows: Sequence[Preset]) -> Iterator[Preset]:
    """The presets of all systems, given those of the paper's own methods."""
    known = {preset.name: preset for preset in rows}
    for system in SYSTEMS:
        yield from system(known)


def leo(known: Mapping[str, Preset]) -> Iterator[Preset]:
    """LEO on frozen features: WRN-28-10 pre-trained as for SIB, or the half-width ResNet-12 of the small presets."""
    for (data, shots), found in LEO_FOUND.items():
        like = known[f"paper-sib-wrn28_10-{data}-{shots}shot-plain"]
        own = {name: value for name, value in found.items() if name != "theta"}
        train = like.train.but(
            method=read_settings(LeoSettings, own),
            optimiser={"kind": "adam", "steps": 100_000, "tasks": 12, "theta": found["theta"], **_PSI}
            | {"clip_elements": 0.1, "clip_each": 0.1, "clip": None},
        )
        about = f"LEO (plain) on wrn28_10_sib, {data}, {shots}-shot, by the recipe of its authors' code"
        yield Preset(f"paper-leo-wrn28_10-{data}-{shots}shot-plain", about, train, like.pretrain, like.test)
    for data, (shots, orthogonality) in product(SMALL_DATA, SMALL_LEO_ORTHOGONALITY.items()):
        method = read_settings(LeoSettings, SMALL_LEO | {"orthogonality": orthogonality})
        optimiser = {"steps": 600, "tasks": 12, "theta": 3e-4, "schedule": "cosine"}
        for kind in SMALL_KINDS:
            like = known[f"small-mtl-{data}-{shots}shot-{kind}"]
            train = like.train.but(method=method, optimiser=optimiser)
            yield _small("leo", train, shots, kind, like)


def bmaml(known: Mapping[str, Preset]) -> Iterator[Preset]:
    """Bayesian MAML on frozen features; the paper has no row of it, and its release no classification."""
    for data, shots in product(SMALL_DATA, (1, 5)):
        rate = SMALL_BMAML_RATE / (5 * shots)
        method = read_settings(BayesianMamlSettings, SMALL_BMAML | {"rate": rate})
        for kind in SMALL_KINDS:
            like = known[f"small-mtl-{data}-{shots}shot-{kind}"]
            yield _small("bmaml", like.train.but(method=method), shots, kind, like)


def mamlpp(known: Mapping[str, Preset]) -> Iterator[Preset]:
    """MAML++ from scratch as its code has it, and small from the pre-trained 4CONV of MAML's small presets.

    Small ones have BatchNorm as the code computes it, each pass by its own images, and per step as the paper means it.
    """
    for data, pixels in PAPER_DATA.items():
        for shots in (1, 5):
            train = read_settings(
                TrainSettings,
                {
                    "data": {"dataset": data, "image_size": pixels, "recipe": "maml", "normalisation": "imagenet"},
                    "episode": {"ways": 5, "shots": shots, "queries": 15},
                    # 48 filters, as its code has on miniImageNet.
                    "backbone": {"name": "conv4", "width": 1.5, "adapt": "full", "batchnorm": "batch"},
                    "method": MamlPlusPlusSettings().model_dump(),
                    "optimiser": {"steps": 50_000, "tasks": 2, "theta": 1e-3, **_PSI}
                    | {"clip": None, "clip_elements": 10.0},
                    "validation": {"every": 500, "episodes": 600},
                },
            )
            test = TestSettings(episodes=600, ways=5, shots=shots, queries=15)
            about = f"MAML++ (plain) on conv4, {data}, {shots}-shot, by the recipe of its authors' code"
            yield Preset(f"paper-mamlpp-conv4-{data}-{shots}shot-plain", about, train, None, test)
    for small, (shots, rate) in product(SMALL_DATA, SMALL_MAMLPP_RATES.items()):
        method = read_settings(MamlPlusPlusSettings, SMALL_MAMLPP | {"rate": rate})
        for kind in SMALL_KINDS:
            like = known[f"small-maml-pretrained-{small}-{shots}shot-{kind}"]
            # The cosine of the outer rate is one of MAML++'s own changes here.
            train = like.train.but(
                method=method, optimiser__schedule="constant", optimiser__steps=240, validation__every=60
            )
            yield _small("mamlpp", train, shots, kind, like)
            yield _small("mamlpp-per-step", train.but(backbone__batchnorm="per_step"), shots, kind, like)


SYSTEMS: tuple[System, ...] = (leo, bmaml, mamlpp)


def _small(word: str, train: TrainSettings, shots: int, kind: Kind, like: Preset) -> Preset:
    """A system trained and tested on the episodes of a row that it is compared with."""
    train = train.but(hyperprior=hyperprior_settings(train.method.name, "e3bm", kind))
    data = SMALL_DATA[train.data.dataset]
    about = small_about(train, kind, data, shots)
    if train.backbone.batchnorm == "per_step":
        about += ", BatchNorm statistics of each inner step"
    return Preset(f"small-{word}-{data.name}-{shots}shot-{kind}", about, train, like.pretrain, like.test)
