"""Stein variational gradient descent (Liu and Wang, 2016) as Bayesian MAML uses it: particles that move together.

Each particle follows all particles' scores, weighted by a kernel K = exp(-|p - q|^2 / h), and is pushed away from the
others by sum_q K (p - q)/h: the kernel's gradient would have 2/h, the published code has 1/h.
"""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Width = Literal["matrix", "pairs", "mean"]
NARROWEST = 1e-12  # equal particles have a kernel too


class Kernel(NamedTuple):
    """How much every particle minds every other, the push it gets from all of them, and the kernel's width."""

    values: Float[Tensor, "*B P P"]
    repulsion: Float[Tensor, "*B P N"]
    width: Float[Tensor, "*B"]


def stein_kernel(particles: Float[Tensor, "*B P N"], width: Width) -> Kernel:
    """The kernel between particles; a single one minds itself alone and is not pushed."""
    count = particles.shape[-2]
    if count == 1:
        one = torch.ones_like(particles[..., :1])
        return Kernel(one, torch.zeros_like(particles), one[..., 0, 0])
    # Differences first: by inner products, float32 would lose the digits of particles that are close.
    squares = (particles.unsqueeze(-2) - particles.unsqueeze(-3)).square().sum(-1)
    found = kernel_width(squares, width).clamp_min(NARROWEST)
    wide = found[..., None, None]
    values = (-squares / wide).exp()
    repulsion = (values.sum(-1, keepdim=True) * particles - values @ particles) / wide
    return Kernel(values, repulsion, found)


def kernel_width(squares: Float[Tensor, "*B P P"], width: Width) -> Float[Tensor, "*B"]:
    """h from squared distances: their median over the whole matrix, zeros included, or the square of the median or the
    mean distance of pairs; over log P. Medians are constants for gradients.
    """
    count = squares.shape[-1]
    if width == "matrix":
        return _median(squares.detach().flatten(-2)) / math.log(count)
    rows, columns = torch.triu_indices(count, count, 1, device=squares.device)
    pairs = squares[..., rows, columns]
    if width == "pairs":
        return _median(pairs.detach().sqrt()).square() / math.log(count)
    # A distance of zero has no derivative; here it counts as a constant.
    distances = torch.where(pairs > 0, pairs, torch.ones_like(pairs)).sqrt() * (pairs > 0)
    return distances.mean(-1).square() / math.log(count)


def stein_direction(
    particles: Float[Tensor, "*B P N"], scores: Float[Tensor, "*B P N"], width: Width, *, repulsion: bool = True
) -> Float[Tensor, "*B P N"]:
    """Where particles go, given the scores of each: the derivatives of its log posterior."""
    kernel = stein_kernel(particles, width)
    moved = kernel.values @ scores
    return (moved + kernel.repulsion if repulsion else moved) / particles.shape[-2]


def _median(values: Float[Tensor, "*B N"]) -> Float[Tensor, "*B"]:
    """The middle value, or the mean of the middle two."""
    ordered, count = values.sort(-1).values, values.shape[-1]
    return (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
