"""Evaluations from photos: their features, and small pictures of those that got a wrong answer."""

import io
from dataclasses import replace

import numpy as np
from PIL import Image

from e3bm.data.read.photos import Photo, photo_name, photo_pixels
from e3bm.errors import DataError
from e3bm.fewshot.extractor import FeatureExtractor
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.learning.evaluation import Evaluation, evaluate
from e3bm.fewshot.learning.evaluation_page import MOST_SHOWN
from e3bm.fewshot.read_photos import LabelledPhotos, refuse_unreadable
from e3bm.fewshot.support_set import numbered_names
from e3bm.progress import Progress, Silent, stage

THUMBNAIL = 160
"""Pixels of the longer side of a small picture."""


def evaluate_photos(
    fitted: FittedModel,
    extractor: FeatureExtractor,
    labelled: LabelledPhotos,
    *,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate on photos; small pictures of the mistakes go with it."""
    listed: list[tuple[Photo, str, str]] = [
        (photo, label, photo_name(photo, other))
        for label, photos in labelled.by_class.items()
        for photo, other in zip(photos, numbered_names(label, len(photos)), strict=True)
    ]
    used, rows, failures = [], [], []
    progress = progress or Silent()
    with stage(progress, "photos", len(listed)):
        found = extractor.features_or_errors([one[0] for one in listed], [one[2] for one in listed])
        for done, (one, row) in enumerate(zip(listed, found, strict=True), 1):
            progress.advance(done)
            if isinstance(row, DataError):
                failures.append(str(row))
            else:
                used.append(one)
                rows.append(row)
    refuse_unreadable(failures, skip=skip_unreadable)
    table = np.stack(rows) if rows else np.empty((0, fitted.head.ensemble.feature_size), np.float32)
    result = evaluate(
        fitted,
        table,
        [label for _, label, _ in used],
        [name for _, _, name in used],
        unused=labelled.unused,
        notes=failures,
    )
    pictures = {one.number: thumbnail(used[one.number][0]) for one in result.mistakes[:MOST_SHOWN]}
    return replace(result, thumbnails=pictures)


def thumbnail(photo: Photo) -> bytes:
    """A small JPEG picture."""
    image = Image.fromarray(np.ascontiguousarray(photo_pixels(photo)))
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return file.getvalue()
