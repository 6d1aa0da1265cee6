"""`e3bm correct`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, show


@dataclass(frozen=True)
class Options:
    """Which model, which photo, and what it shows."""

    model: Annotated[Path, tyro.conf.Positional]
    """A model file made by `e3bm fit`; it is changed unless --out names another file, and its former state is kept
    beside it as NAME.backup.e3bm."""
    photo: Annotated[Path, tyro.conf.Positional]
    """A photo whose answer was wrong, or that has no label yet."""
    label: Annotated[str, tyro.conf.Positional]
    """The class that it shows (one of the model or, with --new-class, another)."""
    new_class: bool = False
    """Make a new class of the label, if the model has no such class yet."""
    out: Path | None = None
    """Another model file to write; unset: the model itself is replaced."""
    force: bool = False
    """Replace an existing file that --out names."""
    backbone: str | None = None
    """Run folder or transformers:NAME, if the model file does not contain its backbone."""
    json: bool = False
    """Print the answers before and after as JSON."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, "correct", "'No, it is X': add one photo to a class of a model, and fit it again.")
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.fewshot.model_file import check_target, keep_backup

    if options.out is not None:
        check_target(options.out, replace=options.force)
    model = FewShotClassifier.load(options.model, backbone=options.backbone)
    former, before = model.fitted, model.predict(options.photo)
    model.correct(options.photo, options.label, new_class=options.new_class)
    after = model.predict(options.photo)
    out = options.out or options.model
    changed = model.fitted is not former
    backup = keep_backup(out) if changed and options.out is None else None
    if changed or options.out is not None:
        model.save(out)
    if options.json:
        print_json({"model": str(out), "before": before.as_json(), "after": after.as_json(), "classes": model.counts})
        return 0
    if not changed:
        show(f"'{options.label}' has this photo already; nothing changed")
        return 0
    show(f"before: {before.label}, {100 * before.confidence:.1f} %{' (unknown)' if before.unknown else ''}")
    count = model.counts[options.label]
    photos = "1 photo" if count == 1 else f"{count} photos"
    show(f"now:    {after.label}, {100 * after.confidence:.1f} % ('{options.label}' has {photos} now)")
    for one in model.suspicions:
        show(f"doubtful: {one}")
    kept = "" if backup is None else f" (as it was before: {shlex.quote(str(backup))})"
    show(f"saved {shlex.quote(str(out))}{kept}")
    return 0
