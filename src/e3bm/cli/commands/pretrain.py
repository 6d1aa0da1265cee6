"""`e3bm pretrain`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, progress_here, settings_of_preset
from e3bm.errors import SettingsError
from e3bm.runs.settings import PretrainSettings


@dataclass(frozen=True)
class Options:
    """Where the run is kept, and its settings."""

    run: Path
    """Run folder; naming the folder of an unfinished run continues it."""
    settings: Annotated[PretrainSettings, tyro.conf.arg(name="")]
    folds: int = 0
    """Train this many additional backbones, each without one part of the training classes, for `e3bm train --tasks
    cross-fitted`; a finished run gets them without being trained again."""
    tensorboard: bool = False
    """Also log to TensorBoard, in the folder `tensorboard` of the run."""
    json: bool = False
    """Print the best validation as JSON."""


def run(words: Sequence[str]) -> int:
    about = "Train a backbone on the meta-training classes; the best few-shot accuracy on validation classes is kept."
    about += " `--preset NAME` takes the defaults from a preset; `e3bm presets` lists them."
    default, words = settings_of_preset(words, "pretrain", PretrainSettings())
    options = parse(Options, words, "pretrain", about, Options(run=tyro.MISSING, settings=default))
    from e3bm.cli.console import show_best
    from e3bm.runs.training.pretrain import run_folds, run_pretrain

    if options.folds and options.settings.left_out is not None:
        raise SettingsError("A backbone that leaves classes out cannot have folds; set either --folds or --left-out.")
    if options.folds and options.settings.teacher is not None:
        raise SettingsError(
            "Each fold needs a teacher that has not seen the left-out classes either; train the folds one by one, with "
            "--left-out I K and --teacher RUN."
        )
    progress = progress_here()
    folder = run_pretrain(options.settings, options.run, progress, tensorboard=options.tensorboard, folds=options.folds)
    if options.folds:
        run_folds(options.settings, options.run, options.folds, progress, tensorboard=options.tensorboard)
    show_best(
        folder,
        options.run,
        options.json,
        "few-shot accuracy",
        f"use it with: e3bm train --backbone.pretrained {options.run}",
    )
    return 0
