"""`e3bm train`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import check_pretrained, parse, progress_here, settings_of_preset
from e3bm.runs.settings import TrainSettings


@dataclass(frozen=True)
class Options:
    """Where the run is kept, and its settings."""

    run: Path
    """Run folder; naming the folder of an unfinished run continues it."""
    settings: Annotated[TrainSettings, tyro.conf.arg(name="")]
    tensorboard: bool = False
    """Show the same numbers in TensorBoard: in the run's folder `tensorboard`."""
    json: bool = False
    """Print the best validation as JSON."""


def run(words: Sequence[str]) -> int:
    about = "Meta-train a method, with or without E3BM; the best accuracy on validation classes is kept."
    about += " `--preset NAME` takes the defaults from a preset; `e3bm presets` lists them."
    default, rest = settings_of_preset(words, "train", TrainSettings())
    options = parse(Options, rest, "train", about, Options(run=tyro.MISSING, settings=default))
    check_pretrained(words, options.settings)
    from e3bm.cli.console import show_best
    from e3bm.runs.training.train import run_train

    folder = run_train(options.settings, options.run, progress_here(), tensorboard=options.tensorboard)
    show_best(folder, options.run, options.json, "accuracy", f"test it with: e3bm test {options.run}")
    return 0
