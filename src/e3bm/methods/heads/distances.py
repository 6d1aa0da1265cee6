"""Squared distances of examples to a few points."""

import torch
from jaxtyping import Float
from torch import Tensor


def squared_distances(examples: Float[Tensor, "T N D"], points: Float[Tensor, "T W D"]) -> Float[Tensor, "T N W"]:
    """|x - p|^2 for every pair, by one product.

    Both are first moved by the points' mean: far from the origin the expanded square would lose its digits. The move
    changes no distance, so no derivative goes through it.
    """
    middle = points.detach().mean(1, keepdim=True)
    examples, points = examples - middle, points - middle
    squares = examples.square().sum(-1).unsqueeze(2) + points.square().sum(-1).unsqueeze(1)
    return torch.baddbmm(squares, examples, points.mT, alpha=-2)
