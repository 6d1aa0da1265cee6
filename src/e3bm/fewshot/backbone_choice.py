"""Which network turns photos into features: the one that comes by pip, a run of ours, a hub's, or any module."""

from functools import cache
from pathlib import Path
from typing import TypeAlias

from torch import nn

from e3bm.assembly import weights_digest
from e3bm.backbones import Backbone, fold_batchnorm
from e3bm.backbones.pretrained import LITE0, LITE0_PIPELINE, efficientnet_lite0, lite0_digest
from e3bm.data.pipeline import Pipeline
from e3bm.errors import SettingsError
from e3bm.fewshot.feature_extractor import BackboneOrigin, FeatureExtractor, deterministic
from e3bm.fewshot.hub_backbone import HUB, hub_extractor
from e3bm.fewshot.run_backbone import run_extractor, weights_file_extractor

BackboneChoice: TypeAlias = str | Path | nn.Module | FeatureExtractor | None


def choose_backbone(backbone: BackboneChoice, pipeline: str | None = None) -> FeatureExtractor:
    """The network that was asked for, frozen, with what its images go through."""
    if isinstance(backbone, nn.Module):
        return module_extractor(backbone, pipeline)
    if isinstance(backbone, FeatureExtractor) or backbone is None or backbone == LITE0:
        found = backbone if isinstance(backbone, FeatureExtractor) else lite0_extractor()
        return found if pipeline is None else found.behind(deterministic(pipeline))
    if isinstance(backbone, str) and backbone.startswith(HUB):
        return hub_extractor(backbone.removeprefix(HUB), pipeline)
    place = Path(backbone)
    if place.is_dir():
        return run_extractor(place, pipeline)
    if place.is_file():
        return weights_file_extractor(place, pipeline)
    raise SettingsError(
        f"There is no run folder or weights file {place}; for a model of a hub write {HUB}{backbone}, "
        f"and leave the backbone out for {LITE0}."
    )


@cache
def lite0_extractor() -> FeatureExtractor:
    """EfficientNet-Lite0 with its ImageNet weights; one for the whole process, since it is never changed."""
    origin = BackboneOrigin("package", LITE0, lite0_digest())
    return FeatureExtractor(fold_batchnorm(efficientnet_lite0()), Pipeline.parse(LITE0_PIPELINE), 3, origin)


def module_extractor(module: nn.Module, pipeline: str | None) -> FeatureExtractor:
    """Any network from images to features; it is put into eval mode and not trained."""
    if pipeline is None:
        raise SettingsError(
            "A backbone of your own needs its preprocessing, for example "
            "pipeline='resize 256, centre_crop 224, normalise imagenet'."
        )
    network = fold_batchnorm(module) if isinstance(module, Backbone) and not module.folded else module.eval()
    channels = module.channels if isinstance(module, Backbone) else 3
    origin = BackboneOrigin("module", type(module).__name__, weights_digest(module))
    return FeatureExtractor(network, deterministic(pipeline), channels, origin)
