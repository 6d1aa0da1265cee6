"""What meta-training learned of confidence: temperatures, the look of known examples, the weight of few shots."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from e3bm.core.adapt import adapt
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import MetaLearner
from e3bm.errors import CheckpointError
from e3bm.fewshot.prior.learner import PrincipalMethod


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


# What the support set says of a classifier made from it: every example is predicted by a fit without it.
#
# Up to LEAVE_ONE_OUT examples each is left out alone; larger sets are left out in folds, and a class of a single
# example is never left out. The refits are a batch of tasks with a mask, run by the same epochs as the fit itself.


LEAVE_ONE_OUT = 100
MANY = 2_000
FOLDS, FEW_FOLDS = 20, 5
NUMBERS_AT_ONCE = 8_000_000  # of features, over the folds that are refitted together


@dataclass(frozen=True)
class HeldOut:
    """Predictions of support examples by fits without them; only examples that could be left out are listed."""

    positions: Int64[Tensor, " N"]
    labels: Int64[Tensor, " N"]
    scores: Float[Tensor, "N W"]
    distances: Float[Tensor, " N"]
    facts: Float[Tensor, "N F"]

    def __len__(self) -> int:
        return len(self.labels)


def fold_numbers(labels: Int64[Tensor, " S"], ways: int) -> Int64[Tensor, " S"]:
    """The fold in which each example is left out, -1 for never; no fold takes the last example of a class."""
    counts = torch.bincount(labels, minlength=ways)
    single = counts[labels] < 2
    able = int((~single).sum())
    folds = able if able <= LEAVE_ONE_OUT else FOLDS if len(labels) <= MANY else FEW_FOLDS
    if able == 0:
        return torch.full_like(labels, -1)
    # Dealt out class by class, so that a class is spread over as many folds as possible.
    order = torch.argsort(labels, stable=True)
    order = order[~single[order]]
    found = torch.full_like(labels, -1)
    found[order] = torch.arange(able) % folds
    return found


@torch.no_grad()
def leave_one_out(
    learner: MetaLearner, features: Float[Tensor, "S D"], labels: Int64[Tensor, " S"], ways: int, *, unit_length: bool
) -> HeldOut | None:
    """Refit without each fold; None where no class has two examples."""
    folds = fold_numbers(labels, ways)
    count = int(folds.max()) + 1
    if count == 0:
        return None
    features = _in_their_span(features)
    at_once = max(1, NUMBERS_AT_ONCE // features.numel())
    parts = [
        _refit(learner, features, labels, ways, folds, range(start, min(start + at_once, count)), unit_length)
        for start in range(0, count, at_once)
    ]
    positions, scores, distances, facts = (torch.cat(part) for part in zip(*parts, strict=True))
    order = torch.argsort(positions)
    positions = positions[order]
    return HeldOut(positions, labels[positions], scores[order], distances[order], facts[order])


def _in_their_span(features: Float[Tensor, "S D"]) -> Float[Tensor, "S R"]:
    """The same examples in an orthonormal basis of their span: lengths and products stay, refits cost S and not D."""
    if features.shape[1] <= features.shape[0]:
        return features
    coordinates: Tensor = torch.linalg.qr(features.mT).R.mT.contiguous()
    return coordinates


def _refit(
    learner: MetaLearner,
    features: Float[Tensor, "S D"],
    labels: Int64[Tensor, " S"],
    ways: int,
    folds: Int64[Tensor, " S"],
    numbers: range,
    unit_length: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    method = learner.method
    assert isinstance(method, PrincipalMethod)
    left_out: Bool[Tensor, "T S"] = folds.unsqueeze(0) == torch.tensor(list(numbers)).unsqueeze(-1)
    size = int(left_out.sum(1).max())
    # Folds differ by one example at most: the shorter ones show their first example twice, and it is dropped again.
    places = torch.stack([_filled(torch.nonzero(row).view(-1), size) for row in left_out])
    support = features.expand(len(numbers), -1, -1)
    batch = TaskBatch(support, labels.expand(len(numbers), -1), features[places], None, ways, ~left_out)
    head, space = method.open(batch, unit_length=unit_length)
    scores = adapt(head, learner.hyperprior, learner.epochs).scores
    # Class means lie in the span of the support, examples need not: their whole length counts.
    squares = space(batch.query).square().sum(-1, keepdim=True) + head.means.square().sum(-1).unsqueeze(1)
    distances = torch.baddbmm(squares, head.query, head.means.mT, alpha=-2).clamp_min(0).sqrt().min(-1).values
    real = torch.arange(size) < left_out.sum(1, keepdim=True)
    facts = head.facts.unsqueeze(1).expand(-1, size, -1)
    return places[real], scores[real], distances[real], facts[real]


def _filled(places: Int64[Tensor, " N"], size: int) -> Int64[Tensor, " S"]:
    return torch.cat([places, places[:1].expand(size - len(places))])


# Temperature: how far scores are stretched before they are called probabilities.


STEPS = torch.linspace(-2.5, 2.5, 201, dtype=torch.double)
LOOSENESS = 0.5  # standard deviation of log temperature before any example was left out


def left_out_log_temperature(scores: Float[Tensor, "N W"], labels: Int64[Tensor, " N"]) -> float:
    """The logarithm of the temperature that suits left-out examples best, near 0 where they are few."""
    losses = len(labels) * losses_by_temperature(scores, labels).double()
    return float(STEPS[int((losses + STEPS.square() / (2 * LOOSENESS**2)).argmin())])


def losses_by_temperature(scores: Float[Tensor, "N W"], labels: Int64[Tensor, " N"]) -> Float[Tensor, " G"]:
    """Mean cross-entropy at every temperature that is considered."""
    return torch.stack([functional.cross_entropy(scores * math.exp(-step), labels) for step in STEPS.tolist()])


def temperature(held_out: HeldOut | None, shots: float, trust: TrustPrior) -> float:
    """The prior's temperature for so many shots, moved by what leaving out says as far as that is to be trusted."""
    found = trust.temperature_offset(shots)
    if held_out is not None:
        found += trust.temperature_slope(shots) * left_out_log_temperature(held_out.scores, held_out.labels)
    return math.exp(found)


# None of these: how much an example looks like any of the classes, and from where on it does not.


def known_threshold(
    held_out: HeldOut | None,
    temperature: float,
    facts: Float[Tensor, " F"],
    shots: float,
    trust: TrustPrior,
    recall: float,
) -> float:
    """The score that this share of examples of the classes should reach.

    Without left-out examples it is the prior's; they move its centre, and in numbers its spread as well.
    """
    level = 1 - recall
    expected = float(trust.known_centre(facts.unsqueeze(0))[0])
    if held_out is None:
        return expected + trust.spread_alone(level, shots)
    scores = known_scores(held_out.scores, held_out.distances, temperature, held_out.facts, trust)
    beside = scores - trust.known_centre(held_out.facts) - trust.left_out_shift(shots)
    share = len(held_out) / (len(held_out) + trust.trusted)
    own_spread = float(torch.quantile(beside.double() - beside.double().mean(), level))
    return expected + share * float(beside.mean()) + (1 - share) * trust.spread(level) + share * own_spread


def known_scores(
    scores: Float[Tensor, "N W"],
    distances: Float[Tensor, " N"],
    temperature: float,
    facts: Float[Tensor, "#N F"],
    trust: TrustPrior,
) -> Float[Tensor, " N"]:
    """How much examples look like any of the classes."""
    return trust.known_score((scores / temperature).logsumexp(-1), distances, facts)


# Labels that the other examples contradict.


FEWEST = 3  # with two examples of a class, one that is left out has a single witness


@dataclass(frozen=True)
class Suspicion:
    """A support example that looks like another class: its position, both classes, the odds against its label."""

    position: int
    label: int
    looks_like: int
    odds: float


def suspicious_labels(held_out: HeldOut | None, temperature: float, trust: TrustPrior) -> list[Suspicion]:
    """The most doubtful first; classes with fewer than three examples are not judged."""
    if held_out is None:
        return []
    logs = (held_out.scores / temperature).log_softmax(-1)
    own = logs.gather(-1, held_out.labels.unsqueeze(-1)).squeeze(-1)
    others = logs.scatter(-1, held_out.labels.unsqueeze(-1), -torch.inf)
    best, looks_like = others.max(-1)
    counts = torch.bincount(held_out.labels, minlength=logs.shape[-1])[held_out.labels]
    against = torch.where(counts >= FEWEST, best - own, -torch.inf)
    found = torch.nonzero(against > trust.suspicion).view(-1).tolist()
    return sorted(
        (
            Suspicion(
                int(held_out.positions[row]),
                int(held_out.labels[row]),
                int(looks_like[row]),
                float(against[row].exp()),
            )
            for row in found
        ),
        key=lambda suspicion: -suspicion.odds,
    )
