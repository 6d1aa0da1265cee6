"""The ensemble as a running sum: sum_m v_m x_m (Eq. 9), folded a few epochs at a time."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

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
