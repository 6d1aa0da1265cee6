"""Linear classifiers on features, each solved exactly for each task: ridge regression and logistic regression.

Both have a bias that is not penalised, work in the span of the support (a system of its size, whatever the features
are) and are solved in double precision.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import AdaptationTrace
from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import Encoder
from e3bm.methods.heads.collapsed import CollapsedHead, unit
from e3bm.methods.heads.dual_solver import ridge_dual
from e3bm.methods.heads.logistic_solver import logistic_dual
from e3bm.methods.settled import settled


class RidgeRegression(nn.Module):
    """Regression onto the classes' one-hot targets: |x W + b - Y|^2 + penalty |W|^2.

    What it regresses lies near 0 and 1; scores are ``scale`` times that, so that a softmax can be sure.
    """

    def __init__(
        self, encoder: Encoder, *, penalty: float = 1.0, unit_length: bool = True, scale: float = 10.0
    ) -> None:
        super().__init__()
        _check_positive("Ridge regression's penalty", penalty)
        _check_positive("Ridge regression's scale", scale)
        self.encoder, self.penalty, self.unit_length, self.scale = encoder, penalty, unit_length, scale

    def forward(self, batch: TaskBatch) -> AdaptationTrace:
        return settled(self.head(batch).scores(self.encoder(batch.query)))

    def head(self, batch: TaskBatch) -> CollapsedHead:
        """The solution as one matrix and bias for each task."""
        support, one_hot, real = _examples(self.encoder, batch, self.unit_length)
        # The best bias makes the means meet: regress what is left when they are taken away.
        share = real / real.sum(-1, keepdim=True)
        middle, usual = share @ support, (one_hot * share).sum(-1, keepdim=True)
        centred = support - middle
        alpha = ridge_dual(centred @ centred.mT, one_hot - usual, batch.mask, self.penalty)
        weight = alpha @ centred
        bias = (usual - weight @ middle.mT).squeeze(-1)
        return _head(self.scale * weight, self.scale * bias, batch, self.unit_length)


class LogisticRegression(nn.Module):
    """Softmax regression: inverse_penalty x sum of cross-entropies + 1/2 |W|^2, the convention of common libraries."""

    def __init__(self, encoder: Encoder, *, inverse_penalty: float = 1.0, unit_length: bool = True) -> None:
        super().__init__()
        _check_positive("Logistic regression's inverse penalty", inverse_penalty)
        self.encoder, self.inverse_penalty, self.unit_length = encoder, inverse_penalty, unit_length

    def forward(self, batch: TaskBatch) -> AdaptationTrace:
        return settled(self.head(batch).scores(self.encoder(batch.query)))

    def head(self, batch: TaskBatch) -> CollapsedHead:
        """The solution as one matrix and bias for each task."""
        support, one_hot, _ = _examples(self.encoder, batch, self.unit_length)
        alpha, bias = logistic_dual(support @ support.mT, one_hot, batch.mask, self.inverse_penalty)
        return _head(alpha @ support, bias, batch, self.unit_length)


def _examples(
    encoder: Encoder, batch: TaskBatch, unit_length: bool
) -> tuple[Float[Tensor, "T S D"], Float[Tensor, "T W S"], Float[Tensor, "T 1 S"]]:
    """The support, its targets and 1 where it is real, in double precision."""
    support = encoder(batch.support, batch.support_mask).double()
    one_hot = functional.one_hot(batch.support_labels, batch.ways).to(support.dtype).mT
    return unit(support) if unit_length else support, one_hot, batch.mask.to(support.dtype).unsqueeze(1)


def _head(
    weight: Float[Tensor, "T W D"], bias: Float[Tensor, "T W"], batch: TaskBatch, unit_length: bool
) -> CollapsedHead:
    dtype = batch.query.dtype
    return CollapsedHead(weight.to(dtype), bias.to(dtype), unit_length=unit_length)


def _check_positive(what: str, value: float) -> None:
    if not value > 0:
        raise SettingsError(f"{what} must be positive, found {value}.")
