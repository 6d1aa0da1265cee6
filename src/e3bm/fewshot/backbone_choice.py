"""Which network turns photos into features: the one that comes by pip, a run of ours, or any module."""

from functools import cache
from pathlib import Path

from torch import nn

from e3bm.assembly import weights_digest
from e3bm.backbones import Backbone, fold_batchnorm
from e3bm.backbones.pretrained import LITE0, LITE0_PIPELINE, efficientnet_lite0, lite0_digest
from e3bm.data.pipeline import Pipeline
from e3bm.errors import SettingsError
from e3bm.fewshot.feature_extractor import BackboneOrigin, FeatureExtractor

BackboneChoice = str | Path | nn.Module | None
HUB = "transformers:"


def choose_backbone(backbone: BackboneChoice, pipeline: str | None = None) -> FeatureExtractor:
    """The network that was asked for, frozen, with what its images go through."""
    if backbone is None or backbone == LITE0:
        found = lite0_extractor()
        return found if pipeline is None else replaced_pipeline(found, pipeline)
    if isinstance(backbone, nn.Module):
        return module_extractor(backbone, pipeline)
    raise SettingsError(f"The backbone {backbone!r} is not known.")


@cache
def lite0_extractor() -> FeatureExtractor:
    """EfficientNet-Lite0 with its ImageNet weights; one for the whole process, since it is never changed."""
    network = efficientnet_lite0()
    origin = BackboneOrigin("package", LITE0, lite0_digest())
    return FeatureExtractor(fold_batchnorm(network), Pipeline.parse(LITE0_PIPELINE), 3, origin, network)


def module_extractor(module: nn.Module, pipeline: str | None) -> FeatureExtractor:
    """Any network from images to features; it is put into eval mode and not trained."""
    if pipeline is None:
        raise SettingsError(
            "A backbone of your own needs its preprocessing, for example "
            "pipeline='resize 256, centre_crop 224, normalise imagenet'."
        )
    steps = deterministic(pipeline)
    network = fold_batchnorm(module) if isinstance(module, Backbone) and not module.folded else module.eval()
    channels = module.channels if isinstance(module, Backbone) else 3
    origin = BackboneOrigin("module", type(module).__name__, weights_digest(module))
    return FeatureExtractor(network, steps, channels, origin, module)


def replaced_pipeline(extractor: FeatureExtractor, pipeline: str) -> FeatureExtractor:
    """The same network behind another preprocessing."""
    return FeatureExtractor(
        extractor.network, deterministic(pipeline), extractor.channels, extractor.origin, extractor.weights
    )


def deterministic(text: str) -> Pipeline:
    """A pipeline without chance."""
    pipeline = Pipeline.parse(text)
    if pipeline.draws:
        raise SettingsError(f"The preprocessing of photos must not be random; '{text}' is.")
    return pipeline
