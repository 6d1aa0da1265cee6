"""The parts of a model file, checked as they are put together again."""

import math
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from e3bm.errors import CheckpointError
from e3bm.fewshot.adapted import AdaptedHead
from e3bm.fewshot.classifier import FitOptions, FittedClassifier
from e3bm.fewshot.support_set import Shots, SupportSet, numbered
from e3bm.fewshot.suspicion import Suspicion
from e3bm.fewshot.trust_prior import TrustPrior

KEPT_SCALARS = ("temperature", "threshold", "left_out_accuracy", "counts")
SHAPES = {
    "centre": "D", "factor": "", "weight": "WD", "bias": "W", "means": "WD", "epoch_weight": "MWD",
    "epoch_bias": "MW", "rates": "M", "votes": "M", "losses": "M", "facts": "F",
}  # fmt: skip


def classifier_of(about: dict[str, Any], tensors: dict[str, Tensor], ways: int) -> FittedClassifier:
    """The head and its numbers of trust."""
    options = FitOptions(**about["options"])
    head = head_of(tensors, ways, unit_length=options.unit_length)
    trust = TrustPrior.from_json(about["trust"])
    counts = tuple(int(count) for count in about["counts"])
    if len(counts) != ways or min(counts) < 1:
        raise CheckpointError(f"it has {ways} classes and {len(counts)} numbers of photos")
    temperature, threshold = float(about["temperature"]), float(about["threshold"])
    if not (math.isfinite(threshold) and math.isfinite(temperature) and temperature > 0):
        raise CheckpointError(f"its temperature {temperature} or threshold {threshold} is no usable number")
    accuracy = about["left_out_accuracy"]
    suspicions = tuple(
        Suspicion(int(one["position"]), int(one["label"]), int(one["looks_like"]), float(one["odds"]))
        for one in about["suspicions"]
    )
    for one in suspicions:
        if not (0 <= one.position < sum(counts) and 0 <= one.label < ways and 0 <= one.looks_like < ways):
            raise CheckpointError("it doubts a photo that it does not have")
    classifier = FittedClassifier(
        head=head,
        trust=trust,
        temperature=temperature,
        threshold=threshold,
        misfits=_finite("misfits", tensors["misfits"]).double().view(-1).numpy(),
        left_out_accuracy=None if accuracy is None else float(accuracy),
        suspicions=suspicions,
        options=options,
        counts=counts,
    )
    # Whatever else does not fit shows here and not in front of a user's photo.
    classifier.predict(np.zeros((1, head.feature_size), dtype=np.float32))
    return classifier


def head_of(tensors: dict[str, Tensor], ways: int, *, unit_length: bool) -> AdaptedHead:
    """The collapsed head; every tensor has the shape that the others imply."""
    sizes = {"W": ways}
    values: dict[str, Any] = {"unit_length": unit_length}
    for field in fields(AdaptedHead):
        if field.name not in SHAPES:
            continue
        value = _finite(field.name, tensors[f"head.{field.name}"])
        expected = SHAPES[field.name]
        found = tuple(value.shape)
        wanted = tuple(sizes.setdefault(letter, size) for letter, size in zip(expected, found, strict=False))
        if len(found) != len(expected) or found != wanted:
            raise CheckpointError(f"its tensor '{field.name}' has shape {found}, which does not fit the others")
        values[field.name] = value
    if len({value.dtype for value in values.values() if isinstance(value, Tensor)}) != 1:
        raise CheckpointError("its head mixes precisions")
    return AdaptedHead(**values)


def support_of(classes: tuple[str, ...], counts: tuple[int, ...], tensors: dict[str, Tensor]) -> SupportSet | None:
    """The labelled features, class by class; None where they were dropped."""
    if "support.features" not in tensors:
        return None
    features = _finite("support.features", tensors["support.features"])
    if features.dtype != torch.float32 or tuple(features.shape) != (sum(counts), len(tensors["head.centre"])):
        raise CheckpointError(f"its support features have shape {tuple(features.shape)}, which does not fit the head")
    parts = np.split(features.numpy(), np.cumsum(counts)[:-1])
    support = SupportSet.of(
        {name: Shots(part, numbered(name, len(part))) for name, part in zip(classes, parts, strict=True)}
    )
    if support.classes != classes:
        raise CheckpointError("its classes are not in order")
    return support


def _finite(name: str, value: Tensor) -> Tensor:
    if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
        raise CheckpointError(f"its tensor '{name}' holds what is no finite number")
    return value
