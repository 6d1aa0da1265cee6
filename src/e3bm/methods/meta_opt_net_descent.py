"""MetaOptNet's ridge regression with an inner loop: gradient descent to the same optimum, in epochs that can vote."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.heads.ridge import RidgeHead
from e3bm.methods.meta_opt_net import PENALTIES, check_smoothing, smoothed_loss


class MetaOptNetDescentSettings(InnerLoopSettings):
    """MetaOptNet's ridge regression by gradient descent."""

    title = "MetaOptNet (descent)"
    any_features = True

    name: Literal["meta_opt_net_descent"] = "meta_opt_net_descent"
    rate: float = Field(default=0.1, gt=0)
    """alpha' of every epoch before training, in units of 1/(mean squared length + lambda)."""
    penalty: float = Field(default=PENALTIES["ridge"], gt=0)
    """lambda, near the features' squared length."""
    scale: float = Field(default=1.0, gt=0)
    """Start of the learned factor on the scores."""
    smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a training target that goes to the other classes."""


@METHODS.register("meta_opt_net_descent")
class MetaOptNetDescent(InnerLoopMethod):
    """Targets are 2 Y and scores c W x, as in the published code; many epochs of a small rate reach its solution."""

    settings = MetaOptNetDescentSettings

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

    @classmethod
    def from_settings(cls, settings: MetaOptNetDescentSettings, parts: Parts) -> "MetaOptNetDescent":
        return cls(
            parts.encoder,
            penalty=settings.penalty,
            scale=settings.scale,
            smoothing=settings.smoothing,
            second_order=settings.order == "second",
        )

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

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """Cross-entropy with smoothed targets."""
        assert batch.query_labels is not None
        return smoothed_loss(trace.scores, batch.query_labels, self.smoothing)
