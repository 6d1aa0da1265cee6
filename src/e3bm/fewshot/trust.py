"""How sure a fit may be of itself: temperature, the threshold for unknown examples, and doubtful labels.

A TrustPrior holds what meta-training learned about these (see meta/train_trust.py); the functions below combine it
with what leaving out examples of the support set shows. Each of them works without left-out examples too.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from e3bm.errors import CheckpointError
from e3bm.fewshot.prior.leave_one_out import HeldOut


@dataclass(frozen=True)
class Curve:
    """Values at some numbers of shots, straight lines over log shots between them, constant outside."""

    shots: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, shots: float) -> float:
        return float(np.interp(np.log(max(shots, 1.0)), np.log(self.shots), self.values))


@dataclass(frozen=True)
class TrustPrior:
    """Numbers about confidence, found on tasks of classes that the prior was not trained on."""

    temperature_offset: Curve
    temperature_slope: Curve
    """log temperature = offset + slope x the left-out log temperature; at one shot the slope is 0."""
    known: tuple[float, ...]
    """Weights of a logistic regression from energy, distance, facts and products to 'belongs to one of the classes'."""
    centre: tuple[float, ...]
    """The mean of that score over examples of known classes, as a line in the facts."""
    spread_levels: tuple[float, ...]
    spread_values: tuple[float, ...]
    """Quantiles of the score around its mean."""
    left_out_shift: Curve
    """How much lower an example scores, on average, when its own class misses it."""
    trusted: float
    """With this many left-out examples the threshold is half the prior's and half theirs."""
    suspicion: float
    """The logarithm of the odds against a label from which on it is reported as doubtful."""
    alone: tuple[Curve, ...] = ()
    """The same quantiles around ``known_centre``, by shots: used where no example can be left out."""

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
        """The same for a task without left-out examples, by shots: with one shot scores lie closer together."""
        values = [curve(shots) for curve in self.alone] or self.spread_values
        return float(np.interp(level, self.spread_levels, values))

    def as_json(self) -> dict[str, Any]:
        """These numbers as JSON values, for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrustPrior":
        """The numbers that ``as_json`` gave; CheckpointError where they are not readable."""
        try:
            return cls(**{name: _from_json(value) for name, value in values.items()})
        except (TypeError, KeyError, ValueError) as error:
            raise CheckpointError(f"The calibration numbers of the prior cannot be read: {error}.") from None


def _from_json(value: Any) -> Any:
    """A curve, a tuple of such values, or a number."""
    if isinstance(value, dict):
        return Curve(tuple(value["shots"]), tuple(value["values"]))
    return tuple(map(_from_json, value)) if isinstance(value, (list, tuple)) else float(value)


def known_design(
    energy: Float[Tensor, " N"], distance: Float[Tensor, " N"], facts: Float[Tensor, "#N F"]
) -> Float[Tensor, "N C"]:
    """Inputs of the regression: both numbers, and each of them with every fact of the task."""
    both = torch.stack([energy, distance], -1)
    facts = facts.expand(len(both), -1)
    products = (both.unsqueeze(-1) * facts.unsqueeze(1)).flatten(1)
    return torch.cat([torch.ones_like(both[:, :1]), both, facts, products], -1)


GRID = torch.linspace(-2.5, 2.5, 201, dtype=torch.double)
"""The logarithms of the temperatures that are tried."""
LOOSENESS = 0.5
"""Standard deviation of the log temperature before any example was left out."""
FEWEST_SHOTS = 3
"""Labels are judged from this many examples of a class on: of two, the one left in is a single witness."""


def losses_by_temperature(scores: Float[Tensor, "N W"], labels: Int64[Tensor, " N"]) -> Float[Tensor, " G"]:
    """Mean cross-entropy at every temperature of GRID."""
    return torch.stack([functional.cross_entropy(scores * math.exp(-step), labels) for step in GRID.tolist()])


def left_out_log_temperature(scores: Float[Tensor, "N W"], labels: Int64[Tensor, " N"]) -> float:
    """The logarithm of the temperature that suits left-out examples best, near 0 where they are few."""
    losses = len(labels) * losses_by_temperature(scores, labels).double()
    return float(GRID[int((losses + GRID.square() / (2 * LOOSENESS**2)).argmin())])


def choose_temperature(held_out: HeldOut | None, shots: float, trust: TrustPrior) -> float:
    """What scores are divided by: the prior's value for so many shots, corrected by the left-out examples."""
    found = trust.temperature_offset(shots)
    if held_out is not None:
        found += trust.temperature_slope(shots) * left_out_log_temperature(held_out.scores, held_out.labels)
    return math.exp(found)


def known_scores(
    scores: Float[Tensor, "N W"],
    distances: Float[Tensor, " N"],
    temperature: float,
    facts: Float[Tensor, "#N F"],
    trust: TrustPrior,
) -> Float[Tensor, " N"]:
    """How much examples look like any of the classes."""
    return trust.known_score((scores / temperature).logsumexp(-1), distances, facts)


def known_threshold(
    held_out: HeldOut | None,
    temperature: float,
    facts: Float[Tensor, " F"],
    shots: float,
    trust: TrustPrior,
    recall: float,
) -> float:
    """The known score that this share of examples of the classes should reach; below it an example is unknown.

    Without left-out examples it is the prior's. They move its centre and, the more there are, replace its spread.
    """
    level = 1 - recall
    expected = float(trust.known_centre(facts.unsqueeze(0))[0])
    if held_out is None:
        return expected + trust.spread_alone(level, shots)
    scores = known_scores(held_out.scores, held_out.distances, temperature, held_out.facts, trust)
    deviations = scores - trust.known_centre(held_out.facts) - trust.left_out_shift(shots)
    share = len(held_out) / (len(held_out) + trust.trusted)
    own_spread = float(torch.quantile(deviations.double() - deviations.double().mean(), level))
    return expected + share * float(deviations.mean()) + (1 - share) * trust.spread(level) + share * own_spread


@dataclass(frozen=True)
class Suspicion:
    """A support example that looks like another class: its position, both classes, the odds against its label."""

    position: int
    label: int
    looks_like: int
    odds: float


def log_odds_against(held_out: HeldOut, temperature: float) -> tuple[Float[Tensor, " N"], Int64[Tensor, " N"]]:
    """The log odds of the best other class against each left-out example's label, and that class."""
    logs = (held_out.scores / temperature).log_softmax(-1)
    own = logs.gather(-1, held_out.labels.unsqueeze(-1)).squeeze(-1)
    best, looks_like = logs.scatter(-1, held_out.labels.unsqueeze(-1), -torch.inf).max(-1)
    return best - own, looks_like


def suspicious_labels(held_out: HeldOut | None, temperature: float, trust: TrustPrior) -> list[Suspicion]:
    """Labels that the other examples contradict, the most doubtful first; classes of one or two are not judged."""
    if held_out is None:
        return []
    against, looks_like = log_odds_against(held_out, temperature)
    counts = torch.bincount(held_out.labels, minlength=held_out.scores.shape[-1])[held_out.labels]
    doubtful = torch.nonzero((counts >= FEWEST_SHOTS) & (against > trust.suspicion)).view(-1).tolist()
    found = [
        Suspicion(
            int(held_out.positions[row]), int(held_out.labels[row]), int(looks_like[row]), float(against[row].exp())
        )
        for row in doubtful
    ]
    return sorted(found, key=lambda suspicion: -suspicion.odds)
