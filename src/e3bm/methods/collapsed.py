"""The ensemble as one head: sum_m v_m (W_m x + b_m) is linear in x (or x/|x|), so M learners fold into one matrix."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

SHORTEST = 1e-16  # squared length below which a vector counts as zero: its cosines are 0, not NaN


@dataclass(frozen=True)
class CollapsedHead:
    """Scores of new examples at the price of a single head, whatever M was."""

    weight: Float[Tensor, "T W D"]
    bias: Float[Tensor, "T W"]
    unit_length: bool  # examples are divided by their length first (cosine heads)
    centred: bool = False  # examples lose their own mean over features first

    def scores(self, features: Float[Tensor, "T Q D"]) -> Float[Tensor, "T Q W"]:
        """The ensemble's scores of features."""
        if self.centred:
            features = centre(features)
        if self.unit_length:
            features = unit(features)
        return torch.baddbmm(self.bias.unsqueeze(1), features, self.weight.mT)


def unit(vectors: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
    """Vectors of length one; a zero vector stays zero and has finite derivatives."""
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * (length.square() + SHORTEST).rsqrt()


def centre(vectors: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
    """Vectors minus their own mean over features."""
    return vectors - vectors.mean(-1, keepdim=True)


def unit_centred(vectors: Float[Tensor, "*N D"], length: Float[Tensor, ""]) -> Float[Tensor, "*N D"]:
    """The same as unit(centre(vectors)) times a length, in one pass over the features."""
    features = vectors.shape[-1]
    weight = (length / features**0.5).expand(features)
    return functional.layer_norm(vectors, (features,), weight, eps=SHORTEST / features)
