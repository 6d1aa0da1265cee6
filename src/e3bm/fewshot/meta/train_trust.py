"""Fits a TrustPrior (temperatures, thresholds) on many tasks of classes that gave it no other number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from e3bm.core.learner import MetaLearner
from e3bm.fewshot.fitted_head import LEVELS
from e3bm.fewshot.meta.pools import FeaturePool
from e3bm.fewshot.prior.ensemble_head import EnsembleHead, fit_ensemble_head
from e3bm.fewshot.prior.leave_one_out import HeldOut, leave_one_out
from e3bm.fewshot.trust import (
    FEWEST_SHOTS,
    GRID,
    Curve,
    TrustPrior,
    choose_temperature,
    claims_by_temperature,
    known_design,
    known_facts,
    known_scores,
    log_odds_against,
    losses_by_temperature,
    support_margin,
    temperature_facts,
)

SHOTS = {1: 4, 2: 2, 3: 1, 5: 1, 10: 1}
"""Numbers of shots, and how many times as many tasks have them: the fewer, the less a task shows."""
MOST_WAYS, MOST_EXAMPLES = 50, 150
QUERIES, ALL_QUERIES = 15, 150  # of a class at most, and of a task about
FALSE_ALARMS = 0.03  # share of right labels that may be pointed out, over all pools; of good photos it is far less
RIDGE = 1e-4
RIDGE_OF_PLACES = 1.0  # of the weights that say where known scores lie: facts of pools are nearly dependent
FAIRNESS = 5.0  # what the squared gap between what a cell should have and what it has counts against the other loss
WAYS_APART = (3, 5, 9)  # numbers of ways from which on tasks are another cell
LOST = 0.05  # share of known examples that thresholds are fitted to lose
SOFTNESS = 0.1  # of the step between lost and kept, in known scores


@dataclass(frozen=True)
class TrustTask:
    """A fitted task with examples of its classes and of others."""

    pool: str
    shots: int
    head: EnsembleHead
    facts: np.ndarray
    against: Tensor
    """Log odds against the labels of the support, all of which are right."""
    held_out: HeldOut | None
    scores: Tensor
    labels: Tensor
    distances: Tensor
    other_scores: Tensor
    other_distances: Tensor


def fit_trust(
    learner: MetaLearner, pools: Sequence[FeaturePool], *, tasks: int, seed: int, advance: Callable[[int], None]
) -> TrustPrior:
    """Everything a TrustPrior holds, from so many tasks of each pool and number of shots; the learner is in double."""
    return fit_to_tasks(draw_trust_tasks(learner, pools, tasks=tasks, seed=seed, advance=advance))


def draw_trust_tasks(
    learner: MetaLearner, pools: Sequence[FeaturePool], *, tasks: int, seed: int, advance: Callable[[int], None]
) -> list[TrustTask]:
    """So many fitted tasks of each pool and number of shots, and more of few shots; the learner is in double."""
    random = np.random.default_rng(seed)
    drawn: list[TrustTask] = []
    for pool in pools:
        for shots, more in SHOTS.items():
            if min(map(len, pool.members)) > shots:
                drawn += [_task(learner, pool, shots, random) for _ in range(more * tasks)]
                advance(len(drawn))
    return drawn


def fit_to_tasks(tasks: Sequence[TrustTask]) -> TrustPrior:
    """Everything a TrustPrior holds."""
    trust = TrustPrior(known=(), temperature=_temperature_weights(tasks))
    trust = replace(trust, known=_known_weights(tasks, trust))
    return fit_levels(tasks, replace(trust, suspicion=_suspicion(tasks)))


def _task(learner: MetaLearner, pool: FeaturePool, shots: int, random: np.random.Generator) -> TrustTask:
    """A task of any number of ways for which there are as many other classes."""
    most = max(2, min(MOST_WAYS, len(pool.members) // 2, MOST_EXAMPLES // shots))
    ways = min(most, int(np.exp(random.uniform(np.log(2), np.log(most + 1)))))
    classes = random.choice(len(pool.members), min(2 * ways, len(pool.members)), replace=False)
    queries = min(QUERIES, max(4, ALL_QUERIES // ways))
    drawn = [random.permutation(pool.members[label])[: shots + queries] for label in classes]
    rows = lambda parts: torch.from_numpy(pool.features[np.concatenate(parts)]).double()
    support = rows([part[:shots] for part in drawn[:ways]])
    labels = torch.arange(ways).repeat_interleave(shots)
    head = fit_ensemble_head(learner, support, labels, ways, unit_length=True)
    held_out = leave_one_out(learner, support, labels, ways, unit_length=True)
    margin = support_margin(head.scores(head.space(support)), labels)
    known, other = (head.space(rows([part[shots:] for part in half])) for half in (drawn[:ways], drawn[ways:]))
    query_labels = torch.cat([torch.full((len(part) - shots,), way) for way, part in enumerate(drawn[:ways])])
    return TrustTask(
        pool.name,
        shots,
        head,
        temperature_facts(head, margin, np.full(ways, shots), held_out),
        log_odds_against(head.space(support), labels, ways)[0],
        held_out,
        head.scores(known),
        query_labels,
        head.distances(known),
        head.scores(other),
        head.distances(other),
    )


def _temperature_weights(tasks: Sequence[TrustTask]) -> tuple[float, ...]:
    """Weights under which the queries are likely, and under which no cell claims more or less than it gets right.

    Every task counts by its loss in units of log W. Likelihood alone leaves whole cells too unsure.
    """
    facts = torch.from_numpy(np.stack([task.facts for task in tasks]))
    curves = torch.stack(
        [losses_by_temperature(task.scores, task.labels) / np.log(task.head.ways) for task in tasks]
    ).double()
    claims = torch.stack([claims_by_temperature(task.scores) for task in tasks]).double()
    right = torch.tensor([float((task.scores.argmax(-1) == task.labels).double().mean()) for task in tasks]).double()
    unfair = _unfairness(tasks)
    first, step, rows = float(GRID[0]), float(GRID[1] - GRID[0]), torch.arange(len(tasks))

    def loss(weights: Tensor) -> Tensor:
        place = ((facts @ weights - first) / step).clamp(0, len(GRID) - 1.001)
        left = place.floor().long()
        between = lambda table: torch.lerp(table[rows, left], table[rows, left + 1], place - left)
        return between(curves).mean() + unfair(between(claims) - right) + RIDGE * weights.square().sum()

    return _minimised(loss, facts.shape[1])


def _unfairness(tasks: Sequence[TrustTask]) -> Callable[[Tensor], Tensor]:
    """A loss of the gaps of tasks: their mean over a cell should be nought, whatever those of single tasks are.

    A cell is what tasks of one pool, of equal shots and of about equal ways have in common.
    """
    names = [(task.pool, task.shots, _about_ways(task)) for task in tasks]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    cells = torch.tensor([numbers[name] for name in names])
    sizes = torch.bincount(cells).double()

    def unfair(gaps: Tensor) -> Tensor:
        means = torch.zeros_like(sizes).index_add(0, cells, gaps) / sizes
        return FAIRNESS * (sizes * means.square()).sum() / len(tasks)

    return unfair


def _about_ways(task: TrustTask) -> int:
    return sum(task.head.ways >= ways for ways in WAYS_APART)


def _known_weights(tasks: Sequence[TrustTask], trust: TrustPrior) -> tuple[float, ...]:
    """A logistic regression with a little ridge, on standardised inputs; every task counts the same."""
    inputs, targets, weights = [], [], []
    for task in tasks:
        temperature = choose_temperature(task.facts, trust)
        for scores, distances, known in (
            (task.scores, task.distances, 1.0),
            (task.other_scores, task.other_distances, 0.0),
        ):
            inputs.append(known_design((scores / temperature).logsumexp(-1), distances, task.head.facts.unsqueeze(0)))
            targets.append(torch.full((len(scores),), known, dtype=torch.double))
            weights.append(torch.full((len(scores),), 1 / len(scores), dtype=torch.double))
    design, target, weight = torch.cat(inputs), torch.cat(targets), torch.cat(weights)
    scale = design.std(0).clamp_min(1e-9)
    scale[0] = 1.0

    def loss(found: Tensor) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(design / scale @ found, target, reduction="none")
        return (each * weight).sum() / weight.sum() + RIDGE * found.square().sum()

    return tuple((torch.tensor(_minimised(loss, design.shape[1]), dtype=torch.double) / scale).tolist())


def _suspicion(tasks: Sequence[TrustTask]) -> float:
    """The log odds that FALSE_ALARMS of the right labels reach."""
    odds = [task.against for task in tasks if task.shots >= FEWEST_SHOTS]
    return max(0.0, float(torch.quantile(torch.cat(odds), 1 - FALSE_ALARMS)))


def fit_levels(tasks: Sequence[TrustTask], trust: TrustPrior) -> TrustPrior:
    """Where known scores lie, how far below that the share LOST of them begins, and their quantiles in these units.

    The distance is fitted to where the lowest scores of tasks are, not to their spread: tails of pools differ. No cell
    should lose more or fewer than others.
    """
    scores, facts = [], []
    for task in tasks:
        temperature = choose_temperature(task.facts, trust)
        scores.append(
            known_scores(task.scores, task.distances, temperature, task.head.facts.unsqueeze(0), trust).double()
        )
        facts.append(known_facts(task.facts, task.head, temperature, task.shots, task.held_out, trust).all)
    design = torch.from_numpy(np.stack(facts))
    location = _least_squares(design, torch.stack([each.mean() for each in scores]))
    centres, every, unfair = design @ location, torch.cat(scores), _unfairness(tasks)
    sizes = torch.tensor([len(each) for each in scores])
    task_of = torch.arange(len(tasks)).repeat_interleave(sizes)
    mean_of_tasks = lambda values: torch.zeros(len(tasks)).double().index_add(0, task_of, values) / sizes

    def misplaced(weights: Tensor) -> Tensor:
        above = every - (centres - (design @ weights).clamp(-5, 5).exp())[task_of]
        # The pinball loss, least where the share LOST lies below, with a round corner.
        each = LOST * above + SOFTNESS * functional.softplus(-above / SOFTNESS)
        lost = mean_of_tasks(torch.sigmoid(-above / SOFTNESS))
        return mean_of_tasks(each).mean() + unfair(lost - LOST) + RIDGE * weights.square().sum()

    log_scale = torch.tensor(_minimised(misplaced, design.shape[1]), dtype=torch.double)
    spreads = (design @ log_scale).clamp(-5, 5).exp()
    placed = [(each - centre) / spread for each, centre, spread in zip(scores, centres, spreads, strict=True)]
    curves, ways = [], []
    for part in sorted(set(map(_about_ways, tasks))):
        own = [(task, each) for task, each in zip(tasks, placed, strict=True) if _about_ways(task) == part]
        curves += _quantile_curves(own)
        ways.append(float(np.exp(np.mean([np.log(task.head.ways) for task, _ in own]))))
    return replace(
        trust,
        location=tuple(location.tolist()),
        log_scale=tuple(log_scale.tolist()),
        quantiles=tuple(curves),
        ways=tuple(ways),
    )


def _quantile_curves(placed: Sequence[tuple[TrustTask, Tensor]]) -> list[Curve]:
    """For every level its quantile by shots, from tasks and their scores."""
    by_shots = {}
    for shots in SHOTS:
        own = [each for task, each in placed if task.shots == shots]
        if own:
            # The mean of the shares of tasks, whatever their number of queries.
            by_shots[shots] = [float(_weighted_quantile(own, level)) for level in LEVELS]
    return [
        Curve(tuple(map(float, by_shots)), tuple(values[place] for values in by_shots.values()))
        for place in range(len(LEVELS))
    ]


def _weighted_quantile(parts: Sequence[Tensor], level: float) -> Tensor:
    """The quantile of all values where every part has the same weight."""
    values = torch.cat(list(parts))
    weights = torch.cat([torch.full_like(part, 1 / len(part)) for part in parts])
    order = values.argsort()
    shares = weights[order].cumsum(0) / weights.sum()
    return values[order][min(int((shares < level).sum()), len(values) - 1)]


def _least_squares(design: Tensor, values: Tensor) -> Tensor:
    penalty = RIDGE_OF_PLACES * torch.eye(design.shape[1], dtype=torch.double)
    found: Tensor = torch.linalg.solve(design.mT @ design + penalty, design.mT @ values)
    return found


def _minimised(loss: Callable[[Tensor], Tensor], size: int) -> tuple[float, ...]:
    found = torch.zeros(size, dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.LBFGS([found], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(found)
        value.backward()
        return value

    optimiser.step(closure)
    return tuple(found.detach().tolist())
