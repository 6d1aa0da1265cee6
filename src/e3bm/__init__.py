"""E3BM: few-shot classification by an ensemble of epoch-wise empirical Bayes models.

Names are loaded when they are first used, so that `import e3bm` and `e3bm --help` stay cheap.
"""

from importlib import import_module
from typing import Any

_PLACES = {
    # A few photos or features in, a classifier out
    "FewShotClassifier": "fewshot.few_shot_classifier",
    "TextClassifier": "fewshot.text.classifier",
    "Prediction": "fewshot.prediction",
    "E3BMClassifier": "fewshot.estimator",
    # Records
    "EpisodeSpec": "core.episode",
    "EpisodeIndex": "core.episode",
    "TaskBatch": "core.episode",
    # The paper
    "adapt": "core.adapt",
    "MetaLearner": "core.learner",
    "DirectLearner": "core.learner",
    "InnerLoopMethod": "core.learner",
    "DirectMethod": "core.learner",
    "Trace": "core.adapt",
    "AdaptationTrace": "core.adapt",
    "Hyperprior": "core.hyperprior",
    "FcGenerator": "core.hyperprior",
    "LstmGenerator": "core.hyperprior",
    "Context": "core.context",
    "ClassMean": "core.context",
    "Flat": "core.context",
    "Rms": "core.context",
    "Stats": "core.context",
    "Constant": "core.schedules",
    "Equal": "core.schedules",
    "LastOnly": "core.schedules",
    "Learned": "core.schedules",
    "Frozen": "core.schedules",
    "Generated": "core.schedules",
    "meta_loss": "core.learner",
    # Methods and networks, by class or by name
    "MethodSettings": "settings",
    "InnerLoopSettings": "settings",
    "Needs": "settings",
    "Parts": "methods",
    "Maml": "methods",
    "Mtl": "methods",
    "Sib": "methods",
    "NearestMean": "methods",
    "ReadyFeatures": "methods",
    "METHODS": "methods",
    "BACKBONES": "backbones",
    "build": "backbones",
    "wrap": "backbones",
    # Data
    "open_dataset": "data.source",
    "PackedImages": "data.store.packed",
    "EpisodeSampler": "data.episodes.sampler",
    # Settings and errors
    "TrainSettings": "runs.settings",
    "PretrainSettings": "runs.settings",
    "TestSettings": "runs.settings",
    "find_preset": "paper.presets",
    "E3BMError": "errors",
}

__all__ = sorted(_PLACES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("e3bm")
    if name not in _PLACES:
        raise AttributeError(f"e3bm has no name '{name}'.")
    return getattr(import_module(f"e3bm.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
