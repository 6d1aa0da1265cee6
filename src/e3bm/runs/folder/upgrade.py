"""Settings as older versions wrote them, brought to the form of today: the one place that knows former forms.

Version 1 had one list of options for all methods, SIB's learning rate among the optimiser's, and called partially
whitened features levelled.
"""

import re
from typing import Any

VERSION = 2
FORMER_NAMES = {"levelled": "whitened"}  # of settings of a backbone
# Options of the former common list, and the methods that had a use for each.
FORMER_OPTIONS = {
    "head": ("mtl",),
    "start": ("mtl", "maml"),
    "temperature": ("mtl",),
    "feature_length": ("mtl",),
    "gradient_net": ("sib",),
    "loss_scale": ("maml",),
    "checkpointed": ("maml",),
}


def upgraded(config: dict[str, Any]) -> dict[str, Any]:
    """The contents of a config.json in the form of today."""
    if config.get("version", 1) >= VERSION:
        return config
    settings = dict(config["settings"])
    if isinstance(settings.get("backbone"), dict):
        settings["backbone"] = upgraded_backbone(settings["backbone"])
    if config["kind"] == "train":
        settings |= _upgraded_method(settings)
    return {**config, "settings": settings, "version": VERSION}


def upgraded_backbone(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a backbone, of a run or inside of a model file."""
    return {FORMER_NAMES.get(name, name): value for name, value in values.items()}


def upgraded_result(values: dict[str, Any]) -> dict[str, Any]:
    """A test result, whose backbone may have the former word for its features."""
    backbone = values.get("backbone")
    if not isinstance(backbone, str):
        return values
    return {**values, "backbone": re.sub(r" levelled$", " whitened", backbone)}


def _upgraded_method(settings: dict[str, Any]) -> dict[str, Any]:
    """Method and optimiser, where they are stated: the method's own options only, and its own learning rate."""
    if not isinstance(settings.get("method", {}), dict) or not isinstance(settings.get("optimiser", {}), dict):
        return {}  # not settings of ours: whoever reads them says so
    method, optimiser = dict(settings.get("method", {})), dict(settings.get("optimiser", {}))
    name = method.get("name", "mtl")
    method = {key: value for key, value in method.items() if name in FORMER_OPTIONS.get(key, (name,))}
    rate = optimiser.pop("gradient_net", None)
    if name == "sib" and rate is not None:
        method["gradient_net_rate"] = rate
    return {key: value for key, value in (("method", method), ("optimiser", optimiser)) if key in settings}
