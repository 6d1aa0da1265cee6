"""`e3bm doctor`."""

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
    """A folder, archive or files of images, or a prepared data set."""
    workers: int = 2
    """Decoding processes."""
    json: bool = False
    """Print variant, splits, duplicates, unreadable files and advice as JSON."""


def run(words: Sequence[str]) -> int:
    about = "What a data file or folder contains, whether it is complete, and what to run next."
    options = parse(Options, words, "doctor", about)
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
