"""A linear head that descends along the support's principal axes, from strong to weak ridge.

With scatter C of the support, residuals R = share (softmax - target) and ridge l_m, epoch m is
w <- w - alpha_m W (C + l_m)^-1 R^T X: plain descent where l_m is large, a Newton step in the metric of the scatter
where it is small. In principal coordinates C is diagonal and the inverse is a division. The members of the ensemble so
lie on a path of regularisation, and the hyperprior's votes v_m choose on it for each task.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from e3bm.core.context import TINY, Basis
from e3bm.methods.heads.collapsed import CollapsedHead, unit

SMALLEST = 1e-12  # mean squared distance from the centre below which a support set is one point
NO_VARIANCE = 1e-10  # share of the largest variance below which an axis is rounding noise
BETWEEN = 0.1  # found on validation classes: 1 is ridge regression's scatter, 0 that of discriminant analysis
LARGEST_LOSS = 4.0  # in units of log W: beyond it a task is simply wrong
LARGEST_WAYS, LARGEST_SHOTS, LARGEST_AXES = math.log(30), math.log(15), math.log(200)


def class_targets(
    labels: Int[Tensor, "T S"], mask: Bool[Tensor, "T S"], ways: int, dtype: torch.dtype
) -> Float[Tensor, "T W S"]:
    """1 where a real example belongs to a class, else 0."""
    return (functional.one_hot(labels, ways).to(dtype) * mask.unsqueeze(-1)).mT.contiguous()


def balanced_share(amounts: Float[Tensor, "T W S"]) -> Float[Tensor, "T S"]:
    """The share of every example: classes count the same, however many examples each has."""
    return (amounts / amounts.sum(-1, keepdim=True)).sum(1) / amounts.shape[1]


@dataclass(frozen=True)
class SupportSpace:
    """A space in which features of any encoder look alike.

    It is features (of unit length, unless told otherwise) minus the centre of the support classes, over the support's
    root mean square distance from it.
    """

    centre: Float[Tensor, "T 1 D"]
    factor: Float[Tensor, "T 1 1"]
    unit_length: bool

    @classmethod
    def of(
        cls, support: Float[Tensor, "T S D"], share: Float[Tensor, "T S"], *, unit_length: bool = True
    ) -> "SupportSpace":
        """The space of T support sets."""
        features = unit(support) if unit_length else support
        weight = share.to(features.dtype).unsqueeze(-1)
        centre = (weight * features).sum(1, keepdim=True)
        square = (weight * (features - centre).square()).sum((1, 2)).view(-1, 1, 1)
        return cls(centre, (square + SMALLEST).rsqrt(), unit_length)

    def __call__(self, features: Float[Tensor, "T N D"]) -> Float[Tensor, "T N D"]:
        """Features in this space."""
        features = unit(features) if self.unit_length else features
        return (features - self.centre) * self.factor


@dataclass(frozen=True)
class PrincipalAxes:
    """An orthonormal basis of the span of T support sets, in which the scatter of their examples is diagonal.

    Gradient descent on a linear head never leaves this span, so min(S, D) coordinates are all there is to learn. The
    scatter of examples around their class means counts in full, that of the class means only by BETWEEN: it is signal.
    """

    axes: Float[Tensor, "T D R"]
    spectrum: Float[Tensor, "T R"]  # scatter along the axes

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        support: Float[Tensor, "T S D"],
        share: Float[Tensor, "T S"],
        targets: Float[Tensor, "T W S"],
        amounts: Float[Tensor, "T W S"] | None = None,
    ) -> "PrincipalAxes":
        """The axes of support examples that are in their space already.

        ``targets`` are 1 for an example's class, ``amounts`` its weight there (1 unless told otherwise).
        """
        one_hot = targets.double()
        weight = one_hot if amounts is None else amounts.double()
        means = weight / weight.sum(-1, keepdim=True) @ support.double()
        rows = support.double() - (1 - BETWEEN**0.5) * (one_hot.mT @ means)
        weighted = rows * share.double().sqrt().unsqueeze(-1)
        examples, features = support.shape[1:]
        # In double precision: eigh of many equal eigenvalues does not converge in single.
        if examples > features:
            spectrum, axes = torch.linalg.eigh(weighted.mT @ weighted)
            return cls(axes.to(support), spectrum.clamp_min(0).to(support))
        spectrum, vectors = torch.linalg.eigh(weighted @ weighted.mT)
        # Directions without variance have no axis: their coordinates are zero.
        kept = spectrum > spectrum[..., -1:].clamp_min(SMALLEST) * NO_VARIANCE
        inverse = torch.where(kept, spectrum.clamp_min(SMALLEST).rsqrt(), 0.0)
        axes = weighted.mT @ (vectors * inverse.unsqueeze(-2))
        return cls(axes.to(support), torch.where(kept, spectrum, 0.0).to(support))


class PrincipalState(NamedTuple):
    """A learner, its support scores, and the part of each score that the example itself contributed."""

    weight: Float[Tensor, "T W R"]
    bias: Float[Tensor, "T W"]
    scores: Float[Tensor, "T W S"]
    own: Float[Tensor, "T W S"]
    epoch: int


class PrincipalDirection(NamedTuple):
    """The gradient, and the residuals it is made of."""

    weight: Float[Tensor, "T W R"]
    bias: Float[Tensor, "T W"]
    residual: Float[Tensor, "T W S"]


class PrincipalEnsemble(NamedTuple):
    """Weighted sums of weights and biases."""

    weight: Float[Tensor, "T W R"]
    bias: Float[Tensor, "T W"]


class PrincipalHead:
    """The moves of the inner loop (start, direction, step, vote, scores) for such heads on T tasks."""

    def __init__(
        self,
        support: Float[Tensor, "T S R"],
        query: Float[Tensor, "T Q R"],
        targets: Float[Tensor, "T W S"],
        amounts: Float[Tensor, "T W S"],
        share: Float[Tensor, "T S"],
        principal: PrincipalAxes,
        ridges: Float[Tensor, " M"],
        *,
        scale: Float[Tensor, ""],
        bias_share: Float[Tensor, ""],
    ) -> None:
        """``scale`` and ``bias_share`` make the start: scale (mu.x - bias_share |mu|^2/2) for class means mu.

        ``targets`` are 1 for an example's class, ``amounts`` its weight there.
        """
        self.support, self.query, self.targets, self.share = support, query, targets, share.unsqueeze(1)
        self.principal, self.ridges, self.scale = principal, ridges, scale
        self.ways = targets.shape[1]
        self.counts = amounts.sum(-1)
        self.real = targets.sum(1, keepdim=True)
        self.class_share = amounts / self.counts.unsqueeze(-1)
        self.means = self.class_share @ support
        self.start_bias = -scale * bias_share * self.means.square().sum(-1) / 2
        self.squares = support.square() * share.unsqueeze(-1)
        self.facts = self._facts()

    def basis(self) -> Basis:
        return Basis(None, lambda: self.support, lambda: self.query, self.real.squeeze(1) > 0)

    def start(self) -> PrincipalState:
        # An example's part in its own class mean is |x|^2 / shots.
        lengths = self.support.square().sum(-1).unsqueeze(1)
        weight = self.scale * self.means
        return PrincipalState(
            weight, self.start_bias, self._scores(weight, self.start_bias), self.scale * self.class_share * lengths, 0
        )

    def empty(self) -> PrincipalEnsemble:
        return PrincipalEnsemble(torch.zeros_like(self.means), torch.zeros_like(self.start_bias))

    def direction(self, state: PrincipalState) -> PrincipalDirection:
        residual = (state.scores.softmax(1) - self.targets) * self.real
        weighted = residual * self.share
        return PrincipalDirection(weighted @ self.support, weighted.sum(-1), residual)

    def observe(self, state: PrincipalState, direction: PrincipalDirection) -> "PrincipalObservation":
        return PrincipalObservation(self, state, direction)

    def step(self, state: PrincipalState, direction: PrincipalDirection, rate: Float[Tensor, " T"]) -> PrincipalState:
        # For W classes at equal odds the loss has curvature 1/W: with it a rate of 1 is about a Newton step.
        pace = self.ways * rate.view(-1, 1, 1)
        inverse = 1 / (self.principal.spectrum + self.ridges[state.epoch])
        weight = state.weight - pace * direction.weight * inverse.unsqueeze(1)
        bias = state.bias - pace.squeeze(-1) * direction.bias
        leverage = (self.squares @ inverse.unsqueeze(-1)).mT + self.share
        own = state.own - pace * leverage * direction.residual
        return PrincipalState(weight, bias, self._scores(weight, bias), own, state.epoch + 1)

    def vote(
        self, ensemble: PrincipalEnsemble, state: PrincipalState, weight: Float[Tensor, " T"]
    ) -> PrincipalEnsemble:
        return PrincipalEnsemble(
            ensemble.weight + weight.view(-1, 1, 1) * state.weight, ensemble.bias + weight.view(-1, 1) * state.bias
        )

    def scores(self, ensemble: PrincipalEnsemble) -> Float[Tensor, "T Q W"]:
        return torch.baddbmm(ensemble.bias.unsqueeze(1), self.query, ensemble.weight.mT)

    def collapse(self, ensemble: PrincipalEnsemble) -> CollapsedHead:
        """The one matrix and bias whose scores of features in the support space are the ensemble's."""
        return CollapsedHead(ensemble.weight @ self.principal.axes.mT, ensemble.bias, unit_length=False)

    def loss(self, scores: Float[Tensor, "T W S"]) -> Float[Tensor, " T"]:
        """Cross-entropy of the support, each class with the same share."""
        return -(scores.log_softmax(1) * self.targets * self.share).sum((1, 2))

    def _scores(self, weight: Float[Tensor, "T W R"], bias: Float[Tensor, "T W"]) -> Float[Tensor, "T W S"]:
        return torch.baddbmm(bias.unsqueeze(-1), weight, self.support.mT)

    def _facts(self) -> Float[Tensor, "T 4"]:
        """What is known of a task before its first epoch; larger tasks than any in training look like the largest."""
        ways = self.means.new_full((len(self.means),), float(self.ways)).log()
        # The mean over classes, not of the total: it is what a new example of a class meets.
        shots = self.counts.log().mean(-1)
        between = self.means.square().sum(-1).mean(-1)
        # Class means of K examples also carry 1/K of the scatter inside a class; only repeated classes tell it.
        inside = (1 - between).clamp_min(0) * (self.counts / (self.counts - 1).clamp_min(1)).mean(-1)
        repeated = (self.counts > 1).to(ways.dtype).mean(-1)
        spectrum = self.principal.spectrum
        # How many axes share the scatter: (sum k)^2 / sum k^2.
        axes = 2 * (spectrum.sum(-1) + TINY).log() - (spectrum.square().sum(-1) + TINY).log()
        return torch.stack(
            [
                ways.clamp(max=LARGEST_WAYS) - 1.5,
                shots.clamp(max=LARGEST_SHOTS) - 1,
                repeated * (1 - inside),
                axes.clamp(0, LARGEST_AXES) - 2,
            ],
            -1,
        )


class PrincipalObservation:
    """What a hyperprior may see of such a head at an epoch."""

    def __init__(self, head: PrincipalHead, state: PrincipalState, direction: PrincipalDirection) -> None:
        self._head, self._state, self._direction = head, state, direction

    def coefficients(self) -> Float[Tensor, "T R W"]:
        return self._direction.weight.mT

    def squared_norm(self) -> Float[Tensor, " T"]:
        return self._direction.weight.square().sum((1, 2)) + self._direction.bias.square().sum(-1)

    def loss(self) -> Float[Tensor, " T"]:
        return self._head.loss(self._state.scores)

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        return torch.baddbmm(self._state.bias.unsqueeze(1), self._head.query, self._state.weight.mT)

    def left_out_loss(self) -> Float[Tensor, " T"]:
        """The loss without each example's own contribution: nearly what leaving it out would give, at no cost."""
        return self._head.loss(self._state.scores - self._state.own)

    def scalars(self) -> Float[Tensor, "T 7"]:
        """Log gradient norm, training loss, left-out loss (in units of log W), and the facts of the task."""
        unit = math.log(self._head.ways)
        moving = [
            (self.squared_norm() + 1e-8).log() / 4 + 1,
            self.loss() / unit,
            (self.left_out_loss() / unit).clamp(max=LARGEST_LOSS) - 1,
        ]
        return torch.cat([torch.stack(moving, -1), self._head.facts], -1)
