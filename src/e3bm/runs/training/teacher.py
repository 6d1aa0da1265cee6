"""A larger backbone teaches a smaller one: the features of every training image are a second target beside its class.

The student predicts them by a linear map of its own features; what counts is the cosine, so that lengths are free. The
teacher sees each image as it is at test, the student as it is augmented: features are computed once.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from e3bm.backbones import Backbone
from e3bm.errors import SettingsError
from e3bm.progress import Progress
from e3bm.runs.assembly import build_backbone, weights_digest
from e3bm.runs.engine import Engine
from e3bm.runs.kept.store import open_run
from e3bm.runs.settings import PretrainSettings
from e3bm.runs.tasks import OpenData, feature_table, open_data


@dataclass(frozen=True)
class Lesson:
    """What a teacher says of every training image: features of length one, in the order of ``positions``."""

    features: Float[Tensor, "n D"]
    positions: Int64[np.ndarray, " n"]

    @property
    def feature_size(self) -> int:
        return self.features.shape[1]

    def of(self, positions: Int64[np.ndarray, " B"]) -> Float[Tensor, "B D"]:
        """The teacher's features of images at some positions of the data set."""
        return self.features[torch.from_numpy(np.searchsorted(self.positions, positions))]


@dataclass(frozen=True)
class Teacher:
    """A trained backbone with the images as it knows them."""

    backbone: Backbone
    data: OpenData

    @classmethod
    def of(cls, settings: PretrainSettings, data: OpenData) -> "Teacher":
        """The teacher that the settings name; it must have been trained on the same classes and no others."""
        assert settings.teacher is not None
        made = _pretraining(settings.teacher)
        if (made.data.dataset, made.data.rotations) != (settings.data.dataset, settings.data.rotations):
            raise SettingsError(
                f"teacher: {settings.teacher} was trained on {made.data.dataset}, this backbone is to be trained on "
                f"{settings.data.dataset}; name a teacher of the same data set."
            )
        if made.left_out != settings.left_out:
            raise SettingsError(
                f"teacher: {settings.teacher} was trained {_classes(made.left_out)}, this backbone is to be trained "
                f"{_classes(settings.left_out)}; name a teacher that knows exactly the same classes."
            )
        shown = open_data(made.data.but(folder=settings.data.folder))
        backbone = build_backbone(made.backbone.but(pretrained=settings.teacher), *shown.input_shape)
        return cls(backbone, replace(shown, images=data.images))

    @property
    def digest(self) -> str:
        """A name for exactly these weights."""
        return weights_digest(self.backbone)

    def lesson(self, progress: Progress, engine: Engine) -> Lesson:
        """Its features of all training images; every process has all of them."""
        classes = self.data.images.splits["train"]
        features, positions = feature_table(self.data, classes, self.backbone.to(engine.device), progress, engine)
        found = torch.from_numpy(np.array(features, np.float32))
        return Lesson(functional.normalize(found).to(engine.device), positions)


class Pupil(nn.Linear):
    """The linear map by which a student predicts the features of its teacher, and the lesson that says what they are.

    The lesson is no parameter or buffer: checkpoints have the map only.
    """

    def __init__(self, feature_size: int, lesson: Lesson) -> None:
        super().__init__(feature_size, lesson.feature_size)
        self.lesson = lesson

    def disagreement(self, features: Float[Tensor, "B F"], positions: Int64[np.ndarray, " B"]) -> Float[Tensor, ""]:
        """One minus the cosine between predicted features and those of the teacher, on average."""
        predicted = full_precision(self(features))
        return 1 - (functional.normalize(predicted) * self.lesson.of(positions)).sum(1).mean()


def full_precision(values: Tensor) -> Tensor:
    """What may have been computed in bfloat16 as float32, for losses; double stays double."""
    return values if values.dtype == torch.double else values.float()


def _pretraining(folder: Path) -> PretrainSettings:
    """The settings with which a teacher was trained."""
    found = open_run(folder).settings
    if not isinstance(found, PretrainSettings):
        raise SettingsError(f"teacher: {folder} is no run of `e3bm pretrain`; name one, such as runs/backbone.")
    return found


def _classes(left_out: tuple[int, int] | None) -> str:
    return "on all training classes" if left_out is None else f"without part {left_out[0]} of {left_out[1]} of them"
