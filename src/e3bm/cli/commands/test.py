"""`e3bm test`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import leads, parse, print_json, progress_here, settings_of_preset
from e3bm.runs.settings import TestSettings


@dataclass(frozen=True)
class Options:
    """Which runs, and how they are tested."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders of `e3bm train` or `e3bm pretrain`; each is compared with its plain method, or with the first."""
    settings: Annotated[TestSettings, tyro.conf.arg(name="")]
    json: bool = False
    """A list of result rows."""


def run(words: Sequence[str]) -> int:
    about = "Accuracy, calibration and paired differences of runs on one fixed, hashed list of episodes."
    default, words = settings_of_preset(words, "test", TestSettings())
    options = parse(Options, words, "test", about, Options(runs=tyro.MISSING, settings=default))
    from e3bm.report.tables import results_table
    from e3bm.runs.evaluation.test import run_test

    rows = run_test(list(options.runs), options.settings, progress_here())
    if not leads():
        return 0
    if options.json:
        print_json(rows)
    else:
        print(results_table(rows).text())
    return 0
