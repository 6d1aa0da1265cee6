"""Uploaded photos to features, and to predictions with the photos that mattered: this runs in a work process."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from e3bm.data.read.decode import TooManyPixelsError, decoded_pixels, image_size, miniature
from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.extractor import FeatureExtractor
from e3bm.fewshot.fitted_head import check_coverage, check_recall
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.prediction import Prediction
from e3bm.fewshot.prior.shipped import prior_digest
from e3bm.fewshot.support_set import PICTURE_SIDE
from e3bm.serving.exchange import RequestError, Upload

MOST_INFLUENCES = 12
MOST_EXPLAINED = 500  # photos of all classes; with more, finding their parts takes longer than the prediction itself


@dataclass(frozen=True)
class PixelLimits:
    """How many pixels a photo may have, and all photos of a request together."""

    one: int
    together: int


@dataclass(frozen=True)
class Mattered:
    """A photo of the classes, and how much it speaks for a prediction or, below 0, against it."""

    photo: int
    class_name: str
    weight: float


@dataclass(frozen=True)
class Answer:
    """What is said of one photo of a request, or why nothing is."""

    name: str
    found: Prediction | DataError | RequestError
    mattered: tuple[Mattered, ...] = ()
    picture: bytes = b""
    """A small JPEG of the photo, where it was asked for."""


@dataclass(frozen=True)
class Answers:
    """What is said of the photos of a request, in their order."""

    each: tuple[Answer, ...]
    separate: str | None = None
    """Why photos that were to be used together were not, in one sentence."""


@dataclass(frozen=True)
class HowToPredict:
    """What a request asks for beside the photos themselves."""

    together: bool = False
    """Whether the photos help one another."""
    coverage: float | None = None
    """Of prediction sets; None for no sets."""
    recall: float | None = None
    """Of photos of the classes; None for that of the fit."""
    pictures: bool = False
    """Whether a small picture goes with every answer."""

    def __post_init__(self) -> None:
        if self.together and self.coverage is not None:
            raise RequestError(422, "Prediction sets (coverage) are for photos that are looked at alone, not together.")
        try:
            if self.coverage is not None:
                check_coverage(self.coverage)
            if self.recall is not None:
                check_recall(self.recall)
        except SettingsError as error:
            raise RequestError(422, str(error)) from None


@dataclass(frozen=True, eq=False)
class Asked:
    """The fit that is asked, and the photos it was fitted to, in the order of its support set."""

    fitted: FittedModel
    photos: tuple[tuple[int, str], ...]
    """The number of every photo and its class."""
    prior_path: Path | None

    def can_use_together(self) -> bool:
        """Whether the prior that the model was made with is here, and with it the part that uses many photos."""
        return not self.fitted.own_prior or prior_digest(self.prior_path) == self.fitted.prior_digest


def upload_features(extractor: FeatureExtractor, uploads: Sequence[Upload], limits: PixelLimits) -> list[np.ndarray]:
    """The features of every photo; the first that cannot be read refuses them all."""
    for problem in _pixel_problems(uploads, limits):
        if problem is not None:
            raise problem
    rows = []
    for upload in uploads:
        (row,) = extractor.features_or_errors([upload.content], [upload.name])
        if isinstance(row, DataError):
            raise row
        rows.append(row)
    return rows


def upload_rows(
    extractor: FeatureExtractor, uploads: Sequence[Upload], limits: PixelLimits
) -> list[np.ndarray | DataError | RequestError]:
    """The features of every photo, or what is wrong with it; where none can be read, the request is refused."""
    rows: list[np.ndarray | DataError | RequestError] = []
    for upload, problem in zip(uploads, _pixel_problems(uploads, limits), strict=True):
        rows.append(problem or next(iter(extractor.features_or_errors([upload.content], [upload.name]))))
    if isinstance(rows[0], Exception) and all(isinstance(row, Exception) for row in rows):
        raise rows[0]
    return rows


def photos_to_keep(
    extractor: FeatureExtractor, uploads: Sequence[Upload], limits: PixelLimits, pictures: bool
) -> tuple[list[np.ndarray], list[bytes]]:
    """The features of every photo, and a small picture of each where ``pictures`` are wanted."""
    rows = upload_features(extractor, uploads, limits)
    return rows, [miniature(upload.content, PICTURE_SIDE) if pictures else b"" for upload in uploads]


def with_redrawn_pictures(fitted: FittedModel) -> FittedModel:
    """The same fit with its small pictures drawn anew: nothing that others wrote is sent to a browser."""
    return fitted.with_pictures([_redrawn_picture(one) for one in fitted.pictures]) if fitted.pictures else fitted


def _redrawn_picture(content: bytes) -> bytes:
    if content and max(image_size(content)) > PICTURE_SIDE:
        raise DataError(
            f"The file has pictures of more than {PICTURE_SIDE} pixels a side, so they are not small pictures."
        )
    return miniature(content, PICTURE_SIDE) if content else b""


def predict_uploads(
    extractor: FeatureExtractor, asked: Asked, uploads: Sequence[Upload], limits: PixelLimits, how: HowToPredict
) -> Answers:
    """What the fitted classifier says of photos; together, those that can be read help one another."""
    if how.together and not asked.can_use_together():
        raise RequestError(409, "This model was made with another prior, without which photos cannot be used together.")
    rows = upload_rows(extractor, uploads, limits)
    read = np.stack([row for row in rows if isinstance(row, np.ndarray)])
    alone = asked.fitted.predict(read, how.coverage, how.recall)
    found = _predict_together(asked, read, how.recall) if how.together else alone
    answers = zip(read, found, alone, strict=True)

    def answer(upload: Upload, row: np.ndarray | DataError | RequestError) -> Answer:
        if isinstance(row, Exception):
            return Answer(upload.name, row)
        features, one, by_itself = next(answers)
        # Influences explain the label that a photo has alone; where it has another together, there are none.
        mattered = _influences(asked, features) if one.label == by_itself.label else ()
        picture = miniature(upload.content, PICTURE_SIDE) if how.pictures else b""
        return Answer(upload.name, one, mattered, picture)

    separate = asked.fitted.head.why_separate(read) if how.together else None
    return Answers(tuple(answer(upload, row) for upload, row in zip(uploads, rows, strict=True)), separate)


def _predict_together(asked: Asked, rows: np.ndarray, recall: float | None) -> list[Prediction]:
    from e3bm.fewshot.prior.file import load_prior  # and torch with it

    return asked.fitted.predict_together(rows, load_prior(asked.prior_path), recall)


def _influences(asked: Asked, row: np.ndarray) -> tuple[Mattered, ...]:
    """The photos that mattered most; none where there are too many, or where the model does not have them."""
    if not 0 < len(asked.photos) <= MOST_EXPLAINED:
        return ()
    numbers: dict[str, list[int]] = {}
    for number, name in asked.photos:
        numbers.setdefault(name, []).append(number)
    return tuple(
        Mattered(numbers[one.label][one.number], one.label, one.amount)
        for one in asked.fitted.influences(row)[:MOST_INFLUENCES]
    )


def _pixel_problems(uploads: Sequence[Upload], limits: PixelLimits) -> list[DataError | RequestError | None]:
    """What the headers of photos say against them, before anything is decoded; too much together refuses them all.

    Of a large JPEG those pixels count that are in memory while it is decoded at a part of its size.
    """
    problems: list[DataError | RequestError | None] = []
    total = 0
    for upload in uploads:
        try:
            pixels = decoded_pixels(upload.content)
        except DataError as error:
            sentence = f"{upload.name} cannot be used: {error}."
            too_large = isinstance(error, TooManyPixelsError)
            problems.append(RequestError(413, sentence) if too_large else DataError(sentence))
            continue
        if pixels > limits.one:
            too_many = f"it has {pixels:,} pixels, more than the limit of {limits.one:,} of this server"
            problems.append(RequestError(413, f"{upload.name} cannot be used: {too_many}."))
            continue
        problems.append(None)
        total += pixels
    if total > limits.together:
        raise RequestError(
            413,
            f"The photos have {total:,} pixels together; one request may have at most "
            f"{limits.together:,}: send some of them in another one.",
        )
    return problems
