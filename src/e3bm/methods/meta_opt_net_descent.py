"""MetaOptNet's ridge regression with an inner loop: gradient descent to the same optimum, in epochs that can vote."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import AdaptationTrace
from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import Encoder
from e3bm.methods.heads.ridge import RidgeHead
from e3bm.methods.meta_opt_net import PENALTIES, check_smoothing, smoothed_loss


class MetaOptNetDescent(nn.Module):
    """Targets are 2 Y and scores c W x, as in the published code; many epochs of a small rate reach its solution."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        penalty: float = PENALTIES["ridge"],
        scale: float = 1.0,
        smoothing: float = 0.0,
        second_order: bool = True,
    ) -> None:
        super().__init__()
        if not penalty > 0:
            raise SettingsError(f"MetaOptNet's penalty must be positive, found {penalty}.")
        check_smoothing(smoothing)
        self.encoder, self.penalty, self.smoothing, self.second_order = encoder, penalty, smoothing, second_order
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def begin(self, batch: TaskBatch) -> RidgeHead:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        targets = 2 * functional.one_hot(batch.support_labels, batch.ways).to(support.dtype).mT
        return RidgeHead(
            support,
            query,
            targets,
            batch.mask,
            penalty=self.penalty,
            scale=self.scale,
            second_order=self.second_order,
        )

    def training_loss(self, trace: AdaptationTrace, batch: TaskBatch, progress: float) -> Tensor:
        """Cross-entropy with smoothed targets."""
        assert batch.query_labels is not None
        return smoothed_loss(trace.scores, batch.query_labels, self.smoothing)
