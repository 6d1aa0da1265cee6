"""Uploaded photos to features, and to predictions with the photos that mattered."""

from collections.abc import Sequence

import numpy as np

from e3bm.data.read.decode import image_size
from e3bm.errors import DataError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.errors import RequestError
from e3bm.serving.schemas import Influence, PhotoPrediction
from e3bm.serving.settings import ServeSettings
from e3bm.serving.uploads import Upload
from e3bm.serving.workspace import Fit

MOST_INFLUENCES = 12
MOST_EXPLAINED = 500  # photos of all classes; with more, finding their parts takes longer than the prediction itself


def upload_features(
    classifier: FewShotClassifier, uploads: Sequence[Upload], settings: ServeSettings
) -> list[np.ndarray]:
    """The features of every photo; the first that cannot be read refuses them all."""
    rows = []
    for upload in uploads:
        _check_pixels(upload, settings)
        (row,) = classifier.extractor.features_or_errors([upload.content], [upload.name])
        if isinstance(row, DataError):
            raise row
        rows.append(row)
    return rows


def predict_uploads(
    fit: Fit, uploads: Sequence[Upload], settings: ServeSettings, *, together: bool
) -> tuple[PhotoPrediction, ...]:
    """What the fitted classifier says of photos; ``together`` lets them help one another."""
    if together and not fit.can_use_together():
        raise RequestError(
            409, "This model was made with a prior of its own; without it photos cannot be used together."
        )
    rows = np.stack(upload_features(fit.classifier, uploads, settings))
    alone = fit.classifier.predict_features(rows)
    found = fit.classifier.predict_batch_features(rows) if together else alone
    return tuple(
        # Influences explain the label that a photo has alone; where it has another together, there are none.
        PhotoPrediction.of(upload.name, one, _influences(fit, row) if one.label == by_itself.label else ())
        for upload, row, one, by_itself in zip(uploads, rows, found, alone, strict=True)
    )


def _influences(fit: Fit, row: np.ndarray) -> tuple[Influence, ...]:
    """The photos that mattered most; none where there are too many, or where the model does not have them."""
    if not 0 < len(fit.photos) <= MOST_EXPLAINED:
        return ()
    found = fit.classifier.influences_of_features(row)[:MOST_INFLUENCES]
    numbers = fit.photo_numbers()
    return tuple(
        Influence(photo=numbers[one.label][one.number], class_name=one.label, weight=one.amount) for one in found
    )


def _check_pixels(upload: Upload, settings: ServeSettings) -> None:
    try:
        width, height = image_size(upload.content)
    except DataError as error:
        raise DataError(f"{upload.name} cannot be used: {error}.") from None
    if width * height > settings.most_pixels:
        raise RequestError(
            413, f"{upload.name} has {width * height:,} pixels; {settings.most_pixels:,} are the most that are read."
        )
