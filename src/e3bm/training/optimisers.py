"""The outer loop's optimiser: one group per kind of parameter, learning rates a pure function of the step."""

import math

import torch
from torch import nn

from e3bm.core.learner import MetaLearner
from e3bm.settings import OptimiserSettings


def parameter_groups(learner: MetaLearner, settings: OptimiserSettings) -> list[dict[str, object]]:
    """Every trained parameter once, with the learning rate of its kind."""
    rates = {
        "theta": settings.theta,
        "encoder": settings.encoder,
        "psi_rate": settings.psi_rate,
        "psi_weight": settings.psi_weight,
        "base_rate": settings.base_rate,
        "base_weight": settings.base_weight,
    }
    kinds: dict[str, list[nn.Parameter]] = {kind: [] for kind in rates}
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            kinds[_kind(name)].append(parameter)
    return [
        {"params": kinds[kind], "lr": rate, "base_lr": rate, "kind": kind}
        for kind, rate in rates.items()
        if kinds[kind]
    ]


def _kind(name: str) -> str:
    if name.startswith("method.encoder."):
        return "encoder"
    if name.startswith("hyperprior.rate."):
        return "base_rate"
    if name.startswith("hyperprior.weight."):
        return "base_weight"
    if name.startswith("hyperprior.generator."):
        # Parameters of separate generators are lists: entry 0 is alpha's, entry 1 is v's.
        return "psi_weight" if name.endswith(".1") else "psi_rate"
    return "theta"


def build_optimiser(learner: MetaLearner, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """Adam, or SGD with Nesterov momentum, over the groups."""
    groups = parameter_groups(learner, settings)
    if settings.kind == "adam":
        return torch.optim.Adam(groups, weight_decay=settings.weight_decay)
    return torch.optim.SGD(groups, lr=settings.theta, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay)


def schedule_factor(settings: OptimiserSettings, step: int) -> float:
    """What learning rates are multiplied by at a step."""
    if settings.schedule == "step":
        return float(settings.step_factor ** (step // settings.step_every))
    if settings.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / settings.steps))
    return 1.0


def clip_gradients(optimiser: torch.optim.Optimizer, settings: OptimiserSettings) -> None:
    """Bound the gradient's elements and its length, as far as the settings say so."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    if settings.clip_elements is not None:
        nn.utils.clip_grad_value_(parameters, settings.clip_elements)
    if settings.clip is not None:
        nn.utils.clip_grad_norm_(parameters, settings.clip)
