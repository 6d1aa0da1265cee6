"""Where features of any encoder look alike: unit length, then the support's own centre and scale taken out."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from e3bm.methods.collapsed import unit

SMALLEST = 1e-12  # mean squared distance from the centre below which a support set is one point
NO_VARIANCE = 1e-10  # share of the largest variance below which an axis is rounding noise
BETWEEN = 0.1  # found on validation classes: 1 is ridge regression's scatter, 0 that of discriminant analysis


def class_targets(
    labels: Int[Tensor, "T S"], mask: Bool[Tensor, "T S"], ways: int, dtype: torch.dtype
) -> Float[Tensor, "T W S"]:
    """1 where a real example belongs to a class, else 0."""
    return (functional.one_hot(labels, ways).to(dtype) * mask.unsqueeze(-1)).mT.contiguous()


def balanced_share(targets: Float[Tensor, "T W S"]) -> Float[Tensor, "T S"]:
    """Every class has the same share, whatever its shots: how many photos there are is not how often it is met."""
    return (targets / targets.sum(-1, keepdim=True)).sum(1) / targets.shape[1]


@dataclass(frozen=True)
class SupportSpace:
    """Features minus the centre of the support classes, over the support's root mean square distance from it."""

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
        cls, support: Float[Tensor, "T S D"], share: Float[Tensor, "T S"], targets: Float[Tensor, "T W S"]
    ) -> "PrincipalAxes":
        """The axes of support examples that are in their space already; ``targets`` are 1 for an example's class."""
        one_hot = targets.double()
        means = one_hot / one_hot.sum(-1, keepdim=True) @ support.double()
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
