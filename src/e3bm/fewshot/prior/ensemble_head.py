"""A prior adapted to one support set: the ensemble as one linear head, and the epochs it was summed from."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from e3bm.core.adapt import adapt_and_keep
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import MetaLearner
from e3bm.errors import DivergenceError
from e3bm.fewshot.prior.canonical import canonical
from e3bm.fewshot.prior.head_arrays import HeadArrays
from e3bm.fewshot.prior.learner import PrincipalMethod
from e3bm.methods.heads.collapsed import unit

# Beyond it a fit works in single precision: 200 classes of 1,000 examples then need 1 GB, not 2.
DOUBLE_UP_TO = 20_000_000


@dataclass(frozen=True)
class EnsembleHead:
    """Everything prediction needs: one matrix product an example, whatever the number of epochs was.

    HeadArrays is the same without torch, for programs that only predict. Its tensors are copies in the canonical form,
    so that equal heads predict the same to the last bit.
    """

    centre: Float[Tensor, " D"]
    factor: Float[Tensor, ""]
    unit_length: bool
    weight: Float[Tensor, "W D"]
    bias: Float[Tensor, " W"]
    means: Float[Tensor, "W D"]
    epoch_weight: Float[Tensor, "M W D"]
    epoch_bias: Float[Tensor, "M W"]
    rates: Float[Tensor, " M"]
    votes: Float[Tensor, " M"]
    losses: Float[Tensor, " M"]
    facts: Float[Tensor, " F"]

    def __post_init__(self) -> None:
        dtype = self.centre.dtype
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                object.__setattr__(self, field.name, canonical(value, dtype))

    @classmethod
    def of(cls, arrays: HeadArrays) -> "EnsembleHead":
        """The head that a prediction's arrays came from."""
        tensors: dict[str, Any] = {name: torch.from_numpy(value) for name, value in arrays.arrays().items()}
        return cls(unit_length=arrays.unit_length, **tensors)

    @property
    def ways(self) -> int:
        return len(self.bias)

    @property
    def feature_size(self) -> int:
        return len(self.centre)

    def space(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Features in the support space."""
        features = canonical(features, self.centre.dtype)
        return ((unit(features) if self.unit_length else features) - self.centre) * self.factor

    def scores(self, placed: Float[Tensor, "N D"]) -> Float[Tensor, "N W"]:
        """The ensemble's scores of features in the support space."""
        return torch.addmm(self.bias, placed, self.weight.mT)

    def epoch_scores(self, placed: Float[Tensor, "N D"]) -> Float[Tensor, "M N W"]:
        """The scores of every epoch alone."""
        flat = placed @ self.epoch_weight.flatten(0, 1).mT
        return flat.view(len(placed), *self.epoch_bias.shape).transpose(0, 1) + self.epoch_bias.unsqueeze(1)

    def distances(self, placed: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """How far features are from the nearest class mean; examples of the support are about 1 from its centre."""
        squares = placed.square().sum(-1, keepdim=True) - 2 * placed @ self.means.mT + self.means.square().sum(-1)
        return squares.clamp_min(0).sqrt().min(-1).values


def working_precision(features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """A canonical copy of features in the precision that a fit of their number works in."""
    return canonical(features, torch.double if features.numel() <= DOUBLE_UP_TO else torch.float)


@torch.no_grad()
def fit_ensemble_head(
    learner: MetaLearner,
    features: Float[Tensor, "S D"],
    labels: Int64[Tensor, " S"],
    ways: int,
    *,
    unit_length: bool,
    weights: Float[Tensor, " S"] | None = None,
) -> EnsembleHead:
    """Run a prior's epochs on one support set and sum them to one head; features and learner have one precision."""
    method = learner.method
    assert isinstance(method, PrincipalMethod)
    support = features.unsqueeze(0)
    batch = TaskBatch(support, labels.unsqueeze(0), support[:, :1], None, ways)
    amounts = None if weights is None else weights.unsqueeze(0)
    head, space = method.open(batch, unit_length=unit_length, weights=amounts)
    axes = head.principal.axes
    # A learner's score of the origin is its bias; its scores of the unit vectors are its weights plus the bias.
    head.query = torch.cat([axes.new_zeros(1, axes.shape[-1]), torch.eye(axes.shape[-1]).to(axes)]).unsqueeze(0)
    trace, ensemble = adapt_and_keep(head, learner.hyperprior, learner.epochs, every_epoch=True)
    assert trace.epoch_scores is not None
    folded, singles = head.collapse(ensemble), trace.epoch_scores[0]
    if not bool(torch.isfinite(folded.weight).all()):
        raise DivergenceError(
            "The fit gave numbers that are not finite; the features may be extremely large or "
            "small, so scale them first."
        )
    return EnsembleHead(
        centre=space.centre.view(-1),
        factor=space.factor.view(()),
        unit_length=unit_length,
        weight=folded.weight[0],
        bias=folded.bias[0],
        means=(head.means @ axes.mT)[0],
        epoch_weight=(singles[:, 1:] - singles[:, :1]).mT @ axes[0].mT,
        epoch_bias=singles[:, 0],
        rates=trace.rates[0],
        votes=trace.weights[0],
        losses=trace.losses[0],
        facts=head.facts[0],
    )
