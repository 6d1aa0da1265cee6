"""Settings as older versions wrote them, brought to the form of today: the one place that knows former forms.

Version 1 had one list of options for all methods, and SIB's learning rate among the optimiser's.
"""

from typing import Any

VERSION = 2
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
    if config.get("version", 1) >= VERSION or config["kind"] != "train":
        return config
    settings = config["settings"]
    method, optimiser = dict(settings.get("method", {})), dict(settings.get("optimiser", {}))
    name = method.get("name", "mtl")
    method = {key: value for key, value in method.items() if name in FORMER_OPTIONS.get(key, (name,))}
    rate = optimiser.pop("gradient_net", None)
    if name == "sib" and rate is not None:
        method["gradient_net_rate"] = rate
    changed = {"method": method, "optimiser": optimiser}
    settings = {**settings, **{key: value for key, value in changed.items() if key in settings}}
    return {**config, "settings": settings, "version": VERSION}
