"""The backbone that a model file was made with: rebuilt, found again, or given by the user."""

from pathlib import Path
from typing import Any

from torch import Tensor

from e3bm.backbones.pretrained import LITE0, LITE0_PACKAGES
from e3bm.data.pipeline import CentreCrop, Channels, Invert, Pipeline, Resize
from e3bm.errors import CheckpointError, E3BMError
from e3bm.fewshot.backbone_choice import BackboneChoice, choose_backbone, lite0_extractor
from e3bm.fewshot.feature_extractor import BackboneOrigin, FeatureExtractor
from e3bm.fewshot.hub_backbone import HUB, hub_extractor
from e3bm.fewshot.run_backbone import rebuilt

MOST_STEPS, MOST_PIXELS, MOST_CHANNELS = 8, 1024, 16
PREFIX = "backbone."


def restored(
    path: Path, origin: BackboneOrigin, channels: int, pipeline: str, tensors: dict[str, Tensor], given: BackboneChoice
) -> FeatureExtractor:
    """The backbone with exactly the weights that the file names."""
    try:
        steps = _modest(pipeline)
        if given is not None:
            found = choose_backbone(given, pipeline)
        elif origin.kind == "run":
            weights = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
            found = rebuilt(origin, channels, steps, weights)
        elif origin.kind == "package" and origin.name == LITE0:
            found = lite0_extractor().behind(steps)
        elif origin.kind == "transformers":
            found = _from_hub(origin.name, pipeline)
        elif origin.kind == "module":
            raise CheckpointError(
                f"it was made with a network of its user's own ({origin.name}), which no file can rebuild; "
                f"load it with that network: FewShotClassifier.load({str(path)!r}, backbone=network)"
            )
        else:
            raise CheckpointError(f"its backbone '{origin.name}' is of a kind that is not known ({origin.kind})")
    except E3BMError as error:
        raise CheckpointError(f"{path} cannot be used: {str(error).removesuffix('.')}.") from None
    if found.digest() != origin.digest:
        raise CheckpointError(f"{path} cannot be used: {_other_weights(origin)}")
    return found


def _from_hub(name: str, pipeline: str) -> FeatureExtractor:
    try:
        return hub_extractor(name, pipeline, only_stored=True)
    except E3BMError as error:
        raise CheckpointError(
            f"it needs the model '{name}', which a file alone does not make this program fetch ({error}) "
            f"Give it as backbone='{HUB}{name}'"
        ) from None


def _other_weights(origin: BackboneOrigin) -> str:
    if origin.kind == "package":
        return (
            f"it was made with other weights of {origin.name} than the installed package {LITE0_PACKAGES[1]} has; "
            "install the version that it was made with, or fit it again."
        )
    return f"the backbone's weights are not those it was made with ({origin.name}, sha256 {origin.digest[:12]}...)."


def _modest(text: str) -> Pipeline:
    """The preprocessing that a file states, if it is of a kind and size that photos need."""
    steps = Pipeline.parse(text)
    if len(steps.steps) > MOST_STEPS:
        raise CheckpointError(f"its preprocessing has {len(steps.steps)} steps, more than {MOST_STEPS}")
    limits: dict[type[Any], tuple[str, int]] = {
        Resize: ("size", MOST_PIXELS),
        CentreCrop: ("size", MOST_PIXELS),
        Channels: ("count", MOST_CHANNELS),
        Invert: ("draws", 0),
    }
    for step in steps.steps:
        name, most = limits.get(type(step), ("", 0))
        if not name or getattr(step, name) > most:
            raise CheckpointError(f"its preprocessing '{text[:80]}' is not one for photos")
    return steps
