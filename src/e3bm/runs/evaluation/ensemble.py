"""Runs that refer to other runs: ensembles of seeds, and where a run that was moved finds what it refers to."""

from collections.abc import Sequence
from math import log
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import Learner
from e3bm.errors import SettingsError
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TrainSettings
from e3bm.settings import Settings, read_settings


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


# Several independently trained models that answer together, as in the paper's 5x MAML.


class AveragedLearners(Learner):
    """Scores are the logarithm of the mean probability; rates, weights and losses are means."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)

    @property
    def epochs(self) -> int | None:
        first = self.learners[0]
        assert isinstance(first, Learner)
        return first.epochs

    def forward(self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None) -> Trace:
        traces: list[Trace] = [learner(batch, every_epoch=every_epoch, epochs=epochs) for learner in self.learners]
        scores = _mean_probability([trace.scores for trace in traces])
        adapted = [trace for trace in traces if isinstance(trace, AdaptationTrace)]
        if not adapted:
            return Trace(scores)
        mean = lambda part: torch.stack([part(trace) for trace in adapted]).mean(0)
        singles = [trace.epoch_scores for trace in adapted if trace.epoch_scores is not None]
        return AdaptationTrace(
            scores=scores,
            rates=mean(lambda trace: trace.rates),
            weights=mean(lambda trace: trace.weights),
            losses=mean(lambda trace: trace.losses),
            epoch_scores=_mean_probability(singles) if singles else None,
        )


def _mean_probability(scores: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.log_softmax(-1) for each in scores]).logsumexp(0) - log(len(scores))
