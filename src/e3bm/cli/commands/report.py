"""`e3bm report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, show
from e3bm.errors import SettingsError


@dataclass(frozen=True)
class Options:
    """Which runs go into the page."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""
    out: Path = Path("report")
    """Folder for index.html and the figures."""
    json: bool = False
    """Print where the page is as JSON."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, "report", "One self-contained HTML page and figures from run folders.")
    if not options.runs:
        raise SettingsError("Name at least one run folder to report on.")
    from e3bm.report.page import report

    page = report(list(options.runs), options.out)
    if options.json:
        print_json({"page": str(page)})
    else:
        show(f"report: {page}")
    return 0
