"""The fitted ensemble as arrays: what prediction needs, in NumPy alone.

A fit leaves an EnsembleHead of torch (ensemble_head.py), which stays the reference; tests hold both equal. A program
that only predicts so never imports torch, which takes longer than a hundred predictions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from e3bm.array_types import Float
from e3bm.fewshot.prior.canonical import canonical_array

SHORTEST = 1e-16  # squared length below which a vector counts as zero, as in e3bm.methods.heads.collapsed


@dataclass(frozen=True, eq=False)
class HeadArrays:
    """One matrix product an example, whatever the number of epochs was.

    Its arrays are copies in the canonical form, so that equal heads predict the same to the last bit.
    """

    centre: Float[np.ndarray, " D"]
    factor: Float[np.ndarray, ""]
    unit_length: bool
    weight: Float[np.ndarray, "W D"]
    bias: Float[np.ndarray, " W"]
    means: Float[np.ndarray, "W D"]
    epoch_weight: Float[np.ndarray, "M W D"]
    epoch_bias: Float[np.ndarray, "M W"]
    rates: Float[np.ndarray, " M"]
    votes: Float[np.ndarray, " M"]
    losses: Float[np.ndarray, " M"]
    facts: Float[np.ndarray, " F"]

    def __post_init__(self) -> None:
        for name, value in self.arrays().items():
            object.__setattr__(self, name, canonical_array(value, self.centre.dtype))

    def __reduce__(self) -> Any:
        # Through the constructor: what was unpickled lies anywhere in memory.
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @classmethod
    def of(cls, head: Any) -> "HeadArrays":
        """The arrays of an EnsembleHead."""
        names = (field.name for field in fields(cls) if field.name != "unit_length")
        arrays: dict[str, Any] = {name: getattr(head, name).numpy() for name in names}
        return cls(unit_length=head.unit_length, **arrays)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of its arrays by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def reordered(self, order: Sequence[int]) -> "HeadArrays":
        """The same head with its classes in another order: the place that each had before."""
        places = list(order)
        return replace(
            self,
            weight=self.weight[places],
            bias=self.bias[places],
            means=self.means[places],
            epoch_weight=self.epoch_weight[:, places],
            epoch_bias=self.epoch_bias[:, places],
        )

    @property
    def ways(self) -> int:
        return len(self.bias)

    @property
    def feature_size(self) -> int:
        return len(self.centre)

    def space(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
        """Features in the support space."""
        found = canonical_array(features, self.centre.dtype)
        if self.unit_length:
            found = unit_rows(found)
        placed: np.ndarray = (found - self.centre) * self.factor
        return placed

    def scores(self, placed: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N W"]:
        """The ensemble's scores of features in the support space."""
        found: np.ndarray = placed @ self.weight.T + self.bias
        return found

    def epoch_scores(self, placed: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "M N W"]:
        """The scores of every epoch alone."""
        flat = placed @ self.epoch_weight.reshape(-1, self.feature_size).T
        by_epoch = flat.reshape(len(placed), *self.epoch_bias.shape).transpose(1, 0, 2)
        found: np.ndarray = by_epoch + self.epoch_bias[:, None]
        return found

    def distances(self, placed: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """How far features are from the nearest class mean; examples of the support are about 1 from its centre."""
        lengths = np.square(placed).sum(-1, keepdims=True)
        squares = lengths - 2 * (placed @ self.means.T) + np.square(self.means).sum(-1)
        nearest: np.ndarray = np.sqrt(np.maximum(squares, 0)).min(-1)
        return nearest


def unit_rows(rows: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Rows of length one; a zero row stays zero, and so does one whose length is not finite."""
    with np.errstate(over="ignore"):
        found: np.ndarray = rows / np.sqrt(np.square(rows).sum(-1, keepdims=True) + SHORTEST)
    return found


def softmax(scores: Float[np.ndarray, "*N W"]) -> Float[np.ndarray, "*N W"]:
    """Shares that sum to 1 in every row."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    found: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return found


def log_sum_exp(scores: Float[np.ndarray, "*N W"]) -> Float[np.ndarray, "*N"]:
    """The logarithm of the sum of the exponentials of every row."""
    largest = scores.max(-1)
    found: np.ndarray = np.log(np.exp(scores - largest[..., None]).sum(-1)) + largest
    return found
