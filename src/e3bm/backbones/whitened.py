"""Centred, partially whitened features with test-time views: the mean over views of an image, its axes half whitened.

The views are the image and its mirror image, as they are and moved by a pixel: a network that pools answers a little
differently to each, and the mean has less of that noise. The axes along which the training classes vary most are theirs
rather than those of new classes; partial whitening takes the fourth root out of each variance, so that their share of a
distance falls, and no more than that.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from e3bm.backbones.base import Backbone
from e3bm.errors import DataError

POWER = -0.25  # of the variance along an axis: -0.5 would be whitening
Moves = tuple[tuple[int, int], ...]
MOVES: Moves = ((0, 0), (1, 1), (-1, -1))  # pixels down and to the right, of the image and of its mirror image
FLOOR = 0.2  # share of the mean variance that is added to every axis: weak ones are mostly noise


class Whitening(NamedTuple):
    """Where the features of the training classes lie, and the symmetric matrix that whitens them in part."""

    centre: Float[Tensor, " D"]
    matrix: Float[Tensor, "D D"]


def whitening_of(features: Float[Tensor, "N D"], power: float = POWER) -> Whitening:
    """Centre and matrix of a table of features, computed in float64."""
    if len(features) < 2:
        raise DataError(f"Whitening needs features of at least 2 images; found {len(features)}.")
    wide = features.double()
    centre = wide.mean(0)
    variances, axes = torch.linalg.eigh((wide - centre).T @ (wide - centre) / len(wide))
    floor = FLOOR * variances.mean()
    if not floor > 0:
        raise DataError("All features are equal, so there are no axes to whiten; check how the backbone was trained.")
    matrix = (axes * (variances.clamp_min(0) + floor).pow(power)) @ axes.T
    return Whitening(centre.to(features), matrix.to(features))


def views(images: Float[Tensor, "N C H W"], moves: Moves = MOVES) -> Iterator[Float[Tensor, "N C H W"]]:
    """The images and their mirror images, moved; what comes in at a border repeats it."""
    height, width = images.shape[2:]
    most = max(abs(pixels) for move in moves for pixels in move)
    for side in (images, images.flip(-1)):
        wide = pad(side, [most] * 4, mode="replicate")
        for down, right in moves:
            yield wide[:, :, most - down :, most - right :][:, :, :height, :width]


class WhitenedBackbone(Backbone):
    """A backbone with partially whitened features; until ``put`` was called they are centred at zero and not turned."""

    def __init__(self, trunk: Backbone, moves: Moves = MOVES) -> None:
        super().__init__(channels=trunk.channels, feature_size=trunk.feature_size)
        self.trunk, self.moves = trunk, moves
        self.register_buffer("centre", torch.zeros(trunk.feature_size))
        self.register_buffer("matrix", torch.eye(trunk.feature_size))

    centre: Tensor
    matrix: Tensor

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        features = torch.stack([self.trunk(view) for view in views(images, self.moves)]).mean(0)
        return (features - self.centre) @ self.matrix

    def extra_repr(self) -> str:
        return f"moves={self.moves}"  # in the name under which features are kept

    def conv_norm_pairs(self) -> list[tuple[str, str]]:
        return [(f"trunk.{conv}", f"trunk.{norm}") for conv, norm in self.trunk.conv_norm_pairs()]

    def put(self, whitening: Whitening) -> None:
        """Whiten the features in this way from now on."""
        self.centre.copy_(whitening.centre)
        self.matrix.copy_(whitening.matrix)


__all__ = ["WhitenedBackbone", "Whitening", "views", "whitening_of"]
