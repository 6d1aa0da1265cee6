"""Vision models of the transformers library, by name, when it is installed.

The extra `transformers` brings the library. Tried with version 5.22 on small untrained DINOv2, ResNet and CLIP models
in local folders; no model was fetched.
"""

import json
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.assembly import weights_digest
from e3bm.data.pipeline import Pipeline
from e3bm.errors import SettingsError
from e3bm.fewshot.feature_extractor import BackboneOrigin, FeatureExtractor, deterministic

HUB = "transformers:"


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
    """A model by name or folder, with the preprocessing that it states; ``only_stored`` fetches nothing."""
    try:
        import transformers
    except ImportError:
        raise SettingsError(
            f"The backbone '{HUB}{name}' needs the transformers library, which is not installed; "
            "run: pip install 'e3bm[transformers]' (or leave the backbone out for EfficientNet-Lite0)."
        ) from None
    try:
        # Neither code of a stranger nor pickles: weights come as safetensors or not at all.
        model = transformers.AutoModel.from_pretrained(
            name, local_files_only=only_stored, use_safetensors=True, trust_remote_code=False
        )
        place = transformers.utils.cached_file(name, "preprocessor_config.json", local_files_only=only_stored)
        stated = json.loads(Path(place).read_bytes())
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingsError(f"The model '{name}' cannot be loaded by transformers: {first}") from None
    # CLIP and its like have a part for text, too.
    model = getattr(model, "vision_model", model)
    mean, std = stated.get("image_mean", [0.5] * 3), stated.get("image_std", [0.5] * 3)
    network = HubNetwork(model, mean, std).eval().requires_grad_(False)
    steps = _stated_pipeline(stated) if pipeline is None else deterministic(pipeline)
    origin = BackboneOrigin("transformers", name, weights_digest(network))
    return FeatureExtractor(network, steps, 3, origin)


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
