"""From settings to a model: the one place where backbone, method and hyperprior meet."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from e3bm.backbones import Backbone, WhitenedBackbone, build, fold_batchnorm, scale_and_shift
from e3bm.backbones.encode import EarlierStages, MapEncoder, StagedEncoder, TaskEncoder
from e3bm.backbones.normalisation import batchnorm_mode
from e3bm.core.context import ClassMean, Context, Flat, Rms, Stats, Summary
from e3bm.core.familiarity import Familiarity
from e3bm.core.hyperprior import FcGenerator, Generator, Hyperprior, LstmGenerator
from e3bm.core.learner import DirectLearner, Learner, MetaLearner
from e3bm.core.schedules import (
    Constant,
    Equal,
    Frozen,
    Generated,
    LastOnly,
    Learned,
    Schedule,
    equal_values,
    last_values,
)
from e3bm.errors import E3BMError, SettingsError
from e3bm.methods import METHODS, DirectMethod, Encoder, InnerLoopMethod, Parts, ReadyFeatures, ReadyMaps
from e3bm.methods.base import ChangesLastStages
from e3bm.runs.folder.checkpoint import Which, misfit
from e3bm.runs.folder.relatives import backbone_weights, has_weights
from e3bm.runs.folder.run import finite
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.kept.store import open_run
from e3bm.runs.settings import BackboneSettings, HyperpriorSettings, PretrainSettings, TrainSettings
from e3bm.settings import InnerLoopSettings

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}

LONGEST_ROW = 16_384  # numbers that are kept of an image: 0.8 GB for the 12,000 images of a split


def build_backbone(settings: BackboneSettings, channels: int, image_size: int) -> Backbone:
    """The backbone, with pre-trained weights where the settings name some."""
    backbone = build(settings.name, width=settings.width, channels=channels, image_size=image_size)
    if settings.whitened:
        backbone = WhitenedBackbone(backbone)
    if settings.pretrained is not None:
        try:
            load_backbone(backbone, settings.pretrained)
        except SettingsError:
            differing = _what_differs(settings, channels, settings.pretrained)
            if not differing:
                raise
            raise SettingsError(differing) from None
    return backbone


def load_backbone(backbone: Backbone, source: Path, which: Which | None = None) -> None:
    """Weights from a run of `e3bm pretrain`, in its folder or kept in results, or from a weights file."""
    if not has_weights(source):
        raise SettingsError(
            f"backbone.pretrained: there is no run folder or weights file {source}; make one with `e3bm pretrain --run "
            f"{source}`."
        )
    weights = backbone_weights(source, which)
    try:
        backbone.load_state_dict({name: value.float() for name, value in weights.items()})
    except RuntimeError as error:
        raise SettingsError(f"The weights of {source} do not fit this backbone: {misfit(error)}") from None


def _what_differs(wanted: BackboneSettings, channels: int, source: Path) -> str:
    """Which setting of a pre-training is another one than here, in a sentence; empty where that cannot be told."""
    try:
        run = open_run(source)
    except E3BMError:
        return ""
    if not isinstance(run.settings, PretrainSettings):
        return ""
    made = run.settings.backbone
    for name in ("name", "width", "whitened"):
        own, here = getattr(made, name), getattr(wanted, name)
        if own != here:
            flag = f"--backbone.{name} {own}" if name != "whitened" else f"--backbone.{'' if own else 'no-'}whitened"
            return (
                f"The pre-trained backbone of {source} is {made.title}, but this run asks for {wanted.title}: the "
                f"setting backbone.{name} differs; use {flag}, or pre-train another backbone."
            )
    if run.input_shape and run.input_shape.channels != channels:
        return (
            f"The pre-trained backbone of {source} was trained on images with {run.input_shape.channels} colour "
            f"channels, but the images here have {channels}; pre-train a backbone on data of the same kind."
        )
    return ""


def weights_digest(module: nn.Module) -> str:
    """A name for exactly these weights; `relatives.digest_of_weights` gives the same for a float32 model's file."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def build_learner(settings: TrainSettings, backbone: Backbone, *, classes: int = 0, image_size: int = 84) -> Learner:
    """The model that meta-training trains; with a frozen backbone it takes features, not images.

    ``classes`` is the number of classes of the training set; ``image_size`` decides the size of maps.
    """
    encoder: Encoder
    inner: Backbone | None = None
    torch.manual_seed(settings.seed)
    adapt, needs = settings.backbone.adapt, settings.method.needs
    if adapt != "full" and settings.backbone.pretrained is None:
        raise SettingsError(
            f"A backbone that is {adapt.replace('_', '-and-')} must have been trained: "
            "set backbone.pretrained to a run of `e3bm pretrain`, or backbone.adapt to full."
        )
    ready = ready_encoder(settings, backbone, image_size)
    map_shape = ready.shape if isinstance(ready, ReadyMaps) else None
    if adapt == "frozen":
        encoder = ready
    else:
        inner = scale_and_shift(backbone) if adapt == "scale_shift" else backbone
        batchnorm = "running" if settings.backbone.batchnorm == "per_step" else settings.backbone.batchnorm
        autocast = torch.bfloat16 if settings.machine.precision == "bfloat16" else None
        if map_shape is None:
            encoder = TaskEncoder(inner, batchnorm, autocast=autocast)
        else:
            encoder = MapEncoder(inner, batchnorm, autocast=autocast, last_pooling=needs.last_pooling)
    episode = settings.episode
    parts = Parts(
        encoder,
        inner,
        backbone.feature_size,
        backbone.feature_positions,
        ways=episode.ways,
        shots=episode.shots,
        queries=episode.queries,
        classes=classes,
        batchnorm=settings.backbone.batchnorm,
        map_shape=map_shape,
    )
    method = METHODS[settings.method.name].from_settings(settings.method, parts)
    learner: Learner
    if isinstance(method, InnerLoopMethod):
        assert settings.inner is not None
        hyperprior = build_hyperprior(settings.inner, settings.hyperprior, parts)
        learner = MetaLearner(method, hyperprior, settings.inner.epochs, kl=settings.hyperprior.kl)
    else:
        assert isinstance(method, DirectMethod)
        learner = DirectLearner(method)
    return learner.to(DTYPES[settings.machine.precision])


def ready_encoder(settings: TrainSettings, backbone: Backbone, image_size: int) -> ReadyFeatures | ReadyMaps:
    """The encoder of what the backbone gave before: features, or maps where the method takes them."""
    needs = settings.method.needs
    if needs.takes != "maps":
        return ReadyFeatures(backbone.feature_size)
    with torch.no_grad(), batchnorm_mode(backbone, "running"):
        image = next(backbone.parameters()).new_zeros(1, backbone.channels, image_size, image_size)
        channels, height, width = backbone.maps(image, last_pooling=needs.last_pooling).shape[1:]
    return ReadyMaps((channels, height, width))


def take_what_is_kept(settings: TrainSettings, learner: Learner, image_size: int) -> Backbone | None:
    """Let a learner, for tests only, take what an image gives once and for all instead of the image.

    The result is the network that gives it: with running statistics an image has the same features in every episode.
    None where it has not.
    """
    if settings.backbone.adapt == "frozen" or settings.backbone.batchnorm not in ("running", "batch_then_running"):
        return None
    method = learner.get_submodule("method")
    if settings.method.needs.takes != "images":
        backbone = learner.get_submodule("method.encoder.backbone")
        assert isinstance(backbone, Backbone)
        backbone = backbone.to(DTYPES[settings.machine.precision])
        learner.set_submodule("method.encoder", ready_encoder(settings, backbone, image_size))
        return backbone
    count = method.unconditioned_stages() if isinstance(method, ChangesLastStages) else 0
    if not count:
        return None
    encoder = learner.get_submodule("method.encoder")
    assert isinstance(encoder, TaskEncoder)
    earlier = EarlierStages.of(fold_batchnorm(encoder.whole), count, image_size)
    if earlier.feature_size > LONGEST_ROW:
        return None
    learner.set_submodule("method.encoder", StagedEncoder(earlier))
    return earlier


def build_hyperprior(method: InnerLoopSettings, settings: HyperpriorSettings, parts: Parts) -> Hyperprior:
    """The schedules of alpha and v and, where one is generated, their generator."""
    epochs = method.epochs
    start = equal_values(epochs) if settings.weight_start == "equal" else last_values(epochs)
    rates: dict[str, Schedule] = {
        "constant": Constant(method.rate),
        "learned": Learned([method.rate] * epochs),
        "generated": Generated([method.rate] * epochs),
    }
    weights: dict[str, Schedule] = {
        "last": LastOnly(),
        "equal": Equal(),
        "learned": Learned(start),
        "generated": Generated(start),
    }
    if settings.frozen_from is not None:
        learned = _learned_values(settings.frozen_from)
        rates["frozen"], weights["frozen"] = Frozen(learned[0]), Frozen(learned[1])
    return Hyperprior(
        rates[settings.rate],
        weights[settings.weight],
        build_generator(settings, epochs, parts) if settings.generated else None,
        mixing=settings.mixing,
        fractions=(settings.mixing_fraction, settings.mixing_fraction),
        constrained=settings.constrained,
        familiarity=Familiarity(Stats(settings.setting == "transductive").seen, [method.rate] * epochs, start)
        if settings.familiar
        else None,
    )


def build_generator(settings: HyperpriorSettings, epochs: int, parts: Parts) -> Generator:
    """The network from context to differences."""
    transductive = settings.setting == "transductive"
    summaries: dict[str, Summary] = {
        "stats": Stats(transductive),
        "class_mean": ClassMean(parts.feature_size),
        "flat": Flat(parts.feature_size, parts.ways),
        "rms": Rms(parts.feature_size, parts.feature_positions),
    }
    context = Context(
        summaries[settings.summary],
        embedding=parts.feature_size // parts.feature_positions if settings.embedding else 0,
        transductive=transductive,
        detach=settings.detach,
    )
    outputs = (settings.rate, settings.weight).count("generated")
    if settings.generator == "fc":
        return FcGenerator(context, epochs, outputs, zero_start=settings.mixing in ("scaled", "shifted"))
    return LstmGenerator(
        context, outputs, hidden=settings.hidden, readout=settings.readout, separate=settings.separate and outputs == 2
    )


def _learned_values(run: Path) -> tuple[list[float], list[float]]:
    """Base values of alpha and v as another run ended with."""
    lines = list(RunFolder(run).lines("schedules"))
    found: list[Any] = [lines[-1].get(name) for name in ("base_rates", "base_weights")] if lines else []
    if not found or not all(isinstance(values, list) and finite(*values) for values in found):
        raise SettingsError(f"{run} has no learned rates and weights; train it first.")
    return found[0], found[1]
