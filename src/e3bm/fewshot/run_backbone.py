"""A backbone of ours for photos: from a run folder, a weights file, or the weights inside of a model file."""

from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor

from e3bm.assembly import build_backbone, weights_digest
from e3bm.backbones import Backbone, fold_batchnorm, scale_and_shift
from e3bm.data.pipeline import Pipeline
from e3bm.data.recipes import RECIPES
from e3bm.data.source import open_dataset, registered_sources
from e3bm.errors import CheckpointError, E3BMError, SettingsError
from e3bm.fewshot.feature_extractor import BackboneOrigin, FeatureExtractor, deterministic
from e3bm.settings import BackboneSettings, DataSettings, PretrainSettings, TrainSettings, read_settings
from e3bm.tracking.checkpoint import Checkpoints, misfit, read_weights
from e3bm.tracking.run_folder import RunFolder

INSIDE = "backbone."


def run_extractor(run: Path, pipeline: str | None = None) -> FeatureExtractor:
    """The backbone of a run of `e3bm pretrain` or `e3bm train`, with the preprocessing of its validation images."""
    folder = RunFolder(run)
    config = folder.config()
    kind: type[PretrainSettings] | type[TrainSettings]
    kind = PretrainSettings if config["kind"] == "pretrain" else TrainSettings
    settings = read_settings(kind, config["settings"])
    chosen, data = settings.backbone, settings.data
    if chosen.batchnorm in ("batch", "per_step"):
        raise SettingsError(
            f"The backbone of {run} was trained with the statistics of each batch and has none of its own; "
            "use one of `e3bm pretrain`."
        )
    weights = _weights_of_run(run, chosen)
    size = data.image_size or _own_size(data)
    steps = _evaluation(data, size) if pipeline is None else deterministic(pipeline)
    pixels = steps.output_shape((size, size, 3 if len(steps.normalisation.mean) == 3 else _channels(weights)))[1]
    return _extractor(chosen, pixels, weights, steps, str(run))


def weights_file_extractor(path: Path, pipeline: str | None) -> FeatureExtractor:
    """The backbone of a file that `e3bm import-weights` wrote."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable weights file: {error}.") from None
    if about.get("kind") != "backbone":
        raise CheckpointError(
            f"{path} does not say which backbone it is for; give a run folder, or a file of `e3bm import-weights`."
        )
    if pipeline is None:
        raise SettingsError(
            f"{path} does not say how its images are treated; give that too, for example "
            "pipeline='resize 92, centre_crop 84, normalise imagenet'."
        )
    steps, weights = deterministic(pipeline), read_weights(path)
    pixels = steps.output_shape((256, 256, _channels(weights)))[1]
    chosen = BackboneSettings(name=about["backbone"], width=float(about["width"]))
    return _extractor(chosen, pixels, weights, steps, str(path))


def rebuilt(origin: BackboneOrigin, channels: int, pipeline: Pipeline, weights: dict[str, Tensor]) -> FeatureExtractor:
    """The backbone whose folded weights a model file holds; nothing is allocated beside them."""
    values = origin.settings
    known = {"name": values.get("name"), "width": values.get("width"), "levelled": values.get("levelled", False)}
    chosen = read_settings(BackboneSettings, known)
    size = read_settings(DataSettings, {"image_size": values.get("image_size")}).image_size or 0
    try:
        with torch.device("meta"):
            network = fold_batchnorm(_network(chosen, channels, size))
        network.load_state_dict({name: value.clone() for name, value in weights.items()}, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"the weights inside do not fit a {chosen.name}: {misfit(error)}") from None
    network = network.to(memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload]
    return FeatureExtractor(network, pipeline, channels, origin)


def _extractor(
    chosen: BackboneSettings, pixels: int, weights: dict[str, Tensor], steps: Pipeline, shown: str
) -> FeatureExtractor:
    name, channels = chosen.name, _channels(weights)
    network = _network(chosen, channels, pixels)
    if any(part.endswith(".scale") for part in weights):
        network = scale_and_shift(network)
    try:
        network.load_state_dict(
            {part: value.float() if value.is_floating_point() else value for part, value in weights.items()}
        )
    except RuntimeError as error:
        raise CheckpointError(f"The weights of {shown} do not fit a {name}: {misfit(error)}") from None
    folded = fold_batchnorm(network)
    settings: dict[str, Any] = {"name": name, "width": chosen.width, "image_size": pixels}
    if chosen.levelled:
        settings["levelled"] = True
    return FeatureExtractor(folded, steps, channels, BackboneOrigin("run", name, weights_digest(folded), settings))


def _network(chosen: BackboneSettings, channels: int, pixels: int) -> Backbone:
    return build_backbone(chosen.but(pretrained=None), channels, pixels)


def _weights_of_run(run: Path, chosen: BackboneSettings) -> dict[str, Tensor]:
    checkpoints = Checkpoints(run)
    found = checkpoints.weights("best" if checkpoints.has("best") else "last")
    inside = {name.partition(INSIDE)[2]: value for name, value in found.items() if INSIDE in name}
    if inside:
        return inside
    if chosen.pretrained is None:
        raise CheckpointError(f"There is no backbone in {run}; give a run of `e3bm pretrain`.")
    if not chosen.pretrained.exists():
        raise CheckpointError(f"The run {run} used the backbone of {chosen.pretrained}, which is not there any more.")
    # A frozen backbone stands beside the learner, where it was pre-trained.
    return _weights_of_run(chosen.pretrained, chosen) if chosen.pretrained.is_dir() else read_weights(chosen.pretrained)


def _channels(weights: dict[str, Tensor]) -> int:
    # Only the first convolution has as few inputs as an image has channels.
    return min((int(value.shape[1]) for value in weights.values() if value.ndim == 4 and value.shape[2] > 1), default=3)


def _own_size(data: DataSettings) -> int:
    """The data set's own image size, from the prepared data or from what is published about it."""
    try:
        return open_dataset(data.dataset, data.folder).image_shape[0]
    except E3BMError:
        sources = registered_sources()
        if data.dataset in sources:
            return sources[data.dataset]().card.image_size
        raise


def _evaluation(data: DataSettings, size: int) -> Pipeline:
    steps, _, normalisation = str(RECIPES[data.recipe](size).evaluate).rpartition("normalise ")
    return Pipeline.parse(f"{steps}normalise {data.normalisation or normalisation}")
