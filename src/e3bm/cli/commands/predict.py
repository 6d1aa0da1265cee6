"""`e3bm predict`."""

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import tyro

from e3bm.cli.console import parse, print_json, progress_here, show
from e3bm.cli.plain_help import Words
from e3bm.errors import DataError, SettingsError

if TYPE_CHECKING:
    import numpy as np

    from e3bm.data.read.photos import Photo
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.fewshot.prediction import Prediction

    Rows = Sequence[tuple[str, Prediction]]

MANY = 20  # photos from which on progress is worth a line
STDIN = "-"
NO_PHOTO = "No photo was given; name photos or folders, or list paths on stdin with -."


@dataclass(frozen=True)
class Options:
    """Which model, and which photos."""

    # To understand `float | None` or `tuple[str, ...]`, tyro imports a whole type checker; a prediction cannot wait.

    model: Annotated[Path, tyro.conf.Positional]
    """A model file made by `e3bm fit`."""
    paths: Annotated[Words, tyro.conf.Positional]
    """Photos, folders or archives (zip, tar) of photos, or - to read paths from stdin, one per line."""
    coverage: Optional[float] = None  # noqa: UP045
    """Also print, for every photo, a set of classes that should contain the right one in this share of cases."""
    recall: Optional[float] = None  # noqa: UP045
    """Share of photos of the classes that should not be called unknown; unset: what the model was fitted with."""
    backbone: Optional[str] = None  # noqa: UP045
    """Run folder or transformers:NAME, if the model file does not contain its backbone."""
    transductive: bool = False
    """Use all photos together (SIB+E3BM): better with many photos, but each prediction then depends on the others."""
    json: bool = False
    """Print a list with one object per photo: its path, the fields of a prediction, and a note where one is due."""
    csv: bool = False
    """Print a line per photo, with a column for the probability of each class."""


def run(words: Sequence[str]) -> int:
    options = parse(
        Options, words, "predict", "Say what photos show, how sure that is, and whether none of the classes fits."
    )
    if options.json and options.csv:
        raise SettingsError("Choose either --json or --csv, not both.")
    if options.transductive and options.coverage is not None:
        raise SettingsError(
            "Prediction sets (--coverage) are for photos predicted one by one; leave out --transductive."
        )
    import numpy as np

    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.fewshot.fitted_head import check_coverage, check_recall

    if options.coverage is not None:
        check_coverage(options.coverage)
    if options.recall is not None:
        check_recall(options.recall)
    model = FewShotClassifier.load(options.model, backbone=options.backbone)
    photos = list(named_photos(options.paths))
    if not photos:
        raise DataError(NO_PHOTO)
    features = _features(model, photos)
    usable = [str(photo) for photo, row in zip(photos, features, strict=True) if not isinstance(row, DataError)]
    table = [row for row in features if not isinstance(row, DataError)]
    found: list["Prediction"] = []
    separate: str | None = None
    if table and options.transductive:
        found = model.predict_batch_features(np.stack(table), recall=options.recall)
        separate = model.fitted.head.why_separate(np.stack(table))
    elif table:
        found = model.predict_features(np.stack(table), coverage=options.coverage, recall=options.recall)
    rows = list(zip(usable, found, strict=True))
    failures = [row for row in features if isinstance(row, DataError)]
    write = _write_json if options.json else _write_csv if options.csv else _write_text
    reason = None if options.coverage is None else model.why_all_classes(options.coverage)
    write(model.classes, rows, reason)
    if reason:
        show(f"e3bm: {reason}", file=sys.stderr)
    elif write is _write_text and found and all(len(one.prediction_set or ()) == 1 for one in found):
        asked = 100 * (options.coverage or 0)
        show(f"e3bm: in prediction sets of {asked:g} %, every photo has one class.", file=sys.stderr)
    if separate:
        show(f"e3bm: {separate}", file=sys.stderr)
    for failure in failures:
        show(f"e3bm: {failure}", file=sys.stderr)
    if len(failures) > 1:
        show(f"e3bm: {len(failures)} of {len(photos)} photos could not be used.", file=sys.stderr)
    return 2 if failures else 0


def named_photos(words: Sequence[str]) -> Iterator["Photo"]:
    """Every photo that is named, lies in a folder or archive that is named, or stands on stdin."""
    from e3bm.data.read.photos import holds_photos, photos_in, unused_sentences

    for word in words:
        if word == STDIN:
            yield from (line for line in map(str.strip, sys.stdin) if line)
        elif holds_photos(Path(word)):
            inside, unused = photos_in(Path(word))
            for sentence in unused_sentences(unused):
                show(f"e3bm: {sentence}", file=sys.stderr)
            if not inside:
                raise DataError(f"There are no photos in {word}; name photos, or a folder or archive that holds some.")
            yield from inside
        else:
            yield word


def _features(model: "FewShotClassifier", photos: Sequence["Photo"]) -> list["np.ndarray | DataError"]:
    """Photo by photo: one that cannot be read does not stop the others."""
    progress = progress_here(quiet=len(photos) < MANY)
    progress.begin("photos", len(photos))
    found: list["np.ndarray | DataError"] = []
    note = model.extractor.engine_note()
    if note is not None:
        show(f"e3bm: {note}", file=sys.stderr)
    try:
        for row in model.extractor.features_or_errors(photos):
            found.append(row)
            progress.advance(len(found))
    finally:
        progress.end()
    return found


def _write_json(classes: Sequence[str], rows: "Rows", note: str | None = None) -> None:
    more = {"note": note} if note else {}
    print_json([{"path": path, **found.as_json(), **more} for path, found in rows])


def _write_csv(classes: Sequence[str], rows: "Rows", note: str | None = None) -> None:
    from e3bm.fewshot.prediction import csv_table

    header, *lines = csv_table(classes, [found for _, found in rows])
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["path", *header])
    table.writerows([path, *cells] for (path, _), cells in zip(rows, lines, strict=True))


def _write_text(classes: Sequence[str], rows: "Rows", note: str | None = None) -> None:
    """Aligned columns: path, class, probability, and what should give pause."""
    from e3bm.fewshot.prediction import remarks

    paths = max((len(path) for path, _ in rows), default=0)
    labels = max((len(found.label) for _, found in rows), default=0)
    for path, found in rows:
        show(f"{path:<{paths}}  {found.label:<{labels}}  {100 * found.confidence:5.1f} %  {remarks(found)}".rstrip())
