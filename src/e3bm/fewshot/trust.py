"""How sure a fit may be of itself: temperature, the threshold for unknown examples, and doubtful labels.

A TrustPrior holds what meta-training learned about these (see meta/train_trust.py); the functions below combine it
with what the support set shows, by itself and by leaving examples out. Each works without left-out examples too.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Real
from torch import Tensor
from torch.nn import functional

from e3bm.errors import CheckpointError
from e3bm.fewshot.fitted_head import Suspicion
from e3bm.fewshot.prior.ensemble_head import EnsembleHead
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

    known: tuple[float, ...]
    """Weights of a logistic regression from energy, distance, facts and products to 'belongs to one of the classes'."""
    temperature: tuple[float, ...] = ()
    """Weights of the log temperature in ``temperature_facts``; empty or fewer in a prior of an older e3bm."""
    location: tuple[float, ...] = ()
    log_scale: tuple[float, ...] = ()
    """Weights in ``known_facts`` of the mean of known scores of new examples, and of the logarithm of a unit of how
    far they lie from it: about the distance to the lowest twentieth."""
    quantiles: tuple[Curve, ...] = ()
    """Known scores minus location, over scale, at every level of LEVELS, by shots; and so for each of ``ways``."""
    ways: tuple[float, ...] = ()
    """Numbers of ways at which quantiles are given, straight lines over log ways between them; empty: any number."""
    suspicion: float = math.inf
    """The logarithm of the odds against a label from which on it is reported as doubtful."""

    def known_score(
        self, energy: Float[Tensor, " N"], distance: Float[Tensor, " N"], facts: Float[Tensor, "#N F"]
    ) -> Float[Tensor, " N"]:
        """The larger, the more an example looks like one of the classes."""
        weights = torch.tensor(self.known, dtype=energy.dtype)
        return known_design(energy, distance, facts) @ weights

    def as_json(self) -> dict[str, Any]:
        """These numbers as JSON values, for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrustPrior":
        """The numbers that ``as_json`` gave; CheckpointError where they are not readable.

        Of older files only what predictions need is taken: their models hold temperature and threshold themselves.
        """
        try:
            known = {one.name for one in fields(cls)} if "temperature" in values else {"known"}
            return cls(**{name: _from_json(value) for name, value in values.items() if name in known})
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


COLDEST, HOTTEST = -2.5, 2.5
GRID = torch.linspace(COLDEST, HOTTEST, 201, dtype=torch.double)
"""The logarithms of the temperatures that are tried."""
LOOSENESS = 0.5
"""Standard deviation of the log temperature before any example was left out."""
LARGEST_WAYS, LARGEST_SHOTS = 60, 15.0
FEWEST_SHOTS = 3
"""Labels are judged from this many examples of a class on: of two, the one left in is a single witness."""


def losses_by_temperature(scores: Float[Tensor, "N W"], labels: Int64[Tensor, " N"]) -> Float[Tensor, " G"]:
    """Mean cross-entropy at every temperature of GRID."""
    return torch.stack([functional.cross_entropy(scores * math.exp(-step), labels) for step in GRID.tolist()])


def claims_by_temperature(scores: Float[Tensor, "N W"]) -> Float[Tensor, " G"]:
    """Mean of the largest probability at every temperature of GRID."""
    return torch.stack([(scores * math.exp(-step)).softmax(-1).max(-1).values.mean() for step in GRID.tolist()])


def left_out_log_temperature(scores: Float[Tensor, "N W"], labels: Int64[Tensor, " N"]) -> float:
    """The logarithm of the temperature that suits left-out examples best, near 0 where they are few."""
    losses = len(labels) * losses_by_temperature(scores, labels).double()
    return float(GRID[int((losses + GRID.square() / (2 * LOOSENESS**2)).argmin())])


def temperature_facts(
    head: EnsembleHead, margin: float, counts: Real[np.ndarray, " W"], held_out: HeldOut | None
) -> Float[np.ndarray, " F"]:
    """What a support set shows of how sure its head may be.

    The first six decide at one shot: ways, how far the head sets its own examples apart (``margin``), how far the
    examples are spread around their centre, and how alike neighbouring classes are. With more shots what leaving out
    shows takes over.
    """
    # Nothing beyond what training has met: a formula is not to be trusted outside.
    ways, shots = len(counts), min(mean_shots(counts), LARGEST_SHOTS)
    log_ways, log_margin = math.log(min(ways, LARGEST_WAYS)) - 1.5, float(np.clip(math.log(max(margin, 1e-9)), -1, 3.5))
    # The spread over the length of the features: the same number for features of any scale.
    spread = 1 / float(head.factor)
    log_spread = math.log(spread) - math.log(spread**2 + float(head.centre.square().sum())) / 2 + 1
    log_spread = max(log_spread, -1.5)
    alone = [1.0, log_ways, log_margin, log_spread, 1 / ways, float(np.clip(likeness(head), 0, 0.9)) - 0.45]
    said, right = 0.0, 0.0
    if held_out is not None:
        said = left_out_log_temperature(held_out.scores, held_out.labels)
        right = float((held_out.scores.argmax(-1) == held_out.labels).double().mean())
    above_chance = (right - 1 / ways) / (1 - 1 / ways) - 0.5
    more = [1.0, log_ways, log_margin, math.log(shots) - 1, said, float(head.facts[2]), above_chance, 1 / ways]
    return np.array([*(value / shots for value in alone), *(value * (1 - 1 / shots) for value in more)])


def likeness(head: EnsembleHead) -> float:
    """The cosine of the angle between the mean of a class and that of its nearest neighbour, on average."""
    means = functional.normalize(head.means / head.factor + head.centre, dim=-1)
    cosines = (means @ means.mT).fill_diagonal_(-1)
    return float(cosines.max(-1).values.mean())


def mean_shots(counts: Real[np.ndarray, " W"]) -> float:
    """The geometric mean of the numbers of examples: what a new example of a class meets."""
    return float(np.exp(np.log(counts).mean()))


def support_margin(scores: Float[Tensor, "S W"], labels: Int64[Tensor, " S"]) -> float:
    """How far support examples score above the mean of the other classes, on average."""
    ways = scores.shape[-1]
    own = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return float((own - scores.mean(-1)).mean()) * ways / (ways - 1)


def choose_temperature(facts: Float[np.ndarray, " F"], trust: TrustPrior) -> float:
    """What scores are divided by."""
    if len(trust.temperature) != len(facts):
        raise CheckpointError(
            "This prior was made by an older e3bm and has no calibration numbers that this version can use; compute "
            "them with `e3bm train-prior --start PRIOR --out NEW`."
        )
    return math.exp(float(np.clip(facts @ np.array(trust.temperature), COLDEST, HOTTEST)))


def known_scores(
    scores: Float[Tensor, "N W"],
    distances: Float[Tensor, " N"],
    temperature: float,
    facts: Float[Tensor, "#N F"],
    trust: TrustPrior,
) -> Float[Tensor, " N"]:
    """How much examples look like any of the classes."""
    return trust.known_score((scores / temperature).logsumexp(-1), distances, facts)


def known_facts(
    facts: Float[np.ndarray, " F"],
    head: EnsembleHead,
    temperature: float,
    shots: float,
    held_out: HeldOut | None,
    trust: TrustPrior,
) -> Float[np.ndarray, " G"]:
    """What the scores of known examples depend on: the facts of the temperature, of the head, and left-out scores."""
    mean, spread = 0.0, 0.0
    if held_out is not None:
        scores = known_scores(held_out.scores, held_out.distances, temperature, held_out.facts, trust).double()
        mean, spread = float(scores.mean()), math.log(float(scores.std(correction=0)) + 0.1)
    share = 1 - 1 / shots
    return np.array([*facts, *head.facts.tolist(), math.log(temperature), share * mean, share * spread])


def known_levels(facts: Float[np.ndarray, " G"], ways: int, shots: float, trust: TrustPrior) -> Float[np.ndarray, " L"]:
    """The known score below which each share of LEVELS of the examples of the classes should lie."""
    location, scale = (float(facts @ np.array(weights)) for weights in (trust.location, trust.log_scale))
    known_ways = trust.ways or (float(ways),)
    columns = np.array([curve(shots) for curve in trust.quantiles]).reshape(len(known_ways), -1).T
    quantiles = np.array([np.interp(np.log(ways), np.log(known_ways), column) for column in columns])
    return np.maximum.accumulate(location + math.exp(np.clip(scale, -5, 5)) * quantiles)


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
