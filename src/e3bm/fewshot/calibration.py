"""Temperature: how far scores are stretched before they are called probabilities."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from e3bm.fewshot.leave_one_out import HeldOut
from e3bm.fewshot.trust_prior import TrustPrior

STEPS = torch.linspace(-2.5, 2.5, 201, dtype=torch.double)
LOOSENESS = 0.5  # standard deviation of log temperature before any example was left out


def left_out_log_temperature(scores: Float[Tensor, "N W"], labels: Int64[Tensor, " N"]) -> float:
    """The logarithm of the temperature that suits left-out examples best, near 0 where they are few."""
    losses = len(labels) * losses_by_temperature(scores, labels).double()
    return float(STEPS[int((losses + STEPS.square() / (2 * LOOSENESS**2)).argmin())])


def losses_by_temperature(scores: Float[Tensor, "N W"], labels: Int64[Tensor, " N"]) -> Float[Tensor, " G"]:
    """Mean cross-entropy at every temperature that is considered."""
    return torch.stack([functional.cross_entropy(scores * math.exp(-step), labels) for step in STEPS.tolist()])


def temperature(held_out: HeldOut | None, shots: float, trust: TrustPrior) -> float:
    """The prior's temperature for so many shots, moved by what leaving out says as far as that is to be trusted."""
    found = trust.temperature_offset(shots)
    if held_out is not None:
        found += trust.temperature_slope(shots) * left_out_log_temperature(held_out.scores, held_out.labels)
    return math.exp(found)
