"""The ensemble as one head: sum_m v_m (W_m x + b_m) is linear in x (or x/|x|), so M learners fold into one matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


# One matrix product for so many epochs is cheaper than one operation for each; memory still does not grow with M.
EPOCHS_A_FOLD = 25


class WeightedSum(NamedTuple):
    """What is folded, the sum of its weights, and the terms that still wait."""

    folded: Float[Tensor, "T W N"]
    weight: Float[Tensor, " T"]
    waiting: tuple[tuple[Tensor, Tensor], ...] = ()

    @classmethod
    def nothing(cls, like: Float[Tensor, "T W N"]) -> "WeightedSum":
        """The sum of no terms."""
        zero = like.new_zeros(())
        return cls(zero.expand_as(like), zero.expand(len(like)))

    @classmethod
    def of_learners(
        cls,
        directions: Sequence[Float[Tensor, "T W N"]],
        rates: Float[Tensor, "T M"],
        weights: Float[Tensor, "T M"],
    ) -> "WeightedSum":
        """The sum of the learners that steps along known directions lead to, from zero.

        An update counts in every learner after it: with the sum of their weights.
        """
        share = rates * weights.flip(1).cumsum(1).flip(1)
        rows = torch.stack(list(directions), 1).flatten(2)
        return cls(-torch.bmm(share.unsqueeze(1), rows).view_as(directions[0]), weights.sum(1))

    def plus(self, term: Float[Tensor, "T W N"], weight: Float[Tensor, " T"]) -> "WeightedSum":
        """The sum with one more term."""
        longer = WeightedSum(self.folded, self.weight, (*self.waiting, (term, weight)))
        return longer if len(longer.waiting) < EPOCHS_A_FOLD else longer.settled()

    def settled(self) -> "WeightedSum":
        """The same sum with nothing waiting."""
        if not self.waiting:
            return self
        terms, weights = zip(*self.waiting, strict=True)
        rows, row = torch.stack(terms, 1).flatten(2), torch.stack(weights, 1)
        folded = torch.baddbmm(self.folded.flatten(1).unsqueeze(1), row.unsqueeze(1), rows)
        return WeightedSum(folded.view(self.folded.shape), self.weight + row.sum(1))
