"""MAML on Omniglot by its common recipe, and the same in minutes for two cores."""

from collections.abc import Iterator
from typing import Any

from e3bm.presets.configurations import KINDS, hyperprior_settings
from e3bm.presets.preset import Preset
from e3bm.settings import TestSettings, TrainSettings, read_settings

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
