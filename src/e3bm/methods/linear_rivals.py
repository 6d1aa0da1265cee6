"""Linear classifiers on features, each solved exactly for each task: ridge regression and logistic regression.

Both have a bias that is not penalised, work in the span of the support (a system of its size, whatever the features
are) and are solved in double precision.
"""

from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, DirectMethod, Encoder, MethodSettings, Parts
from e3bm.methods.heads.collapsed import CollapsedHead, unit
from e3bm.methods.heads.dual_solver import ridge_dual
from e3bm.methods.heads.logistic_solver import logistic_dual


class RidgeRegressionSettings(MethodSettings):
    """Ridge regression on the features of each task."""

    title = "ridge regression"
    any_features = True

    name: Literal["ridge_regression"] = "ridge_regression"
    penalty: float = Field(default=1.0, gt=0)
    """Weight of |W|^2."""
    unit_length: bool = True
    """Whether features are divided by their length."""
    scale: float = Field(default=10.0, gt=0)
    """Factor on the regressed values."""


class LogisticRegressionSettings(MethodSettings):
    """Logistic regression on the features of each task."""

    title = "logistic regression"
    any_features = True

    name: Literal["logistic_regression"] = "logistic_regression"
    inverse_penalty: float = Field(default=1.0, gt=0)
    """C: weight of the examples' losses relative to |W|^2 / 2."""
    unit_length: bool = True
    """Whether features are divided by their length."""


@METHODS.register("ridge_regression")
class RidgeRegression(DirectMethod):
    """Regression onto the classes' one-hot targets: |x W + b - Y|^2 + penalty |W|^2.

    What it regresses lies near 0 and 1; scores are ``scale`` times that, so that a softmax can be sure.
    """

    settings = RidgeRegressionSettings

    def __init__(
        self, encoder: Encoder, *, penalty: float = 1.0, unit_length: bool = True, scale: float = 10.0
    ) -> None:
        super().__init__()
        _check_positive("Ridge regression's penalty", penalty)
        _check_positive("Ridge regression's scale", scale)
        self.encoder, self.penalty, self.unit_length, self.scale = encoder, penalty, unit_length, scale

    @classmethod
    def from_settings(cls, settings: RidgeRegressionSettings, parts: Parts) -> "RidgeRegression":
        return cls(parts.encoder, penalty=settings.penalty, unit_length=settings.unit_length, scale=settings.scale)

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.head(batch).scores(self.encoder(batch.query)))

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


@METHODS.register("logistic_regression")
class LogisticRegression(DirectMethod):
    """Softmax regression: inverse_penalty x sum of cross-entropies + 1/2 |W|^2, the convention of common libraries."""

    settings = LogisticRegressionSettings

    def __init__(self, encoder: Encoder, *, inverse_penalty: float = 1.0, unit_length: bool = True) -> None:
        super().__init__()
        _check_positive("Logistic regression's inverse penalty", inverse_penalty)
        self.encoder, self.inverse_penalty, self.unit_length = encoder, inverse_penalty, unit_length

    @classmethod
    def from_settings(cls, settings: LogisticRegressionSettings, parts: Parts) -> "LogisticRegression":
        return cls(parts.encoder, inverse_penalty=settings.inverse_penalty, unit_length=settings.unit_length)

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.head(batch).scores(self.encoder(batch.query)))

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
