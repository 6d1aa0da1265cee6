"""Matching Networks (Vinyals et al., NeurIPS 2016), without full context embeddings: attention over the support."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.methods.base import DirectMethod, Encoder
from e3bm.methods.heads.collapsed import unit


class AttentionHead(DirectMethod):
    """A query's class probabilities: its attention, a softmax over scaled cosines, summed over each class's support."""

    def __init__(self, encoder: Encoder, scale: float = 10.0) -> None:
        super().__init__()
        self.encoder, self.scale = encoder, scale

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.scores(batch))

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Logarithms of the class probabilities; padded examples get no attention."""
        support, query = unit(self.encoder(batch.support, batch.support_mask)), unit(self.encoder(batch.query))
        cosines = self.scale * torch.bmm(query, support.mT)
        attention = cosines.masked_fill(~batch.mask.unsqueeze(1), -torch.inf).log_softmax(-1)
        others = functional.one_hot(batch.support_labels, batch.ways).mT == 0  # [T, W, S]
        by_class = attention.unsqueeze(2).masked_fill(others.unsqueeze(1), -torch.inf)
        return by_class.logsumexp(-1)
