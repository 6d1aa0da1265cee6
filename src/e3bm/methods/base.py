"""What methods are built from: the registry, the encoder they are given, and the shape of their episodes.

A method is one file of this package: a settings class that says its name, its options and what it needs, and a class
registered under that name which makes itself of those settings and of Parts.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from e3bm.backbones.encode import TaskEncoder
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import DirectMethod, InnerLoopMethod, Method
from e3bm.errors import DataError, SettingsError
from e3bm.registry import Registry
from e3bm.settings import InnerLoopSettings, MethodSettings, Needs

DEFAULT_METHOD = "mtl"


@runtime_checkable
class Encoder(Protocol):
    """From images of T tasks to features, one task independent of the others; masked examples are padding."""

    feature_size: int

    def __call__(
        self, examples: Float[Tensor, "T N *shape"], mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N *features"]: ...


@dataclass(frozen=True)
class Parts:
    """What a method is built from: an encoder, the network inside it where it is trained, and the episodes' shape."""

    encoder: Encoder
    backbone: nn.Module | None
    feature_size: int
    feature_positions: int = 1  # features are channels x positions
    ways: int = 5
    shots: int | tuple[int, int] = 1
    queries: int = 15
    classes: int = 0  # of the training set
    batchnorm: str = "running"  # whose statistics a trained backbone uses
    map_shape: tuple[int, int, int] | None = None  # channels, height, width, for methods that take maps


@runtime_checkable
class ChangesLastStages(Protocol):
    """A method that takes images and changes only the last stages of its network from task to task."""

    def unconditioned_stages(self) -> int:
        """How many stages see every image alike in any task; 0 where none does."""
        ...


# Classes with an attribute `settings`, their settings class, and a class method `from_settings(settings, parts)`.
METHODS: Registry[type[Any]] = Registry("methods")


class ReadyFeatures(nn.Module):
    """The encoder of examples that are features already: frozen backbones whose features were computed once."""

    def __init__(self, feature_size: int) -> None:
        super().__init__()
        self.feature_size = feature_size

    def forward(
        self, examples: Float[Tensor, "T N *shape"], mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N D"]:
        if examples.ndim != 3 or examples.shape[-1] != self.feature_size:
            raise DataError(
                f"This model takes features [tasks, examples, {self.feature_size}]; found {tuple(examples.shape)}."
            )
        return examples


class ReadyMaps(nn.Module):
    """The encoder of examples that are feature maps already."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape
        self.feature_size = shape[0]

    def forward(
        self, examples: Float[Tensor, "T N *shape"], mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N C H W"]:
        if examples.shape[2:] != self.shape:
            raise DataError(
                f"This model takes feature maps [tasks, examples, {', '.join(map(str, self.shape))}]; "
                f"found {tuple(examples.shape)}."
            )
        return examples


def check_ways(expected: int, found: int, why: str) -> None:
    """Refuse tasks with another number of classes than a model's parameters are made for."""
    if expected != found:
        raise SettingsError(f"This model is made for {expected} ways because of its {why}, but the tasks have {found}.")


def check_memory(needed: int, what: str, advice: str, *, at_a_time: str = "") -> None:
    """Refuse what needs more bytes than half of the machine's memory has; ``what`` begins the sentence, in the plural.

    Before anything of it is made: a system that has no memory left ends programs without a word.
    """
    if sys.platform == "win32":
        return  # which does not say how much it has
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > machine / 2:
        raise SettingsError(
            f"{what} need {_gigabytes(needed)}{at_a_time}, more than half of this machine's {_gigabytes(machine)}; "
            f"{advice}."
        )


def _gigabytes(size: int) -> str:
    """A number of bytes that can be read at a glance."""
    found = size / 1e9
    return f"{found:,.1f} GB" if found < 1000 else f"{found:,.0f} GB" if found < 1e6 else "more than a million GB"


def image_encoder(title: str, parts: Parts) -> TaskEncoder:
    """The encoder as one whose network takes images; features that were computed once have none."""
    if not isinstance(parts.encoder, TaskEncoder):
        raise SettingsError(f"{title} passes images through its network; set backbone.adapt to full.")
    return parts.encoder


def training_classes(title: str, parts: Parts) -> int:
    """How many training classes there are, for methods that also learn to tell all of them apart."""
    if parts.classes < 2:
        raise SettingsError(
            f"{title} also learns to tell the training classes apart and needs two or more of them; found "
            f"{parts.classes}. Build it with the number of classes of the training set."
        )
    return parts.classes


def class_numbers(title: str, batch: TaskBatch, classes: int) -> tuple[Int[Tensor, "T S"], Int[Tensor, "T Q"]]:
    """The numbers of the examples' and the queries' classes in the training set, which has ``classes`` of them."""
    if batch.support_classes is None or batch.query_classes is None:
        raise DataError(
            f"{title} also learns to tell the training classes apart, and this batch does not say which they are; "
            "give its support_classes and query_classes."
        )
    largest = max(int(batch.support_classes.max()), int(batch.query_classes.max()))
    if largest >= classes:
        raise DataError(
            f"{title} was built for {classes} training classes, numbered from 0; this batch has the number {largest}. "
            "Train it on the classes that it was built for."
        )
    return batch.support_classes, batch.query_classes


__all__ = [
    "DEFAULT_METHOD",
    "METHODS",
    "DirectMethod",
    "Encoder",
    "InnerLoopMethod",
    "InnerLoopSettings",
    "Method",
    "MethodSettings",
    "Needs",
    "Parts",
    "ReadyFeatures",
    "ReadyMaps",
    "check_memory",
    "check_ways",
    "class_numbers",
    "image_encoder",
    "training_classes",
]
