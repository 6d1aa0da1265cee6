"""Evaluations from photos: their features, and small pictures of those that got a wrong answer."""

from dataclasses import replace

from e3bm.data.read.decode import small_jpeg
from e3bm.data.read.photos import Photo, photo_name, photo_pixels
from e3bm.fewshot.extractor import FeatureExtractor
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.learning.evaluation import Evaluation, check_labels, evaluate
from e3bm.fewshot.learning.evaluation_page import MOST_SHOWN
from e3bm.fewshot.read_photos import LabelledPhotos, read_features
from e3bm.fewshot.support_set import numbered_names
from e3bm.progress import Progress

THUMBNAIL = 160
"""Pixels of the longer side of a small picture."""


def evaluate_photos(
    fitted: FittedModel,
    extractor: FeatureExtractor,
    labelled: LabelledPhotos,
    *,
    skip_unreadable: bool = False,
    noun: str = "photo",
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate on photos, with small pictures of the mistakes, or on what else ``noun`` says, without them."""
    listed: list[tuple[Photo, str, str]] = [
        (photo, label, photo_name(photo, other))
        for label, photos in labelled.by_class.items()
        for photo, other in zip(photos, numbered_names(label, len(photos)), strict=True)
    ]
    if listed:
        check_labels(fitted.classes, [label for _, label, _ in listed], noun)  # before any photo is read
    photos, names = [photo for photo, _, _ in listed], [name for _, _, name in listed]
    read = read_features(photos, names, extractor, skip_unreadable=skip_unreadable, progress=progress)
    used = [listed[place] for place in read.places]
    result = evaluate(
        fitted,
        read.features,
        [label for _, label, _ in used],
        [name for _, _, name in used],
        unused=labelled.unused,
        notes=read.skipped,
        noun=noun,
    )
    shown = result.mistakes[:MOST_SHOWN] if noun == "photo" else ()
    picture = lambda number: small_jpeg(photo_pixels(used[number][0]), THUMBNAIL)  # one in memory at a time
    return replace(result, thumbnails={one.number: picture(one.number) for one in shown})
