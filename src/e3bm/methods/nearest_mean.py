"""The nearest class mean by cosine: the yardstick for features, with nothing learned per task."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.core.adapt import AdaptationTrace
from e3bm.core.episode import TaskBatch
from e3bm.methods.base import Encoder
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.labelled import LabelledSupport


class NearestMean(nn.Module):
    """Scores are the scaled cosines to the class means; the trace has one epoch in which nothing happens."""

    def __init__(self, encoder: Encoder, scale: float = 10.0) -> None:
        super().__init__()
        self.encoder, self.scale = encoder, scale

    def forward(self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None) -> AdaptationTrace:
        scores = self.scores(batch)
        none = scores.new_zeros(len(batch), 1)
        return AdaptationTrace(scores, none, none + 1, none, scores.unsqueeze(1) if every_epoch else None)

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Cosines of queries and class means of unit-length support examples."""
        support, query = unit(self.encoder(batch.support, batch.support_mask)), unit(self.encoder(batch.query))
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        return self.scale * torch.bmm(query, unit(labelled.class_means(support)).mT)
