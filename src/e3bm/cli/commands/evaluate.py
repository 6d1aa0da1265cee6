"""`e3bm evaluate`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, progress_here, show


@dataclass(frozen=True)
class Options:
    """Which model, on which labelled photos."""

    model: Annotated[Path, tyro.conf.Positional]
    """A model file made by `e3bm fit`."""
    photos: Annotated[Path, tyro.conf.Positional]
    """A folder (or zip or tar file) with a subfolder for each class, a CSV file with path and label, or Label Studio's
    JSON (photos of classes that the model does not know are counted separately: they should be called unknown)."""
    out: Path = Path("evaluation.html")
    """The page to write; the numbers go next to it as JSON."""
    force: bool = False
    """Replace an existing page and its numbers."""
    skip_unreadable: bool = False
    """Continue without photos that cannot be read, and name them."""
    backbone: str | None = None
    """Run folder or transformers:NAME, if the model file does not contain its backbone."""
    json: bool = False
    """Print all numbers as JSON."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, "evaluate", "How well a model does on labelled photos: a page and JSON.")
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.fewshot.learning.evaluation_page import check_page_target

    check_page_target(options.out, options.photos, replace=options.force)
    model = FewShotClassifier.load(options.model, backbone=options.backbone)
    found = model.evaluate(options.photos, skip_unreadable=options.skip_unreadable, progress=progress_here())
    found.save(options.out, f"{options.model.name} on {options.photos.name}")
    if options.json:
        print_json(found.as_json())
    else:
        show(found)
        numbers = options.out.with_suffix(".json")
        show(f"saved {shlex.quote(str(options.out))} (a page) and {shlex.quote(str(numbers))} (the numbers)")
    return 0
