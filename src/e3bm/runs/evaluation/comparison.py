"""Models on the same episodes, side by side: paired differences, and seeds taken together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.runs.evaluation.metrics import mean_and_interval, paired_difference
from e3bm.runs.settings import (
    HYPERPRIOR_RATES,
    DataSettings,
    HyperpriorSettings,
    MachineSettings,
    OptimiserSettings,
    PretrainSettings,
    TrainSettings,
)

Row = dict[str, Any]
NOT_PAIRED: Row = {"paired_with": None, "paired_difference": None, "paired_ci": None}


@dataclass(frozen=True)
class Tested:
    """A model's row and its accuracy on every episode."""

    row: Row
    accuracy: Float[Tensor, " N"]
    group: str  # runs that differ only in their seed are one group
    baseline: str  # the group that this one is compared with, if it was tested too


def pair(tested: list[Tested]) -> None:
    """Compare each model with its own plain method, or else with the first model, on the same episodes."""
    for result in tested:
        alike = [other for other in tested if other is not result and _same_episodes(other, result)]
        plain = [other for other in alike if other.group == result.baseline != result.group]
        with_seed = [other for other in plain if other.row["seed"] == result.row["seed"]]
        partner = next(iter(with_seed or plain or [other for other in alike if other is tested[0]]), None)
        if partner is None:
            continue
        difference, interval = paired_difference(result.accuracy, partner.accuracy)
        name = f"{partner.row['method']} ({partner.row['run']})"
        result.row.update(paired_with=name, paired_difference=difference, paired_ci=interval)


def aggregate(tested: list[Tested]) -> list[Row]:
    """One row per group of seeds: accuracies are averaged over seeds episode by episode, then compared."""
    groups: dict[str, list[Tested]] = {}
    for result in tested:
        groups.setdefault(result.group, []).append(result)
    return [_together(members, groups) for members in groups.values() if _several(members)]


def _together(members: list[Tested], groups: dict[str, list[Tested]]) -> Row:
    average = lambda key: sum(member.row[key] for member in members) / len(members)
    accuracy, interval = mean_and_interval(_mean(members))
    row = members[0].row | NOT_PAIRED | {"accuracy": accuracy, "ci": interval, "nll": average("nll")}
    row |= {"ece": average("ece"), "seconds": sum(member.row["seconds"] for member in members)}
    row |= {"seed": "mean", "seeds": [member.row["seed"] for member in members]}
    row["seed_std"] = float(torch.tensor([member.row["accuracy"] for member in members]).std(correction=1))
    row["run"] = ", ".join(member.row["run"] for member in members)
    baseline = members[0].baseline
    others = groups.get(baseline, []) if baseline != members[0].group else []
    if others and _same_episodes(others[0], members[0]):
        difference, spread = paired_difference(_mean(members), _mean(others))
        row |= {"paired_with": others[0].row["method"], "paired_difference": difference, "paired_ci": spread}
    for key in ("epoch_accuracy", "rates", "weights"):
        row[key] = torch.tensor([member.row[key] for member in members], dtype=torch.double).mean(0).tolist()
    return row


def _several(members: list[Tested]) -> bool:
    return len(members) > 1 and all(_same_episodes(member, members[0]) for member in members)


def _mean(members: list[Tested]) -> Float[Tensor, " N"]:
    return torch.stack([member.accuracy for member in members]).mean(0)


def _same_episodes(one: Tested, other: Tested) -> bool:
    return bool(one.row["episodes_hash"] == other.row["episodes_hash"])


# Which runs are one system with several seeds, and which system is another one's baseline.


ELSEWHERE = Path("elsewhere")


def group_of(settings: TrainSettings | PretrainSettings) -> str:
    """The same for runs that differ only in seed, name and place; a seed may have a backbone or a source of its own."""
    data: DataSettings = settings.data.but(folder=None)
    if isinstance(settings, PretrainSettings):
        return settings.but(seed=0, data=data, machine=MachineSettings(), checkpoint_every=1).digest()
    hyperprior = settings.hyperprior
    if hyperprior.frozen_from is not None:
        hyperprior = hyperprior.but(frozen_from=ELSEWHERE)
    backbone = settings.backbone.but(pretrained=None)
    precision = settings.machine.precision
    machine = MachineSettings(precision=precision)
    changes = {"data": data, "hyperprior": hyperprior, "backbone": backbone, "machine": machine}
    if (hyperprior.rate, hyperprior.weight) == ("constant", "last"):
        # Learning rates of what a plain method does not have make no difference to it.
        unused = {name: OptimiserSettings.model_fields[name].default for name in HYPERPRIOR_RATES}
        changes |= {"hyperprior": HyperpriorSettings(), "optimiser": settings.optimiser.but(**unused)}
    return settings.but(seed=0, name="", checkpoint_every=1, **changes).digest()


def baseline_group_of(settings: TrainSettings) -> str:
    """The group of the same method alone: constant alpha, only the last epoch votes."""
    return group_of(settings.but(hyperprior=HyperpriorSettings()))


def kind_of(settings: TrainSettings) -> str | None:
    """The hyperprior by the name that presets have for it; None for an ablation."""
    hyperprior = settings.hyperprior
    match hyperprior.rate, hyperprior.weight:
        case "constant", "last":
            return "plain"
        case "generated", "generated":
            return f"{hyperprior.generator}-{hyperprior.setting}"
    return None
