"""Models on the same episodes, side by side: paired differences, and seeds taken together field by field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.errors import SettingsError
from e3bm.runs.evaluation.metrics import mean_and_interval, paired_difference
from e3bm.runs.result import Bins, Result
from e3bm.runs.system import baseline_of


@dataclass(frozen=True)
class Measured:
    """A model's result and its accuracy on every episode, where that is known."""

    result: Result
    accuracy: Float[Tensor, " N"] | None
    metrics: Mapping[str, Float[Tensor, " N"]] = field(default_factory=dict)
    """Every other metric on every episode, by name, where it is known."""


def pair(tested: Sequence[Measured]) -> list[Measured]:
    """Compare each model with its own baseline, or else with the first model, on the same episodes.

    Where the first model is compared with its baseline, that baseline stands for itself.
    """
    return [_paired(each, tested) for each in tested]


def _baseline(one: Measured, tested: Sequence[Measured]) -> Measured | None:
    others = [other for other in tested if other is not one]
    found = baseline_of(one.result, [other.result for other in others])
    return next((other for other in others if other.result is found), None)


def _paired(one: Measured, tested: Sequence[Measured]) -> Measured:
    first = tested[0]
    alike = first is not one and first.result.protocol == one.result.protocol
    partner = _baseline(one, tested) or (first if alike and _baseline(first, tested) is not one else None)
    if partner is None or partner.accuracy is None or one.accuracy is None:
        return one
    difference, interval = paired_difference(one.accuracy, partner.accuracy)
    name = f"{partner.result.method} ({partner.result.run})"
    metrics = one.result.metrics | _metric_differences([one], [partner])
    changes = {"paired_with": name, "paired_difference": difference, "paired_ci": interval, "metrics": metrics}
    return replace(one, result=one.result.but(**changes))


def seeds_together(tested: Sequence[Measured]) -> list[Result]:
    """One result per system that was tested with several seeds, compared with its baseline where that is there."""
    systems: dict[tuple[Any, ...], list[Measured]] = {}
    for each in tested:
        systems.setdefault((each.result.system, each.result.protocol), []).append(each)
    found = []
    for members in systems.values():
        if len(members) > 1:
            first = members[0].result
            baseline = systems.get((first.baseline, first.protocol), []) if first.baseline != first.system else []
            found.append(together(members, baseline))
    return found


def together(members: Sequence[Measured], baseline: Sequence[Measured] = ()) -> Result:
    """Seeds of one system on the same episodes as one result, and its difference to a baseline's seeds.

    Accuracy is averaged over seeds episode by episode. Every other field has its rule below; none is one seed's.
    """
    results = [member.result for member in members]
    if len(members) == 1:
        return results[0].but(**_difference(members, baseline))
    values = {name: rule(name, [getattr(each, name) for each in results]) for name, rule in RULES.items()}
    mean = mean_accuracy(members)
    # Without the single answers the seeds' own intervals stand, which are wider than that of their mean.
    own = fmean(each.accuracy for each in results), fmean(each.ci for each in results)
    accuracy, interval = own if mean is None else mean_and_interval(mean)
    return Result.model_validate(
        values
        | {
            "accuracy": accuracy,
            "ci": interval,
            "seed": "mean",
            "seeds": tuple(int(each.seed) for each in results),
            "seed_std": stdev(each.accuracy for each in results),
        }
        | _difference(members, baseline)
        | {"metrics": values["metrics"] | _metric_differences(*_same_seeds(members, baseline))}
    )


def _difference(members: Sequence[Measured], baseline: Sequence[Measured]) -> dict[str, Any]:
    """The paired difference over the seeds that both have, or else over all."""
    members, baseline = _same_seeds(members, baseline)
    ours, theirs = mean_accuracy(members), mean_accuracy(baseline) if baseline else None
    if ours is None or theirs is None:
        return {"paired_with": None, "paired_difference": None, "paired_ci": None}
    difference, interval = paired_difference(ours, theirs)
    return {"paired_with": baseline[0].result.method, "paired_difference": difference, "paired_ci": interval}


def _same_seeds(
    members: Sequence[Measured], baseline: Sequence[Measured]
) -> tuple[Sequence[Measured], Sequence[Measured]]:
    """Those of both sides whose seeds both have, or else all."""
    shared = {each.result.seed for each in members} & {each.result.seed for each in baseline}
    chosen = lambda side: [each for each in side if not shared or each.result.seed in shared]
    return chosen(members), chosen(baseline)


def _metric_differences(members: Sequence[Measured], baseline: Sequence[Measured]) -> dict[str, float]:
    """For every metric that both sides have on every episode: its paired difference, and the interval of that."""
    both = [*members, *baseline]
    names = [name for name in both[0].metrics if all(name in each.metrics for each in both)] if baseline else []
    found = {}
    for name in names:
        ours, theirs = (torch.stack([each.metrics[name] for each in side]).mean(0) for side in (members, baseline))
        found[f"{name}_difference"], found[f"{name}_difference_ci"] = paired_difference(ours, theirs)
    return found


def mean_accuracy(members: Sequence[Measured]) -> Float[Tensor, " N"] | None:
    """Accuracy of every episode, averaged over seeds; None where an answer was not kept."""
    known = [member.accuracy for member in members if member.accuracy is not None]
    return torch.stack(known).mean(0) if len(known) == len(members) else None


# What becomes of a field when several seeds are one result.

Rule = Callable[[str, list[Any]], Any]


def _same(name: str, values: list[Any]) -> Any:
    if any(value != values[0] for value in values):
        raise SettingsError(f"Seeds of one system differ in their {name}: {values}; they cannot be averaged.")
    return values[0]


def _named(name: str, values: list[Any]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _average(name: str, values: list[float]) -> float:
    return fmean(values)


def _averages(name: str, values: list[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(each[name] for each in values) for name in values[0] if all(name in each for each in values)}


def _curve(name: str, values: list[tuple[float, ...]]) -> tuple[float, ...]:
    if len({len(value) for value in values}) > 1:
        return ()
    return tuple(fmean(each) for each in zip(*values, strict=True))


def _pooled(name: str, values: list[Bins | None]) -> Bins | None:
    known = [value for value in values if value is not None]
    return Bins.pooled(known) if len(known) == len(values) else None


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "format", "setting", "hyperprior", "schedules", "batchnorm", "transductive_batchnorm", "order", "epochs",
            "backbone", "trained_on", "parameters", "dataset", "split", "episodes", "episodes_hash", "episodes_seed",
            "data_digest", "ways", "shots", "queries", "query_shares", "seen_classes", "system", "baseline", "apart",
        ),
        _same,
    ),
    **dict.fromkeys(("method", "settings_digest", "commit", "run", "checkpoint"), _named),
    **dict.fromkeys(("epoch_accuracy", "rates", "weights"), _curve),
    **dict.fromkeys(("ece", "seconds", "train_seconds"), _average),
    "metrics": _averages,
    "reliability": _pooled,
}  # fmt: skip
