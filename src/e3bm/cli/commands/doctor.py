"""`e3bm doctor`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, progress_here, stage_callback


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
    about = "What a data file or folder is, whether it is whole, and what to run next."
    options = parse(Options, words, "doctor", about)
    from e3bm.workflows.doctor import doctor

    progress = progress_here()
    try:
        report = doctor(options.path, workers=options.workers, progress=stage_callback(progress))
    finally:
        progress.end()
    if options.json:
        print_json(report.as_json())
    else:
        print(report.as_text())
    return 0
