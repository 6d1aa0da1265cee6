"""From uploaded photos to features, and from features to what is said of them."""

from collections.abc import Sequence

import numpy as np

from e3bm.data.read.decode import image_size
from e3bm.errors import DataError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.prior.file import load_prior
from e3bm.serving.refusals import Refusal
from e3bm.serving.schemas import Influence, PhotoPrediction
from e3bm.serving.settings import ServeSettings
from e3bm.serving.uploads import Upload
from e3bm.serving.workspace import Fit

MOST_INFLUENCES = 12
MOST_EXPLAINED = 500  # photos of all classes; with more, finding their parts takes longer than the prediction itself


def features_of(classifier: FewShotClassifier, uploads: Sequence[Upload], settings: ServeSettings) -> list[np.ndarray]:
    """The features of every photo; the first that cannot be read refuses them all."""
    rows = []
    for upload in uploads:
        _check_pixels(upload, settings)
        (row,) = classifier.extractor.each([upload.content], [upload.name])
        if isinstance(row, DataError):
            raise row
        rows.append(row)
    return rows


def predicted(
    fit: Fit, uploads: Sequence[Upload], settings: ServeSettings, *, together: bool
) -> tuple[PhotoPrediction, ...]:
    """What the fitted classifier says of photos."""
    if together and not can_use_together(fit):
        raise Refusal(409, "This model was made with a prior of its own; without it photos cannot be used together.")
    rows = np.stack(features_of(fit.classifier, uploads, settings))
    alone = fit.classifier.predict_features(rows)
    found = fit.classifier.predict_batch_features(rows) if together else alone
    return tuple(
        PhotoPrediction(
            name=upload.name,
            label=one.label,
            probabilities=one.probabilities,
            unknown=one.unknown,
            disagreement=one.disagreement,
            # What mattered is told of the class that a photo has alone.
            influences=_influences(fit, row) if one.label == by_itself.label else (),
        )
        for upload, row, one, by_itself in zip(uploads, rows, found, alone, strict=True)
    )


def can_use_together(fit: Fit) -> bool:
    """Whether the prior that the model was made with is here, and with it the part that uses many photos."""
    fitted = fit.classifier.fitted
    return not fitted.own_prior or load_prior(fit.classifier.prior_path).digest == fitted.prior_digest


def _influences(fit: Fit, row: np.ndarray) -> tuple[Influence, ...]:
    """The photos that mattered most; none where there are too many, or where the model does not have them."""
    if not 0 < len(fit.photos) <= MOST_EXPLAINED:
        return ()
    found = fit.classifier.influences_of_features(row)[:MOST_INFLUENCES]
    numbers = fit.numbers()
    return tuple(
        Influence(photo=numbers[one.label][one.number], class_name=one.label, weight=one.amount) for one in found
    )


def _check_pixels(upload: Upload, settings: ServeSettings) -> None:
    try:
        width, height = image_size(upload.content)
    except DataError as error:
        raise DataError(f"{upload.name} cannot be used: {error}.") from None
    if width * height > settings.most_pixels:
        raise Refusal(
            413, f"{upload.name} has {width * height:,} pixels; {settings.most_pixels:,} are the most that are read."
        )
