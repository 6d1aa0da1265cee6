"""Soft k-means on the queries of a task (Ren et al., ICLR 2018): class means refined by unlabelled examples.

Published: one round at rate 1, a vote for the last; squared distances without a scale.
"""

import torch
from torch import Tensor, nn

from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import Encoder
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.prototype_rounds import PrototypeRounds


class SoftKMeans(nn.Module):
    """Prototypes go to the mean of their support and of the queries, each query in the share softmax(-c |q - p|^2).

    Transductive: the queries are the unlabelled examples. With ``unit_length`` features are divided by their length.
    """

    scale: Tensor

    def __init__(self, encoder: Encoder, *, scale: float = 1.0, unit_length: bool = False) -> None:
        super().__init__()
        if not scale > 0:
            raise SettingsError(f"The scale of soft k-means' distances must be positive, found {scale}.")
        self.encoder, self.unit_length = encoder, unit_length
        self.register_buffer("scale", torch.tensor(float(scale)))

    def begin(self, batch: TaskBatch) -> PrototypeRounds:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        if self.unit_length:
            support, query = unit(support), unit(query)
        return PrototypeRounds(support, query, batch.support_labels, batch.mask, batch.ways, scale=self.scale)
