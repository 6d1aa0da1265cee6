"""`e3bm test`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, progress_here, settings_of_preset, show
from e3bm.runs.folder.environment import is_leader
from e3bm.runs.settings import TestSettings


@dataclass(frozen=True)
class Options:
    """Which runs, and how they are tested."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders of `e3bm train` or `e3bm pretrain`, or kept runs such as results/fc100/NAME, which are first
    unpacked into runs/; each is compared with its plain method, or with the first."""
    settings: Annotated[TestSettings, tyro.conf.arg(name="")]
    runs_in: Annotated[tuple[Path, ...], tyro.conf.arg(name="runs")] = ()
    """Further folders to search for pre-trained backbones, which are recognised by the digest of their weights."""
    json: bool = False
    """A list of result rows."""


def run(words: Sequence[str]) -> int:
    about = "Accuracy, calibration and paired differences of runs on one fixed, hashed list of episodes."
    default, words = settings_of_preset(words, "test", TestSettings())
    options = parse(Options, words, "test", about, Options(runs=tyro.MISSING, settings=default))
    from e3bm.report.tables import results_table
    from e3bm.runs.evaluation.test import run_test
    from e3bm.runs.kept.pack import as_folder

    folders = [as_folder(path) for path in options.runs]
    results = run_test(folders, options.settings, progress_here(), places=options.runs_in)
    if not is_leader():
        return 0
    if options.json:
        print_json([result.as_json() for result in results])
    else:
        show(results_table(results).text())
    return 0
