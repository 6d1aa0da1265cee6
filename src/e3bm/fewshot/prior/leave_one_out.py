"""Leave-one-out predictions: every support example is predicted by a fit that has not seen it.

Up to LEAVE_ONE_OUT examples each is left out alone; larger sets are left out in folds, and a class of a single
example is never left out. The refits are a batch of tasks with a mask, run by the same epochs as the fit itself.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from e3bm.core.adapt import adapt
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import MetaLearner
from e3bm.fewshot.prior.learner import PrincipalMethod
from e3bm.progress import Progress, Silent, stage

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
    learner: MetaLearner,
    features: Float[Tensor, "S D"],
    labels: Int64[Tensor, " S"],
    ways: int,
    *,
    unit_length: bool,
    progress: Progress | None = None,
    weights: Float[Tensor, " S"] | None = None,
) -> HeldOut | None:
    """Refit without each fold; None where no class has two examples."""
    folds = fold_numbers(labels, ways)
    count = int(folds.max()) + 1
    if count == 0:
        return None
    features = _in_their_span(features)
    at_once, parts, progress = max(1, NUMBERS_AT_ONCE // features.numel()), [], progress or Silent()
    with stage(progress, "leaving photos out", count):
        for start in range(0, count, at_once):
            numbers = range(start, min(start + at_once, count))
            parts.append(_refit(learner, features, labels, ways, folds, numbers, unit_length, weights))
            progress.advance(numbers.stop)
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
    weights: Float[Tensor, " S"] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    method = learner.method
    assert isinstance(method, PrincipalMethod)
    left_out: Bool[Tensor, "T S"] = folds.unsqueeze(0) == torch.tensor(list(numbers)).unsqueeze(-1)
    size = int(left_out.sum(1).max())
    # Folds differ by one example at most: the shorter ones show their first example twice, and it is dropped again.
    places = torch.stack([_filled(torch.nonzero(row).view(-1), size) for row in left_out])
    support = features.expand(len(numbers), -1, -1)
    batch = TaskBatch(support, labels.expand(len(numbers), -1), features[places], None, ways, ~left_out)
    amounts = None if weights is None else weights.expand(len(numbers), -1)
    head, space = method.open(batch, unit_length=unit_length, weights=amounts)
    scores = adapt(head, learner.hyperprior, learner.epochs).scores
    # Class means lie in the span of the support, examples need not: their whole length counts.
    squares = space(batch.query).square().sum(-1, keepdim=True) + head.means.square().sum(-1).unsqueeze(1)
    distances = torch.baddbmm(squares, head.query, head.means.mT, alpha=-2).clamp_min(0).sqrt().min(-1).values
    real = torch.arange(size) < left_out.sum(1, keepdim=True)
    facts = head.facts.unsqueeze(1).expand(-1, size, -1)
    return places[real], scores[real], distances[real], facts[real]


def _filled(places: Int64[Tensor, " N"], size: int) -> Int64[Tensor, " S"]:
    return torch.cat([places, places[:1].expand(size - len(places))])
