"""MetaOptNet (Lee, Maji, Ravichandran, Soatto, CVPR 2019): a convex base learner, solved on each support set."""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.errors import DivergenceError, SettingsError
from e3bm.methods.base import METHODS, DirectMethod, Encoder, MethodSettings, Parts
from e3bm.methods.heads.collapsed import CollapsedHead
from e3bm.methods.heads.dual_solver import ridge_dual, svm_dual

Learner = Literal["svm", "ridge"]
PENALTIES: dict[Learner, float] = {"svm": 0.1, "ridge": 50.0}  # C, the caps; lambda, near |x|^2


class MetaOptNetSettings(MethodSettings):
    """MetaOptNet: an SVM or a ridge regression, solved on each support set."""

    title = "MetaOptNet"
    named_by = ("learner",)
    any_features = True

    name: Literal["meta_opt_net"] = "meta_opt_net"
    learner: Learner = "svm"
    """The base learner."""
    penalty: float | None = Field(default=None, gt=0)
    """C of the SVM, lambda of the ridge (near the features' squared length); unset: 0.1 or 50, as published."""
    scale: float = Field(default=1.0, gt=0)
    """Start of the learned factor on the scores."""
    looks_at_test: int | None = Field(default=None, ge=1)
    """Stop the SVM's solver after this many iterations outside training; 3 as published; unset: at its optimum."""
    smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a training target that goes to the other classes."""


@METHODS.register("meta_opt_net")
class MetaOptNet(DirectMethod):
    """Scores are c sum_i alpha_i (x_i . q) with the dual solution alpha; c is learned, there is no bias.

    ``penalty`` is the SVM's C or the ridge's lambda. ``looks_at_test`` stops the SVM's solver early outside training:
    the published tests have 3. ``smoothing`` is the share of a target that goes to the other classes in training.
    """

    settings = MetaOptNetSettings

    def __init__(
        self,
        encoder: Encoder,
        *,
        learner: Learner = "svm",
        penalty: float | None = None,
        scale: float = 1.0,
        looks_at_test: int | None = None,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if learner not in get_args(Learner):
            raise SettingsError(f"MetaOptNet's base learner is 'svm' or 'ridge', found '{learner}'.")
        penalty = PENALTIES[learner] if penalty is None else penalty
        if not penalty > 0:
            raise SettingsError(f"MetaOptNet's penalty must be positive, found {penalty}.")
        if looks_at_test is not None and (learner == "ridge" or looks_at_test < 1):
            raise SettingsError(
                f"looks_at_test stops the SVM only, after 1 look or more; found {looks_at_test} looks for '{learner}'."
            )
        check_smoothing(smoothing)
        self.encoder, self.learner, self.penalty = encoder, learner, penalty
        self.looks_at_test, self.smoothing = looks_at_test, smoothing
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    @classmethod
    def from_settings(cls, settings: MetaOptNetSettings, parts: Parts) -> "MetaOptNet":
        return cls(
            parts.encoder,
            learner=settings.learner,
            penalty=settings.penalty,
            scale=settings.scale,
            looks_at_test=settings.looks_at_test,
            smoothing=settings.smoothing,
        )

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.head(batch).scores(self.encoder(batch.query)))

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """Cross-entropy with smoothed targets."""
        assert batch.query_labels is not None
        return smoothed_loss(trace.scores, batch.query_labels, self.smoothing)

    def head(self, batch: TaskBatch) -> CollapsedHead:
        """The solved learner as one matrix for each task."""
        support = self.encoder(batch.support, batch.support_mask)
        # Which variables are at their caps is decided by the last digits: always in double precision.
        examples = support.double()
        alpha = self.dual(examples, batch)
        weight = (alpha @ examples).to(support.dtype)
        return CollapsedHead(self.scale * weight, weight.new_zeros(weight.shape[:2]), unit_length=False)

    def dual(self, support: Float[Tensor, "T S D"], batch: TaskBatch) -> Float[Tensor, "T W S"]:
        """alpha, for embedded examples."""
        gram = support @ support.mT
        one_hot = functional.one_hot(batch.support_labels, batch.ways).to(support.dtype).mT
        try:
            if self.learner == "ridge":
                return ridge_dual(gram, 2 * one_hot, batch.mask, self.penalty)
            looks = None if self.training else self.looks_at_test
            return svm_dual(gram, one_hot, batch.mask, self.penalty, looks=looks)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # torch does not list it
            raise DivergenceError(
                f"MetaOptNet's {self.learner} has no solution in double precision: the longest example has length "
                f"{float(gram.detach().diagonal(dim1=1, dim2=2).max()) ** 0.5:.3g}. Lower the features' scale."
            ) from error


def check_smoothing(smoothing: float) -> None:
    """Refuse a share outside [0, 1)."""
    if not 0 <= smoothing < 1:
        raise SettingsError(f"Label smoothing must lie in [0, 1), found {smoothing}.")


def smoothed_loss(scores: Float[Tensor, "T Q W"], labels: Int[Tensor, "T Q"], smoothing: float) -> Float[Tensor, ""]:
    """Cross-entropy with targets 1 - e for the true class and e/(W - 1) for each other.

    torch's own smoothing spreads e over all W classes, the true one too.
    """
    ways = scores.shape[-1]
    if ways < 2:
        raise SettingsError(f"A loss needs at least 2 classes, found {ways}.")
    logs = scores.log_softmax(-1)
    others = smoothing / (ways - 1)
    true = logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -((1 - smoothing - others) * true + others * logs.sum(-1)).mean()
