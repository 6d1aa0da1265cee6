"""`e3bm ablate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from e3bm.cli.console import parse, print_json, progress_here, settings_of_preset, show
from e3bm.paper.presets import find_preset
from e3bm.runs.settings import TrainSettings

PRESET = "small-mtl-fc100-1shot-lstm-inductive"


@dataclass(frozen=True)
class Options:
    """Which study, of what, and where."""

    study: Literal["rate", "weight", "hyperprior", "tuning", "choices"]
    """rate: alpha from E3BM, learnable, optimal, fixed (a1-a4); weight: v from E3BM, learnable, optimal, equal, last
    (v1-v5); hyperprior: FC or LSTM, inductive or transductive, and none; tuning: the method alone
    and with E3BM at several rates; choices: one thing changed at a time, from learning rates to M."""
    run: Path
    """Folder for all arms and the report; naming it again continues, and studies share runs where they can."""
    settings: Annotated[TrainSettings, tyro.conf.arg(name="")]
    seeds: int = 1
    """Number of seeds (0, 1, ..) with which every arm is trained."""
    episodes: int = 600
    """Test episodes, the same for all arms."""
    split: Literal["val", "test"] = "test"
    """Classes for these episodes; choices between arms are made on val."""
    budget: str = ""
    """Time for training, such as 30m or 2h; unfinished runs are then tested as they are and can be continued."""
    workers: int = 1
    """Models trained at the same time, one process each."""
    keep: Path | None = None
    """Folder, such as results/study/NAME, for a small copy of every run."""
    json: bool = False
    """A list of result rows."""


def run(words: Sequence[str]) -> int:
    about = (
        f"The paper's ablations: every arm through the same train and test, one report. Settings start from {PRESET}."
    )
    default, words = settings_of_preset(words, "train", find_preset(PRESET).train)
    options = parse(Options, words, "ablate", about, Options(tyro.MISSING, tyro.MISSING, default))
    from e3bm.paper.ablate import ablate, one_per_arm
    from e3bm.report.tables import results_table
    from e3bm.runs.settings import TestSettings
    from e3bm.runs.training.train_many import seconds_of

    found = ablate(
        options.study,
        options.settings,
        options.run,
        seeds=range(options.seeds),
        test=TestSettings(episodes=options.episodes, split=options.split),
        seconds=seconds_of(options.budget) if options.budget else None,
        workers=options.workers,
        keep=options.keep,
        progress=progress_here(),
    )
    if options.json:
        print_json([result.as_json() for result in found.results])
        return 0
    show(results_table(one_per_arm(found.results)).text())
    show(f"Report: {found.page}")
    return 0
