"""Several independently trained models that answer together, as in the paper's 5x MAML."""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor, nn

from e3bm.core.trace import AdaptationTrace
from e3bm.episode import TaskBatch


class AveragedLearners(nn.Module):
    """Scores are the logarithm of the mean probability; rates, weights and losses are means."""

    def __init__(self, learners: Sequence[nn.Module]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)

    def forward(self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None) -> AdaptationTrace:
        traces = [learner(batch, every_epoch=every_epoch, epochs=epochs) for learner in self.learners]
        mean = lambda part: torch.stack([part(trace) for trace in traces]).mean(0)
        singles = [trace.epoch_scores for trace in traces if trace.epoch_scores is not None]
        return AdaptationTrace(
            scores=_mean_probability([trace.scores for trace in traces]),
            rates=mean(lambda trace: trace.rates),
            weights=mean(lambda trace: trace.weights),
            losses=mean(lambda trace: trace.losses),
            epoch_scores=_mean_probability(singles) if singles else None,
        )


def _mean_probability(scores: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.log_softmax(-1) for each in scores]).logsumexp(0) - log(len(scores))
