"""`e3bm doctor`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, progress_here, show

SIZES_SHOWN = 5


@dataclass(frozen=True)
class Options:
    """What to look at."""

    path: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """A folder, archive or files of images, a prepared data set, or a model file of `e3bm fit`."""
    workers: int = 2
    """Decoding processes."""
    json: bool = False
    """Print variant, splits, duplicates, unreadable files and advice as JSON."""


def run(words: Sequence[str]) -> int:
    about = "What a data file or folder contains, whether it is complete, and what to run next."
    options = parse(Options, words, "doctor", about)
    if len(options.path) == 1 and options.path[0].suffix == ".e3bm" and options.path[0].is_file():
        return _model(options.path[0], as_json=options.json)
    from e3bm.data.inspect.doctor import doctor

    report = doctor(options.path, workers=options.workers, progress=progress_here())
    if options.json:
        print_json(report.as_json())
        return 0
    show(report.variant)
    for split, count in report.splits.items():
        known = report.published.get(split)
        published = f" (published: {known.classes} classes, {known.images} images)" if known else ""
        show(f"  {split}: {count.classes} classes, {count.images} images{published}")
    show(f"  image sizes: {', '.join(f'{size} x{count}' for size, count in list(report.sizes.items())[:SIZES_SHOWN])}")
    for finding in report.findings:
        show(f"  {finding}")
    across = report.duplicate_groups_across_splits
    groups = f"{report.duplicate_groups} group{'s' * (report.duplicate_groups != 1)}"
    show(f"  duplicates: {groups}, {across} across splits")
    for broken in report.unreadable:
        show(f"  unreadable: {broken.path}: {broken.reason}")
    show(f"next: {report.advice}")
    return 0


def _model(path: Path, *, as_json: bool) -> int:
    """What a model file is, read as a file: its network need not be installed here."""
    from e3bm.fewshot.model_file import parse_fit, parse_origin, read_model

    about, tensors = read_model(path)
    fitted, (origin, _, _) = parse_fit(path, about, tensors), parse_origin(path, about)
    counts, text = dict(zip(fitted.classes, fitted.head.counts, strict=True)), origin.kind == "text"
    use = f"TextClassifier.load({str(path)!r})" if text else f"e3bm predict {shlex.quote(str(path))} PHOTO..."
    if as_json:
        print_json({"variant": "model file", "classes": counts, "backbone": origin.name, "advice": use})
        return 0
    noun = "sentence" if text else "photo"
    made = about.get("made_by", "e3bm")
    show(f"model file of {made}: {len(counts)} classes, {sum(counts.values())} labelled {noun}s, {origin.name}")
    for name, count in counts.items():
        show(f"  {name}: {count}")
    if fitted.support is None:
        show(f"  without the features of its {noun}s: its classes cannot be changed")
    show(f"next: {use}")
    return 0
