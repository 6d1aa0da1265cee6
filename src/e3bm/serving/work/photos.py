"""Uploaded photos to features, and to predictions with the photos that mattered: this runs in a work process."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from e3bm.data.read.decode import image_size
from e3bm.errors import DataError
from e3bm.fewshot.extractor import FeatureExtractor
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.prediction import Prediction
from e3bm.fewshot.prior.shipped import prior_digest
from e3bm.serving.errors import RequestError
from e3bm.serving.gate.forms import Upload
from e3bm.serving.schemas import Influence, PhotoPrediction
from e3bm.serving.settings import ServeSettings

MOST_INFLUENCES = 12
MOST_EXPLAINED = 500  # photos of all classes; with more, finding their parts takes longer than the prediction itself


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


def upload_features(
    extractor: FeatureExtractor, uploads: Sequence[Upload], settings: ServeSettings
) -> list[np.ndarray]:
    """The features of every photo; the first that cannot be read refuses them all."""
    _check_pixels(uploads, settings)
    rows = []
    for upload in uploads:
        (row,) = extractor.features_or_errors([upload.content], [upload.name])
        if isinstance(row, DataError):
            raise row
        rows.append(row)
    return rows


def predict_uploads(
    extractor: FeatureExtractor, asked: Asked, uploads: Sequence[Upload], settings: ServeSettings, together: bool
) -> tuple[PhotoPrediction, ...]:
    """What the fitted classifier says of photos; ``together`` lets them help one another."""
    if together and not asked.can_use_together():
        raise RequestError(
            409, "This model was made with a prior of its own; without it photos cannot be used together."
        )
    rows = np.stack(upload_features(extractor, uploads, settings))
    alone = asked.fitted.predict(rows)
    found = _predict_together(asked, rows) if together else alone
    return tuple(
        # Influences explain the label that a photo has alone; where it has another together, there are none.
        PhotoPrediction.of(upload.name, one, _influences(asked, row) if one.label == by_itself.label else ())
        for upload, row, one, by_itself in zip(uploads, rows, found, alone, strict=True)
    )


def _predict_together(asked: Asked, rows: np.ndarray) -> list[Prediction]:
    from e3bm.fewshot.prior.file import load_prior  # and torch with it

    return asked.fitted.predict_together(rows, load_prior(asked.prior_path))


def _influences(asked: Asked, row: np.ndarray) -> tuple[Influence, ...]:
    """The photos that mattered most; none where there are too many, or where the model does not have them."""
    if not 0 < len(asked.photos) <= MOST_EXPLAINED:
        return ()
    numbers: dict[str, list[int]] = {}
    for number, name in asked.photos:
        numbers.setdefault(name, []).append(number)
    return tuple(
        Influence(photo=numbers[one.label][one.number], class_name=one.label, weight=one.amount)
        for one in asked.fitted.influences(row)[:MOST_INFLUENCES]
    )


def _check_pixels(uploads: Sequence[Upload], settings: ServeSettings) -> None:
    """Refuse too many pixels, of one image or of all together, before anything is decoded."""
    total = 0
    for upload in uploads:
        try:
            width, height = image_size(upload.content)
        except DataError as error:
            raise DataError(f"{upload.name} cannot be used: {error}.") from None
        if width * height > settings.most_pixels:
            most = f"{settings.most_pixels:,} are the most that are read"
            raise RequestError(413, f"{upload.name} has {width * height:,} pixels; {most}.")
        total += width * height
    if total > settings.most_pixels_together:
        raise RequestError(
            413,
            f"The photos have {total:,} pixels together; {settings.most_pixels_together:,} are the most in one "
            "request: send some of them in another one.",
        )
