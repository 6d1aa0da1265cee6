"""How sure a fit may be of itself: temperature, the threshold for unknown examples, and doubtful labels.

A TrustPrior holds what meta-training learned about these (see meta/train_trust.py); the functions below combine it
with what the support set shows, by itself and by leaving examples out. Each works without left-out examples too.
"""

import math
from collections.abc import Sequence
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
    """Weights of KnownFacts: of the mean of known scores of new examples, and of the logarithm of a unit of how far
    they lie from it, about the distance to the lowest twentieth. Either of the facts ``by_shots`` or of all."""
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
ENOUGH_LEFT_OUT = 15
"""So many left-out scores say as much of where known scores lie as all other facts."""
LOW = 0.1
"""The share of left-out scores below which they are called low."""
STEEPNESS = 14.0
"""Log odds of one class against another by the difference of an example's cosines with their means."""
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
        raise _other_facts("the temperature", len(trust.temperature), len(facts))
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


def _other_facts(what: str, found: int, *expected: int) -> CheckpointError:
    """What is said of numbers of trust that belong to other facts than ours."""
    return CheckpointError(
        f"This prior was made by another version of e3bm, whose calibration numbers this one cannot use: {what} has "
        f"{found} weights, expected {' or '.join(map(str, expected))}; compute them with `e3bm train-prior --start "
        f"PRIOR --out NEW`."
    )


@dataclass(frozen=True)
class KnownFacts:
    """What the scores of known examples depend on; a set of numbers has weights of the facts ``by_shots`` or of all."""

    by_shots: Float[np.ndarray, " F"]
    """The facts of the temperature, of the head, and left-out scores, which say more where there are more shots."""
    by_number: Float[np.ndarray, " G"]
    """The same once more, and how far the low ones of the left-out scores lie from their mean, by how much so many
    left-out scores say: of a few the mean is uncertain, and the other facts decide; of many it is nearly all that
    counts."""

    @property
    def all(self) -> Float[np.ndarray, " F+G"]:
        """Both, one after the other: what new numbers are fitted to."""
        return np.concatenate([self.by_shots, self.by_number])

    def weighed(self, weights: Sequence[float]) -> float:
        """The sum of those facts that the weights are for; CheckpointError where that cannot be told."""
        for facts in (self.by_shots, self.all):
            if len(facts) == len(weights):
                return float(facts @ np.array(weights))
        raise _other_facts("where known scores lie", len(weights), len(self.by_shots), len(self.all))


def known_facts(
    facts: Float[np.ndarray, " F"],
    head: EnsembleHead,
    temperature: float,
    shots: float,
    held_out: HeldOut | None,
    trust: TrustPrior,
) -> KnownFacts:
    """The facts of a fit, from those of its temperature."""
    mean, spread, low, number = 0.0, 0.0, 0.0, 0
    if held_out is not None:
        scores = known_scores(held_out.scores, held_out.distances, temperature, held_out.facts, trust).double()
        mean, spread, number = float(scores.mean()), math.log(float(scores.std(correction=0)) + 0.1), len(scores)
        low = math.log(max(mean - float(scores.quantile(LOW)), 0.0) + 0.1)
    share = 1 - 1 / shots
    seen = share * number / (number + ENOUGH_LEFT_OUT)
    alone = [*facts, *head.facts.tolist(), math.log(temperature)]
    by_number = [*alone, mean, spread, low, 1.0, 1 / shots, math.log(head.ways)]
    return KnownFacts(np.array([*alone, share * mean, share * spread]), np.array([seen * value for value in by_number]))


def known_levels(facts: KnownFacts, ways: int, shots: float, trust: TrustPrior) -> Float[np.ndarray, " L"]:
    """The known score below which each share of LEVELS of the examples of the classes should lie."""
    location, scale = facts.weighed(trust.location), facts.weighed(trust.log_scale)
    known_ways = trust.ways or (float(ways),)
    columns = np.array([curve(shots) for curve in trust.quantiles]).reshape(len(known_ways), -1).T
    quantiles = np.array([np.interp(np.log(ways), np.log(known_ways), column) for column in columns])
    return np.maximum.accumulate(location + math.exp(np.clip(scale, -5, 5)) * quantiles)


def log_odds_against(
    placed: Float[Tensor, "S D"], labels: Int64[Tensor, " S"], ways: int, weights: Float[Tensor, " S"] | None = None
) -> tuple[Float[Tensor, " S"], Int64[Tensor, " S"]]:
    """The log odds of the best other class against the label of each example in the support space, and that class.

    They compare the cosine of the example with the mean of that class and with the mean of the others of its own, all
    seen from the middle of the examples: means show a wrong label better than a head does, whose centre and directions
    depend on all labels.
    """
    amounts = placed.new_ones(len(placed)) if weights is None else weights.to(placed)
    rows = functional.normalize(placed - amounts @ placed / amounts.sum(), dim=-1)
    sums = rows.new_zeros(ways, rows.shape[1]).index_add(0, labels, rows * amounts.unsqueeze(-1))
    products, squares, own = rows @ sums.mT, sums.square().sum(-1), labels.unsqueeze(-1)
    with_others = products.gather(-1, own).squeeze(-1)
    left = (squares[labels] - 2 * amounts * with_others + amounts.square()).clamp_min(1e-12).sqrt()
    cosines = products / squares.clamp_min(1e-12).sqrt()
    best, looks_like = cosines.scatter(-1, own, -torch.inf).max(-1)
    return STEEPNESS * (best - (with_others - amounts) / left), looks_like


def suspicious_labels(
    placed: Float[Tensor, "S D"],
    labels: Int64[Tensor, " S"],
    ways: int,
    trust: TrustPrior,
    weights: Float[Tensor, " S"] | None = None,
) -> list[Suspicion]:
    """Labels that the other examples contradict, the most doubtful first; classes of one or two are not judged."""
    against, looks_like = log_odds_against(placed, labels, ways, weights)
    counts = torch.bincount(labels, minlength=ways)[labels]
    doubtful = torch.nonzero((counts >= FEWEST_SHOTS) & (against > trust.suspicion)).view(-1).tolist()
    found = [Suspicion(row, int(labels[row]), int(looks_like[row]), float(against[row].exp())) for row in doubtful]
    return sorted(found, key=lambda suspicion: -suspicion.odds)
