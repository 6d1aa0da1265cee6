"""What meta-training learned of confidence: temperatures, the look of known examples, the weight of few shots."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.errors import CheckpointError


@dataclass(frozen=True)
class Curve:
    """Values at some numbers of shots, straight lines over log shots between them, constant outside."""

    shots: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, shots: float) -> float:
        return float(np.interp(np.log(max(shots, 1.0)), np.log(self.shots), self.values))


@dataclass(frozen=True)
class TrustPrior:
    """Numbers found on tasks of classes that the prior was not trained on."""

    temperature_offset: Curve
    temperature_slope: Curve
    """log temperature = offset + slope x what leaving out says; at one shot the slope is 0."""
    known: tuple[float, ...]
    """A logistic regression from energy, distance, facts and their products to 'belongs to one of the classes'."""
    centre: tuple[float, ...]
    """The mean of that score over examples of known classes, as a line in the facts."""
    spread_levels: tuple[float, ...]
    spread_values: tuple[float, ...]
    """Quantiles of the score around its mean."""
    left_out_shift: Curve
    """How much lower an example scores, on average, when its own class misses it."""
    trusted: float
    """As many left-out examples as this move the threshold half of the way."""
    suspicion: float
    """Odds (as a logarithm) against a label from which on it is pointed out."""
    alone: tuple[Curve, ...] = ()
    """The same quantiles around the centre that the facts say, by shots: all there is without left-out examples."""

    def known_score(
        self, energy: Float[Tensor, " N"], distance: Float[Tensor, " N"], facts: Float[Tensor, "#N F"]
    ) -> Float[Tensor, " N"]:
        """The larger, the more an example looks like one of the classes."""
        weights = torch.tensor(self.known, dtype=energy.dtype)
        return known_design(energy, distance, facts) @ weights

    def known_centre(self, facts: Float[Tensor, "N F"]) -> Float[Tensor, " N"]:
        """Where that score is centred for examples of known classes."""
        weights = torch.tensor(self.centre, dtype=facts.dtype)
        return facts @ weights[1:] + weights[0]

    def spread(self, level: float) -> float:
        """The quantile of the score around its centre."""
        return float(np.interp(level, self.spread_levels, self.spread_values))

    def spread_alone(self, level: float, shots: float) -> float:
        """The same for a task whose own centre nobody has seen; the scores of one shot lie closer together."""
        values = [curve(shots) for curve in self.alone] or self.spread_values
        return float(np.interp(level, self.spread_levels, values))

    def as_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrustPrior":
        """The numbers of a file."""
        try:
            return cls(**{name: _plain(value) for name, value in values.items()})
        except (TypeError, KeyError, ValueError) as error:
            raise CheckpointError(f"The numbers of trust in a prior are not readable: {error}.") from None


def _plain(value: Any) -> Any:
    """A curve, a tuple of such values, or a number, from JSON."""
    if isinstance(value, dict):
        return Curve(tuple(value["shots"]), tuple(value["values"]))
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else float(value)


def known_design(
    energy: Float[Tensor, " N"], distance: Float[Tensor, " N"], facts: Float[Tensor, "#N F"]
) -> Float[Tensor, "N C"]:
    """Inputs of the regression: both numbers, and each of them with every fact of the task."""
    both = torch.stack([energy, distance], -1)
    facts = facts.expand(len(both), -1)
    products = (both.unsqueeze(-1) * facts.unsqueeze(1)).flatten(1)
    return torch.cat([torch.ones_like(both[:, :1]), both, facts, products], -1)
