"""Fits a TrustPrior (temperatures, thresholds) on many tasks of classes that the prior was not trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from e3bm.core.learner import MetaLearner
from e3bm.fewshot.meta.pools import FeaturePool
from e3bm.fewshot.prior.ensemble_head import EnsembleHead, fit_ensemble_head
from e3bm.fewshot.prior.leave_one_out import HeldOut, leave_one_out
from e3bm.fewshot.trust import (
    FEWEST_SHOTS,
    GRID,
    Curve,
    TrustPrior,
    choose_temperature,
    known_design,
    known_scores,
    known_threshold,
    left_out_log_temperature,
    log_odds_against,
    losses_by_temperature,
)

SHOTS = (1, 2, 3, 5, 8, 12)
LEVELS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
SLOPES = tuple(np.linspace(0, 1, 11).tolist())
OFFSETS = tuple(np.linspace(-1, 1, 81).tolist())
TRUSTED = (5.0, 10.0, 20.0, 40.0, 80.0)
QUERIES = 8
RECALL = 0.95
FALSE_ALARMS = 0.01  # share of right labels that may be pointed out
NOTHING = Curve((1.0,), (0.0,))


@dataclass(frozen=True)
class TrustTask:
    """A fitted task with examples of its classes and of others."""

    pool: str
    shots: int
    head: EnsembleHead
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
    random = np.random.default_rng(seed)
    drawn: list[TrustTask] = []
    for pool in pools:
        for shots in SHOTS:
            if min(map(len, pool.members)) > shots:
                drawn += [_task(learner, pool, shots, random) for _ in range(tasks)]
                advance(len(drawn))
    trust = _with_temperatures(drawn)
    trust = _with_known(drawn, trust)
    return _with_threshold(drawn, trust)


def _task(learner: MetaLearner, pool: FeaturePool, shots: int, random: np.random.Generator) -> TrustTask:
    ways = min(len(pool.members) // 2, int(np.exp(random.uniform(np.log(2), np.log(21)))))
    classes = random.choice(len(pool.members), 2 * ways, replace=False)
    drawn = [random.permutation(pool.members[label])[: shots + QUERIES] for label in classes]
    rows = lambda parts: torch.from_numpy(pool.features[np.concatenate(parts)]).double()
    support = rows([part[:shots] for part in drawn[:ways]])
    labels = torch.arange(ways).repeat_interleave(shots)
    head = fit_ensemble_head(learner, support, labels, ways, unit_length=True)
    held_out = leave_one_out(learner, support, labels, ways, unit_length=True)
    known, other = (head.space(rows([part[shots:] for part in half])) for half in (drawn[:ways], drawn[ways:]))
    query_labels = torch.cat([torch.full((len(part) - shots,), way) for way, part in enumerate(drawn[:ways])])
    return TrustTask(
        pool.name,
        shots,
        head,
        held_out,
        head.scores(known),
        query_labels,
        head.distances(known),
        head.scores(other),
        head.distances(other),
    )


def _with_temperatures(tasks: Sequence[TrustTask]) -> TrustPrior:
    """For every number of shots an offset and a slope under which the queries are likely.

    Of the slopes that are as good as the best, up to a standard error over pools, the smallest is taken: what leaving
    out says has to be worth it on features of all kinds before a fit listens to it.
    """
    offsets, slopes = [], []
    for shots in SHOTS:
        group = [task for task in tasks if task.shots == shots]
        curves = np.stack([losses_by_temperature(task.scores, task.labels) / np.log(task.head.ways) for task in group])
        said = np.array(
            [
                0.0 if task.held_out is None else left_out_log_temperature(task.held_out.scores, task.held_out.labels)
                for task in group
            ]
        )
        best_offset = lambda slope: min(  # used at once
            (float(_losses(curves, offset + slope * said).mean()), offset)  # noqa: B023
            for offset in OFFSETS
        )[1]
        found = {slope: best_offset(slope) for slope in (SLOPES if shots > 1 else (0.0,))}
        losses = {slope: _losses(curves, offset + slope * said) for slope, offset in found.items()}
        best = min(losses.values(), key=lambda each: float(each.mean()))
        slope = next(slope for slope, each in losses.items() if _as_good(each - best, [task.pool for task in group]))
        offsets.append(found[slope])
        slopes.append(slope)
    return TrustPrior(
        temperature_offset=Curve(SHOTS, tuple(offsets)),
        temperature_slope=Curve(SHOTS, tuple(slopes)),
        known=(0.0,) * 15,
        centre=(0.0,) * 5,
        spread_levels=LEVELS,
        spread_values=(0.0,) * len(LEVELS),
        left_out_shift=NOTHING,
        trusted=TRUSTED[0],
        suspicion=0.0,
    )


def _losses(curves: np.ndarray, logarithms: np.ndarray) -> np.ndarray:
    """Each task's loss at a temperature of its own, read off the curves."""
    step = float(GRID[1] - GRID[0])
    places = np.clip(np.rint((logarithms - float(GRID[0])) / step), 0, len(GRID) - 1).astype(int)
    return np.asarray(curves[np.arange(len(curves)), places])


def _as_good(excess: np.ndarray, pools: Sequence[str]) -> bool:
    """Whether losses are above others by no more than a standard error over pools."""
    names = np.array(pools)
    means = np.array([excess[names == name].mean() for name in dict.fromkeys(pools)])
    return bool(means.mean() <= means.std() / max(1, len(means) - 1) ** 0.5)


def _with_known(tasks: Sequence[TrustTask], trust: TrustPrior) -> TrustPrior:
    """The logistic regression, and the centre and spread of its score."""
    inputs, targets, weights = [], [], []
    for task in tasks:
        temperature = choose_temperature(task.held_out, task.shots, trust)
        for scores, distances, known in (
            (task.scores, task.distances, 1.0),
            (task.other_scores, task.other_distances, 0.0),
        ):
            inputs.append(known_design((scores / temperature).logsumexp(-1), distances, task.head.facts.unsqueeze(0)))
            targets.append(torch.full((len(scores),), known, dtype=torch.double))
            weights.append(torch.full((len(scores),), 1 / len(scores), dtype=torch.double))
    regression = _logistic(torch.cat(inputs), torch.cat(targets), torch.cat(weights))
    of_known = [inputs[2 * number] @ regression for number in range(len(tasks))]
    facts = torch.stack([task.head.facts for task in tasks])
    design = torch.cat([torch.ones(len(tasks), 1).to(facts), facts], -1)
    means = torch.stack([scores.mean() for scores in of_known])
    centre = torch.linalg.lstsq(design, means.unsqueeze(-1)).solution.view(-1)
    # Quantiles around each task's own mean, then their mean: tasks differ in where their scores lie.
    levels = torch.tensor(LEVELS, dtype=torch.double)
    spread = torch.stack([torch.quantile(scores - scores.mean(), levels) for scores in of_known]).mean(0)
    deviations = [scores - expected for scores, expected in zip(of_known, design @ centre, strict=True)]
    by_shots = [
        torch.quantile(
            torch.cat([each for each, task in zip(deviations, tasks, strict=True) if task.shots == shots]), levels
        )
        for shots in SHOTS
    ]
    return _changed(
        trust,
        known=tuple(regression.tolist()),
        centre=tuple(centre.tolist()),
        spread_values=tuple(spread.tolist()),
        alone=tuple(Curve(SHOTS, tuple(column.tolist())) for column in torch.stack(by_shots, -1)),
    )


def _with_threshold(tasks: Sequence[TrustTask], trust: TrustPrior) -> TrustPrior:
    """How leaving out lowers the score, how many left-out examples count, and the odds that point out a label."""
    shifts, odds = [0.0], []
    for shots in SHOTS[1:]:
        found = []
        for task in tasks:
            if task.shots == shots and task.held_out is not None:
                held_out, temperature = task.held_out, choose_temperature(task.held_out, shots, trust)
                scores = known_scores(held_out.scores, held_out.distances, temperature, held_out.facts, trust)
                not_left_out = known_scores(
                    task.scores, task.distances, temperature, task.head.facts.unsqueeze(0), trust
                )
                expected = not_left_out.mean() - trust.known_centre(task.head.facts.unsqueeze(0))[0]
                found.append(float((scores - trust.known_centre(held_out.facts)).mean() - expected))
                if shots >= FEWEST_SHOTS:
                    odds.append(log_odds_against(held_out, temperature)[0])
        shifts.append(float(np.mean(found)))
    shifts[0] = shifts[1]
    trust = _changed(
        trust,
        left_out_shift=Curve(SHOTS, tuple(shifts)),
        suspicion=max(0.0, float(torch.quantile(torch.cat(odds), 1 - FALSE_ALARMS))),
    )
    errors = {trusted: _recall_error(tasks, _changed(trust, trusted=trusted)) for trusted in TRUSTED}
    return _changed(trust, trusted=min(errors, key=lambda trusted: errors[trusted]))


def _recall_error(tasks: Sequence[TrustTask], trust: TrustPrior) -> float:
    errors = []
    for task in tasks:
        temperature = choose_temperature(task.held_out, task.shots, trust)
        threshold = known_threshold(task.held_out, temperature, task.head.facts, task.shots, trust, RECALL)
        scores = known_scores(task.scores, task.distances, temperature, task.head.facts.unsqueeze(0), trust)
        errors.append((float((scores >= threshold).double().mean()) - RECALL) ** 2)
    return float(np.mean(errors))


def _logistic(inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Logistic regression with a little ridge, on standardised inputs."""
    scale = inputs.std(0).clamp_min(1e-9)
    scale[0] = 1.0
    found = torch.zeros(inputs.shape[1], dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.LBFGS([found], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        each = functional.binary_cross_entropy_with_logits(inputs / scale @ found, targets, reduction="none")
        value = (each * weights).sum() / weights.sum() + 1e-4 * found.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return found.detach() / scale


def _changed(trust: TrustPrior, **changes: object) -> TrustPrior:
    return replace(trust, **changes)  # type: ignore[arg-type]
