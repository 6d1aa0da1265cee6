"""Networks of torch that turn photos into features: a run of e3bm, a weights file, a hub model, or any module.

networks/choice.py decides which one is meant, and knows the packaged ones, which need no torch. Hub models need the
extra `transformers`. They were tried with version 5.22 on small untrained DINOv2, ResNet and CLIP models in local
folders; no model was fetched.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones import Backbone, fold_batchnorm, scale_and_shift
from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.pixels.recipes import RECIPES
from e3bm.data.source import open_dataset, registered_sources
from e3bm.errors import CheckpointError, E3BMError, SettingsError, install_command
from e3bm.fewshot.extractor import BackboneOrigin, FeatureExtractor, PhotoPipeline, parse_pipeline
from e3bm.fewshot.networks.choice import HUB
from e3bm.json_files import parse_json
from e3bm.runs.assembly import build_backbone, weights_digest
from e3bm.runs.folder.checkpoint import misfit
from e3bm.runs.folder.relatives import backbone_weights, find_backbone, tested_weights
from e3bm.runs.folder.run import Run
from e3bm.runs.folder.tensor_files import read_tensor_file
from e3bm.runs.folder.upgrade import upgraded_backbone
from e3bm.runs.kept.store import open_run
from e3bm.runs.settings import BackboneSettings, DataSettings, PretrainSettings, TrainSettings
from e3bm.settings import read_settings

INSIDE = "backbone."
"""What the names of a backbone's weights begin with, in a checkpoint of a learner and in a model file."""
TIMM_CROP = 0.875
"""The share of a scaled image that timm keeps where a model does not state one."""


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
    return FeatureExtractor(network, _one_pipeline(pipeline), channels, origin)


def run_extractor(path: Path, pipeline: str | None = None) -> FeatureExtractor:
    """The backbone of a run of `e3bm pretrain` or `e3bm train`, with the preprocessing of its validation images."""
    run = open_run(path)
    if not isinstance(run.settings, PretrainSettings | TrainSettings):
        raise SettingsError(f"{path} is a run of kind {run.kind}, which has no backbone; use a run of `e3bm pretrain`.")
    chosen, data = run.settings.backbone, run.settings.data
    if chosen.batchnorm in ("batch", "per_step"):
        raise SettingsError(
            f"The backbone of {path} was trained with the statistics of each batch and has no running statistics; use "
            f"a run of `e3bm pretrain`."
        )
    weights = _weights_of_run(run, chosen)
    # Runs of former versions did not note the shape of their input.
    size = run.input_shape.image_size if run.input_shape else data.image_size or _own_size(data)
    steps = _evaluation_pipeline(data, size) if pipeline is None else _one_pipeline(pipeline)
    pixels = steps.output_shape((size, size, 3 if len(steps.normalisation.mean) == 3 else _channels(weights)))[1]
    return _extractor(chosen, pixels, weights, steps, str(path))


def weights_file_extractor(path: Path, pipeline: str | None) -> FeatureExtractor:
    """The backbone of a file that `e3bm import-weights` wrote."""
    about, weights = read_tensor_file(path)
    if about.get("kind") != "backbone":
        raise CheckpointError(
            f"{path} does not say which backbone it is for; give a run folder, or a file of `e3bm import-weights`."
        )
    if pipeline is None:
        raise SettingsError(
            f"{path} does not say how its images are preprocessed; pass that too, for example "
            "pipeline='resize 92, centre_crop 84, normalise imagenet'."
        )
    steps = _one_pipeline(pipeline)
    pixels = steps.output_shape((256, 256, _channels(weights)))[1]
    chosen = read_settings(BackboneSettings, {"name": about.get("backbone"), "width": about.get("width")})
    return _extractor(chosen, pixels, weights, steps, str(path))


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
    if chosen.whitened:
        settings["whitened"] = True
    return FeatureExtractor(folded, steps, channels, BackboneOrigin("run", name, weights_digest(folded), settings))


def _one_pipeline(text: str) -> Pipeline:
    """The preprocessing for one network."""
    found = parse_pipeline(text)
    if not isinstance(found, Pipeline):
        raise SettingsError(f"One network has one preprocessing; found several in '{text}'.")
    return found


def _network(chosen: BackboneSettings, channels: int, pixels: int) -> Backbone:
    return build_backbone(chosen.but(pretrained=None), channels, pixels)


def _weights_of_run(run: Run, chosen: BackboneSettings) -> dict[str, Tensor]:
    found = tested_weights(run.path, None)
    inside = {name.partition(INSIDE)[2]: value for name, value in found.items() if INSIDE in name}
    if inside:
        return inside
    if chosen.pretrained is None:
        raise CheckpointError(f"There is no backbone in {run.path}; give a run of `e3bm pretrain`.")
    # A frozen backbone is not in the learner's checkpoint but where it was pre-trained.
    return backbone_weights(find_backbone(run, chosen.pretrained))


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


def _evaluation_pipeline(data: DataSettings, size: int) -> Pipeline:
    steps, _, normalisation = str(RECIPES[data.recipe](size).evaluate).rpartition("normalise ")
    return Pipeline.parse(f"{steps}normalise {data.normalisation or normalisation}")


class HubNetwork(nn.Module):
    """A vision model whose output is one vector an image; it takes pixels from 0 to 1 and normalises them itself."""

    def __init__(self, model: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.model = model
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        found: Any = self.model(pixel_values=(images - self.mean) / self.std)
        pooled: Tensor | None = found.get("pooler_output")
        if pooled is None:
            hidden: Tensor = found["last_hidden_state"]
            # Tokens: the first one stands for the image; maps: their mean does.
            pooled = hidden[:, 0] if hidden.ndim == 3 else hidden.mean((2, 3))
        return pooled.flatten(1)


def hub_extractor(name: str, pipeline: str | None = None, *, only_stored: bool = False) -> FeatureExtractor:
    """A hub model by name or folder, with the preprocessing that it states; ``only_stored`` fetches nothing."""
    try:
        import transformers
    except ImportError:
        raise SettingsError(
            f"The backbone '{HUB}{name}' needs the transformers library, which is not installed; "
            f"run: {install_command('transformers')} (or leave the backbone out for EfficientNet-Lite0)."
        ) from None
    try:
        # Neither code of a stranger nor pickles: weights come as safetensors or not at all.
        model = transformers.AutoModel.from_pretrained(
            name, local_files_only=only_stored, use_safetensors=True, trust_remote_code=False
        )
        of_timm = getattr(getattr(model, "config", None), "pretrained_cfg", None)
        if of_timm:
            stated = _timm_preprocessing(of_timm)
        else:
            place = transformers.utils.cached_file(name, "preprocessor_config.json", local_files_only=only_stored)
            stated = dict(parse_json(Path(place).read_bytes()))
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingsError(f"The model '{name}' cannot be loaded by transformers: {first}") from None
    # CLIP and its like have a part for text, too.
    model = getattr(model, "vision_model", model)
    mean, std = stated.get("image_mean", [0.5] * 3), stated.get("image_std", [0.5] * 3)
    network = HubNetwork(model, mean, std).eval().requires_grad_(False)
    steps = _stated_pipeline(stated) if pipeline is None else _one_pipeline(pipeline)
    origin = BackboneOrigin("transformers", name, weights_digest(network))
    return FeatureExtractor(network, steps, 3, origin)


def _timm_preprocessing(stated: dict[str, Any]) -> dict[str, Any]:
    """What a model of timm states about its images, in the words of the others."""
    crop = int(stated["input_size"][-1])
    return {
        "size": math.floor(crop / float(stated.get("crop_pct") or TIMM_CROP)),
        "crop_size": crop,
        "resample": 3 if stated.get("interpolation") == "bicubic" else 2,
        "image_mean": list(stated["mean"]),
        "image_std": list(stated["std"]),
    }


def _stated_pipeline(stated: dict[str, Any]) -> Pipeline:
    size, crop = _side(stated.get("size")) or 224, _side(stated.get("crop_size"))
    if not stated.get("do_center_crop", crop is not None) or crop is None:
        crop = size
    kind = "bicubic" if stated.get("resample") == 3 else "bilinear"
    return Pipeline.parse(f"resize {max(size, crop)} {kind}, centre_crop {crop}, normalise none")


def _side(size: object) -> int | None:
    if isinstance(size, dict):
        return next((int(size[key]) for key in ("shortest_edge", "height") if key in size), None)
    return int(size) if isinstance(size, int) else None


def rebuilt_run(
    origin: BackboneOrigin, channels: int, pipeline: PhotoPipeline, arrays: Mapping[str, np.ndarray]
) -> FeatureExtractor:
    """The backbone of a run whose folded weights a model file holds; they are the only memory it takes."""
    weights = {
        name.removeprefix(INSIDE): torch.tensor(value) for name, value in arrays.items() if name.startswith(INSIDE)
    }
    values = upgraded_backbone(origin.settings)
    known = {"name": values.get("name"), "width": values.get("width"), "whitened": values.get("whitened", False)}
    chosen = read_settings(BackboneSettings, known)
    size = read_settings(DataSettings, {"image_size": values.get("image_size")}).image_size or 0
    try:
        with torch.device("meta"):
            network = fold_batchnorm(_network(chosen, channels, size))
        expected = network.state_dict()
        other = [name for name in expected if name in weights and weights[name].dtype != expected[name].dtype]
        if other:
            raise CheckpointError(
                f"its weights '{other[0]}' are {weights[other[0]].dtype}, expected {expected[other[0]].dtype}"
            )
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"the weights inside do not fit a {chosen.name}: {misfit(error)}") from None
    network = network.to(memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload]
    return FeatureExtractor(network, pipeline, channels, origin)


def stored_hub_model(name: str, pipeline: str) -> FeatureExtractor:
    try:
        return hub_extractor(name, pipeline, only_stored=True)
    except E3BMError as error:
        raise CheckpointError(
            f"it needs the model '{name}', which is not downloaded just because a file names it ({error}) Pass it as "
            f"backbone='{HUB}{name}'"
        ) from None
