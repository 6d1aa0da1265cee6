"""A prior adapted to one support set: the collapsed head that predicts, and the epochs it was summed from."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from e3bm.core.adapt import adapt_and_keep
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import MetaLearner
from e3bm.errors import DivergenceError
from e3bm.fewshot.prior.learner import PrincipalMethod
from e3bm.fewshot.support_set import SupportSet
from e3bm.methods.heads.collapsed import unit

# Beyond it a fit works in single precision: 200 classes of 1,000 examples then need 1 GB, not 2.
DOUBLE_UP_TO = 20_000_000


@dataclass(frozen=True)
class AdaptedHead:
    """Everything prediction needs: one matrix product an example, whatever the number of epochs was."""

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

    @property
    def ways(self) -> int:
        return len(self.bias)

    @property
    def feature_size(self) -> int:
        return len(self.centre)

    def space(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Features in the support space."""
        features = features.to(self.centre.dtype)
        return ((unit(features) if self.unit_length else features) - self.centre) * self.factor

    def scores(self, placed: Float[Tensor, "N D"]) -> Float[Tensor, "N W"]:
        """The ensemble's scores of features in the support space."""
        return torch.addmm(self.bias, placed, self.weight.mT)

    def epoch_scores(self, placed: Float[Tensor, "N D"]) -> Float[Tensor, "M N W"]:
        """Every single learner's scores."""
        flat = placed @ self.epoch_weight.flatten(0, 1).mT
        return flat.view(len(placed), *self.epoch_bias.shape).transpose(0, 1) + self.epoch_bias.unsqueeze(1)

    def distances(self, placed: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """How far features are from the nearest class mean; examples of the support are about 1 from its centre."""
        squares = placed.square().sum(-1, keepdim=True) - 2 * placed @ self.means.mT + self.means.square().sum(-1)
        return squares.clamp_min(0).sqrt().min(-1).values


def working_precision(features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Features in the precision that a fit of their number works in."""
    return features.double() if features.numel() <= DOUBLE_UP_TO else features.float()


@torch.no_grad()
def adapt_to(
    learner: MetaLearner, features: Float[Tensor, "S D"], labels: Int64[Tensor, " S"], ways: int, *, unit_length: bool
) -> AdaptedHead:
    """Run the epochs on one support set and fold them into one head; features and learner are of one precision."""
    method = learner.method
    assert isinstance(method, PrincipalMethod)
    support = features.unsqueeze(0)
    batch = TaskBatch(support, labels.unsqueeze(0), support[:, :1], None, ways)
    head, space = method.open(batch, unit_length=unit_length)
    axes = head.principal.axes
    # The scores of the origin are a learner's bias, those of the unit vectors its weights beside it.
    head.query = torch.cat([axes.new_zeros(1, axes.shape[-1]), torch.eye(axes.shape[-1]).to(axes)]).unsqueeze(0)
    trace, ensemble = adapt_and_keep(head, learner.hyperprior, learner.epochs, every_epoch=True)
    assert trace.epoch_scores is not None
    folded, singles = head.collapse(ensemble), trace.epoch_scores[0]
    if not bool(torch.isfinite(folded.weight).all()):
        raise DivergenceError("The fit did not stay finite; the features may be of extreme size: scale them first.")
    return AdaptedHead(
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


# Which labelled photos a prediction rests on.
#
# The collapsed head is a sum of the support features, so a score is a sum of one part per labelled photo: its
# coefficient times how alike it is to the new one. The parts and a constant of the class add up to the score exactly.


@dataclass(frozen=True)
class Influence:
    """How much one labelled photo spoke for the predicted class, or against it."""

    name: str
    label: str
    number: int
    """The photo's place among those of its class, from 0."""
    amount: float
    """Its part of the predicted class's score, compared with the mean of all classes."""


def support_coefficients(head: AdaptedHead, support: Float[Tensor, "S D"]) -> Float[Tensor, "W S"]:
    """The head's weights as sums of support features; of all such sums the one with the smallest coefficients."""
    placed = head.space(support)
    inverse: Tensor = torch.linalg.pinv(placed)
    return head.weight @ inverse


def influences(
    head: AdaptedHead, temperature: float, support: SupportSet, features: Float32[np.ndarray, " D"]
) -> tuple[Influence, ...]:
    """One part per labelled photo, the largest first; with a constant they sum to the calibrated score."""
    examples = torch.from_numpy(support.features)
    query = head.space(torch.from_numpy(features).unsqueeze(0))
    best = int(head.scores(query).argmax())
    coefficients = support_coefficients(head, examples)
    against_mean = coefficients[best] - coefficients.mean(0)
    amounts = (against_mean * (head.space(examples) @ query[0]) / temperature).tolist()
    places = [
        (label, number, name) for label, shots in support.shots.items() for number, name in enumerate(shots.names)
    ]
    found = [
        Influence(name, label, number, amount) for (label, number, name), amount in zip(places, amounts, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.amount)))
