"""`e3bm suggest`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import by_path, parse, print_json, progress_here, show
from e3bm.errors import DataError


@dataclass(frozen=True)
class Options:
    """Which model, and which photos without labels."""

    model: Annotated[Path, tyro.conf.Positional]
    """A model file made by `e3bm fit`."""
    photos: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Photos, folders or archives of photos, or - to read paths from stdin; the names of subfolders are ignored."""
    count: int = 10
    """How many photos to suggest."""
    backbone: str | None = None
    """Run folder or transformers:NAME, if the model file does not contain its backbone."""
    json: bool = False
    """Print a list with one object per photo."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, "suggest", "Which unlabelled photos to label next, and why.")
    from e3bm.cli.commands.predict import NO_PHOTO, named_photos
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.fewshot.learning.suggest import check_count

    check_count(options.count)
    photos = list(named_photos(options.photos))
    if not photos:
        raise DataError(NO_PHOTO)
    model = FewShotClassifier.load(options.model, backbone=options.backbone)
    found = model.suggest(photos, options.count, skip_unreadable=True, progress=progress_here())
    if options.json:
        print_json([by_path(one) for one in found])
        return 0
    for one in found:
        show(f"{one.name}: {one.reason}")
    if model.fitted.support is not None:
        show(f"next: e3bm correct {shlex.quote(str(options.model))} PHOTO LABEL")
    return 0
