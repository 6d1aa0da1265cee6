"""Several independently trained models that answer together, as in the paper's 5x MAML."""

from collections.abc import Sequence
from math import log
from pathlib import Path

import torch
from torch import Tensor, nn

from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import Learner
from e3bm.errors import SettingsError
from e3bm.runs.folder.run import EnsembleSettings, read_run
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.settings import read_settings


def make_ensemble(members: list[Path], folder: Path) -> RunFolder:
    """A run folder for several runs together; test it like any other."""
    for member in members:
        if read_run(member).kind != "train":
            raise SettingsError(f"{member} is not a run of `e3bm train`; only such runs can be members of an ensemble.")
    run = RunFolder(folder)
    run.create("ensemble", read_settings(EnsembleSettings, {"members": members}), {})
    return run


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
        singles = [trace.epoch_scores for trace in adapted if trace.epoch_scores is not None]
        return AdaptationTrace(
            scores=scores,
            rates=_mean([trace.rates for trace in adapted]),
            weights=_mean([trace.weights for trace in adapted]),
            losses=_mean([trace.losses for trace in adapted]),
            epoch_scores=_mean_probability(singles) if singles else None,
        )


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).mean(0)


def _mean_probability(scores: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.log_softmax(-1) for each in scores]).logsumexp(0) - log(len(scores))
