"""The records that the API sends and takes: they become JSON and the OpenAPI document."""

from dataclasses import MISSING, fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from e3bm.fewshot.prediction import COLUMNS, Prediction


class Record(BaseModel):
    """What all records share."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Problem(Record):
    """Why a request was not served."""

    error: str
    """One sentence."""


class Health(Record):
    """Whether the server works."""

    status: str = "ok"
    fitted: bool
    """Whether there is a classifier to ask."""


class NewClass(Record):
    """A class to create."""

    name: str = Field(max_length=200)


class ClassState(Record):
    """A class and the numbers of its photos."""

    id: int
    name: str
    photos: tuple[int, ...]
    pictures: tuple[int, ...]
    """Those of the photos that the server has a small picture of."""


class ChosenViews(Record):
    """How photos are seen from now on."""

    views: Literal[1, 2]
    """1: as they are; 2: the mean of each photo and its mirror image, which takes twice the time."""


class MovedPhoto(Record):
    """Where a photo belongs."""

    to: int
    """The number of the class."""


class AddedPhotos(Record):
    """Photos that were read."""

    photos: tuple[int, ...]
    """Their numbers, in the order in which they were sent."""


class Doubt(Record):
    """A labelled photo that the others contradict."""

    photo: int
    looks_like: str
    odds: float
    """How many times likelier the other class is."""


class ModelState(Record):
    """The last fit."""

    classes: tuple[str, ...]
    rates: tuple[float, ...]
    """alpha_m of every epoch."""
    votes: tuple[float, ...]
    """v_m of every epoch."""
    left_out_accuracy: float | None
    """Share of photos that a fit without them predicts right; null with one photo a class."""
    expected_accuracy: float | None
    """The share of new photos that it should predict right; null where a class has one photo only."""
    doubts: tuple[Doubt, ...]
    fresh: bool
    """False when photos were added or moved since."""
    version: int
    """Which fit this is: answers with another number are from an earlier one."""


class FitState(Record):
    """A fit that is being made, or was."""

    id: int
    state: str
    """running, done, failed or cancelled."""
    stage: str
    """What is being done at the moment."""
    done: int
    total: int
    """How much of the stage is done, and of how much; 0 where that is not known."""
    error: str | None
    """Why it failed, in one sentence."""
    model: ModelState | None
    """What it gave, once it is done."""


class Limits(Record):
    """What the server takes."""

    upload_bytes: int
    model_bytes: int
    images: int
    pixels: int
    pixels_together: int
    photos: int
    classes: int


class WorkspaceState(Record):
    """Everything but the features."""

    token: str
    """Changes with every start of the server; numbers of photos mean nothing across starts."""
    backbone: str
    views: int
    """1: photos are seen as they are; 2: averaged with their mirror images."""
    together: bool
    """Whether photos can be used together."""
    unchangeable: str | None
    """Why classes cannot be changed, in one sentence; null where they can."""
    classes: tuple[ClassState, ...]
    model: ModelState | None
    fitting: bool
    """Whether a fit is being made."""
    pictures: bool
    """Whether the server has small pictures of photos that were added."""
    no_pictures: str | None
    """Why some photos have no small picture, in one sentence; null where all have one."""
    limits: Limits


class Influence(Record):
    """How much a photo of the classes speaks for or against a prediction."""

    photo: int
    class_name: str
    weight: float
    """Above 0 for, below 0 against."""


class _NamedPhoto(Record):
    """A photo of a request."""

    name: str
    """The name of the file, as it was sent."""


# The columns of a prediction are defined once, by e3bm.Prediction; those that have to be asked for may be null.
_COLUMNS: dict[str, Any] = {
    one.name: (one.type, Field(... if one.default is MISSING else None, description=COLUMNS[one.name].about))
    for one in fields(Prediction)
}
_PhotoColumns: Any = create_model("_PhotoColumns", __base__=_NamedPhoto, **_COLUMNS)


class PhotoPrediction(_PhotoColumns):
    """What is said of one photo."""

    influences: tuple[Influence, ...]
    """The photos that mattered most, the most important first."""
    picture: str | None = None
    """A small JPEG of the photo in base64, where `pictures` asked for it and the server may draw any."""


class PhotoProblem(_NamedPhoto):
    """Why nothing is said of one photo."""

    error: str
    """One sentence."""


class PredictionList(Record):
    """What is said of all photos of a request, in their order."""

    predictions: tuple[PhotoPrediction | PhotoProblem, ...]
    version: int
    """Which fit was asked."""
    together: bool
    """Whether the photos were used together; false, too, where they seem to show only one or a few of the classes."""
    note: str | None = None
    """Why prediction sets hold every class, or why photos were not used together although that was asked for."""
