"""Runs that refer to other runs: ensembles of seeds, and where a run that was moved finds what it refers to."""

from pathlib import Path

from pydantic import Field

from e3bm.errors import SettingsError
from e3bm.settings import Settings, TrainSettings, read_settings
from e3bm.tracking.run_folder import RunFolder


class EnsembleSettings(Settings):
    """Models that answer together, by the mean of their probabilities."""

    members: tuple[Path, ...] = Field(min_length=2)
    """Run folders of `e3bm train` that differ in their seed only."""


def make_ensemble(members: list[Path], folder: Path) -> RunFolder:
    """A run folder for several runs together; test it like any other."""
    for member in members:
        if RunFolder(member).config()["kind"] != "train":
            raise SettingsError(f"{member} is no run of `e3bm train`; an ensemble has only those as members.")
    run = RunFolder(folder)
    run.create("ensemble", read_settings(EnsembleSettings, {"members": members}), {})
    return run


def settings_beside(run: RunFolder) -> TrainSettings:
    """The settings of a training run, with the runs it names looked for beside it if they are not where they were."""
    train = read_settings(TrainSettings, run.config()["settings"])
    changes = {
        field: beside(run.path, named)
        for field, named in (
            ("backbone__pretrained", train.backbone.pretrained),
            ("hyperprior__frozen_from", train.hyperprior.frozen_from),
        )
        if named is not None
    }
    return train.but(**changes) if changes else train


def beside(run: Path, named: Path) -> Path:
    """A path that a run names, or what has its name beside the run: runs that moved together find one another."""
    nearby = run.parent / named.name
    return nearby if not named.exists() and nearby.exists() else named
