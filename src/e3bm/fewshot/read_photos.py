"""Photos to labelled features: folders, archives, mappings or lists with labels to the shots of each class."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from e3bm.array_types import Float32
from e3bm.data.read.decode import small_jpeg
from e3bm.data.read.photos import (
    MOST_NAMED,
    Photo,
    UnusedFile,
    as_photos,
    holds_photos,
    photo_name,
    photo_pixels,
    photos_by_class,
    photos_in,
    unused_sentences,
    why_no_picture,
    why_unreadable,
)
from e3bm.errors import DataError
from e3bm.fewshot.extractor import FeatureExtractor
from e3bm.fewshot.learning.label_files import (
    check_path,
    frame_examples,
    frame_labels,
    is_frame,
    is_label_file,
    read_label_file,
)
from e3bm.fewshot.support_set import (
    PICTURE_SIDE,
    Shots,
    check_class_name,
    check_not_empty,
    check_number_of_classes,
    numbered_names,
)
from e3bm.progress import Progress, Silent, stage

Source = str | Path | Mapping[str, Photo | Iterable[Photo]] | Iterable[Photo]


@dataclass(frozen=True)
class ReadShots:
    """Features by class, and a sentence for every photo that could not be read."""

    shots: dict[str, Shots]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class LabelledPhotos:
    """The photos of every class, and the files of their folder in which there is no photo."""

    by_class: dict[str, list[Photo]]
    unused: tuple[UnusedFile, ...] = ()


@contextmanager
def open_photos(
    source: Source,
    labels: Sequence[object] | None,
    *,
    noun: str = "photo",
    skip_missing: bool = False,
    one_class: bool = False,
) -> Iterator[LabelledPhotos]:
    """The photos of every class, or what else ``noun`` says, from any form of source; an archive is open in the block.

    With ``skip_missing`` photos that a table names need not be there; ``one_class`` is enough for an evaluation.
    """
    if isinstance(source, str | Path):
        if labels is not None:
            raise DataError("Labels go with a list of photos; in a folder the subfolders are the classes.")
        check_path(Path(source))
        if is_label_file(Path(source)):
            listed = read_label_file(Path(source), skip_missing=skip_missing)
            yield LabelledPhotos({name: list(paths) for name, paths in listed.by_class().items()}, listed.unused)
            return
        with photos_by_class(Path(source), one_class=one_class) as found:
            yield LabelledPhotos({name: list(photos) for name, photos in found.by_class.items()}, found.unused)
    elif isinstance(source, Mapping):
        if labels is not None:
            raise DataError(f"Labels go with a list of {noun}s; in a mapping the keys are the classes.")
        yield LabelledPhotos({_class_name(name): list_photos(photos, noun) for name, photos in source.items()})
    elif is_frame(source) and labels is None:
        yield LabelledPhotos(_labelled(frame_examples(source, noun), frame_labels(source), noun))
    elif labels is None:
        raise DataError(f"A list of {noun}s needs a label for each: fit({noun}s, labels).")
    else:
        labels = frame_labels(labels) if is_frame(labels) else labels
        yield LabelledPhotos(_labelled(as_photos(frame_examples(source, noun))[0], labels, noun))


def list_photos(photos: Photo | Iterable[Photo], noun: str = "photo") -> list[Photo]:
    """A list of photos; a folder or archive stands for all photos in it, a data frame for those of its column."""
    if isinstance(photos, str | Path) and holds_photos(Path(photos)):
        return list(photos_in(Path(photos))[0])
    return as_photos(frame_examples(photos, noun))[0]


def check_classes(photos: Mapping[str, Sequence[Photo]], noun: str = "photo") -> None:
    """Refuse classes that nothing can be learned from, before any photo is read."""
    for name, some in photos.items():
        check_class_name(name)
        check_not_empty(name, some, noun)


def check_source(source: Source, *, skip_missing: bool = False) -> None:
    """Refuse a folder or archive of which no classifier can be made; quick, since no photo is decoded."""
    with open_photos(source, None, skip_missing=skip_missing) as photos:
        check_classes(photos.by_class)
        check_number_of_classes(photos.by_class)
        if not skip_missing:
            _refuse_at_first_sight(photos.by_class, photos.unused, "photo")


def read_shots(
    photos: Mapping[str, Sequence[Photo]],
    extractor: FeatureExtractor,
    *,
    skip_unreadable: bool = False,
    small_pictures: bool = False,
    unused: Sequence[UnusedFile] = (),
    progress: Progress | None = None,
) -> ReadShots:
    """The features of all photos and, where asked for, small pictures.

    Photos that cannot be read are named together, in one error or as skipped. The error also names the ``unused`` files
    of their folder. Empty files and the like are refused before any photo is decoded.
    """
    noun = extractor.noun
    check_classes(photos, noun)
    if not skip_unreadable:
        _refuse_at_first_sight(photos, unused, noun)
    progress, done = progress or Silent(), 0
    shots, failures = {}, []
    with stage(progress, "features", sum(map(len, photos.values()))):
        for name, some in photos.items():
            names = [
                photo_name(photo, other) for photo, other in zip(some, numbered_names(name, len(some)), strict=True)
            ]
            rows, kept, drawn = [], [], []
            for content, photo, row in zip(some, names, extractor.features_or_errors(some, names), strict=True):
                done += 1
                progress.advance(done)
                if isinstance(row, DataError):
                    failures.append(str(row))
                else:
                    rows.append(row)
                    kept.append(photo)
                    drawn.append(small_jpeg(photo_pixels(content), PICTURE_SIDE) if small_pictures else b"")
            if rows:
                shots[name] = Shots(np.stack(rows), tuple(kept), tuple(drawn))
            elif skip_unreadable:
                raise DataError(
                    f"No {noun} of class '{name}' can be used, so add one or remove the class; the first: "
                    f"{failures[-len(some)]}"
                )
    refuse_unreadable(failures, skip=skip_unreadable, noun=noun, unused=unused)
    return ReadShots(shots, tuple(failures))


@dataclass(frozen=True, eq=False)
class ReadFeatures:
    """Features of photos, the places of these among all that were asked for, and a sentence for each of the others."""

    features: Float32[np.ndarray, "N D"]
    places: tuple[int, ...]
    skipped: tuple[str, ...]


def read_features(
    photos: Sequence[Photo],
    names: Sequence[str],
    extractor: FeatureExtractor,
    *,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> ReadFeatures:
    """The features of photos without labels; those that cannot be read are named as ``read_shots`` does."""
    if not photos:
        raise DataError(f"No {extractor.noun} was given; give one or more.")
    progress, found = progress or Silent(), []
    with stage(progress, "photos", len(photos)):
        for row in extractor.features_or_errors(photos, names):
            found.append(row)
            progress.advance(len(found))
    failures = [str(row) for row in found if isinstance(row, DataError)]
    refuse_unreadable(failures, skip=skip_unreadable, noun=extractor.noun)
    kept = [(place, row) for place, row in enumerate(found) if not isinstance(row, DataError)]
    if not kept:
        raise DataError(f"None of the {extractor.noun}s can be used; the first: {failures[0]}")
    return ReadFeatures(np.stack([row for _, row in kept]), tuple(place for place, _ in kept), tuple(failures))


def refuse_unreadable(
    failures: Sequence[str], *, skip: bool, noun: str = "photo", unused: Sequence[UnusedFile] = ()
) -> None:
    """One error for all photos that cannot be read, unless they are to be skipped: a line each, if there are several.

    Before them come the ``unused`` files of their folder: whoever repairs the one may want to repair the other.
    """
    if failures and not skip:
        which, them = ("it", "it") if len(failures) == 1 else (f"these {len(failures)} {noun}s", "them")
        more = [f"And {len(failures) - MOST_NAMED} more cannot be used."] if len(failures) > MOST_NAMED else []
        lines = [*unused_sentences(unused), *failures[:MOST_NAMED], *more]
        skipping = "skip_unreadable=True"
        if noun == "photo":
            skipping = f"--skip-unreadable; {skipping} in Python"
        advice = f"Remove or replace {which}, or continue without {them} ({skipping})."
        raise DataError(("\n" if len(lines) > 1 else " ").join([*lines, advice]))


def _refuse_at_first_sight(photos: Mapping[str, Sequence[Photo]], unused: Sequence[UnusedFile], noun: str) -> None:
    """Refuse files that are empty or no pictures, which shows without decoding any.

    Only where there is one, all others are decoded too, so that the error names every photo that must be replaced.
    """
    every = [photo for some in photos.values() for photo in some]
    if all(why_no_picture(photo) is None for photo in every):
        return
    found = [(photo, why_unreadable(photo)) for photo in every]
    failures = [f"{photo_name(photo, noun)} cannot be used: {why}." for photo, why in found if why is not None]
    refuse_unreadable(failures, skip=False, noun=noun, unused=unused)


def _labelled(photos: list[Photo], labels: Sequence[object], noun: str) -> dict[str, list[Photo]]:
    if len(photos) != len(labels):
        raise DataError(f"Every {noun} needs a label; found {len(photos)} {noun}s and {len(labels)} labels.")
    missing = [row for row, label in enumerate(labels, 1) if _is_missing(label)]
    if missing:
        which = f"{noun} {missing[0]} has" if len(missing) == 1 else f"{len(missing)} {noun}s have"
        raise DataError(f"Every {noun} needs a label; {which} none (None or NaN).")
    found: dict[str, list[Photo]] = {}
    for photo, label in zip(photos, labels, strict=True):
        found.setdefault(_class_name(label), []).append(photo)
    return found


def _is_missing(label: object) -> bool:
    """Whether it stands for no value: None, NaN, or what pandas writes in place of these."""
    if isinstance(label, float):
        return math.isnan(label)
    return label is None or type(label).__name__ in ("NAType", "NaTType")


def _class_name(label: object) -> str:
    return label if isinstance(label, str) else str(label)
