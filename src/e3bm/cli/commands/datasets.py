"""`e3bm datasets`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, show

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Options:
    """What to show, or to free."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """With --clean or --remove: only these."""
    folder: Path | None = None
    """Folder of prepared data sets; unset: the variable E3BM_DATA, then the user's cache folder."""
    clean: bool = False
    """Show what the folder holds and how large it is."""
    remove: bool = False
    """Delete it: everything, or only what is named."""
    json: bool = False
    """Print as JSON."""


def run(words: Sequence[str]) -> int:
    about = "Known data sets, where they are expected, and which are there."
    options = parse(Options, words, "datasets", about)
    from e3bm.data.inspect.catalogue import clean_cache, known_datasets

    if options.clean or options.remove:
        report = clean_cache(options.folder, options.names, remove=options.remove)
        if options.json:
            print_json(report.as_json())
            return 0
        show(f"in {report.folder}:" if report.items else f"{report.folder} holds nothing")
        for item in report.items:
            gone = "  removed" if item in report.removed else ""
            show(f"  {item.name} ({item.kind})  {item.size / MEGABYTE:.1f} MB{gone}")
        freed = f"freed {report.freed / MEGABYTE:.1f} MB"
        show(freed if options.remove else "nothing was removed; add --remove to free it")
        return 0
    catalogue = known_datasets(options.folder)
    if options.json:
        print_json([entry.as_json() for entry in catalogue.entries])
        return 0
    show(f"looked for in {catalogue.folder} ({catalogue.chosen_by})\n")
    for entry in catalogue.entries:
        counts = ", ".join(f"{split} {part['classes']}" for split, part in entry.splits.items())
        show(f"{entry.name}: {entry.title}. {entry.state}; classes: {counts or 'none'}")
        show(f"    licence: {entry.licence}")
        if entry.citation:
            show(f"    cite: {entry.citation}")
        if entry.advice:
            show(f"    {entry.advice}")
    return 0
