"""`e3bm suggest`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, progress_here, show


@dataclass(frozen=True)
class Options:
    """Which model, and which photos without labels."""

    model: Annotated[Path, tyro.conf.Positional]
    """A file of `e3bm fit`."""
    photos: Annotated[Path, tyro.conf.Positional]
    """A folder of photos; subfolders are looked into, and their names mean nothing."""
    count: int = 10
    """How many photos to suggest."""
    backbone: str | None = None
    """Where the model file alone cannot bring its backbone back: run folder or transformers:NAME."""
    json: bool = False
    """Print a list with one object per photo."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, "suggest", "Which unlabelled photos to label next, and why.")
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier

    model = FewShotClassifier.load(options.model, backbone=options.backbone)
    found = model.suggest(options.photos, options.count, skip_unreadable=True, progress=progress_here())
    if options.json:
        print_json([asdict(one) for one in found])
        return 0
    for one in found:
        show(f"{one.name}: {one.reason}")
    show("next: e3bm correct MODEL PHOTO LABEL")
    return 0
