"""The outer loop's optimiser: one group per kind of parameter, learning rates a pure function of the step."""

import math
from collections.abc import Mapping

import torch
from torch import nn

from e3bm.core.learner import Learner
from e3bm.errors import DivergenceError, SettingsError
from e3bm.runs.settings import HYPERPRIOR_RATES, OptimiserSettings


def parameter_groups(learner: Learner, rates: Mapping[str, float]) -> list[dict[str, object]]:
    """Every trained parameter once, with the learning rate of its kind."""
    kinds = {id(parameter): kind for kind, members in learner.parameter_kinds().items() for parameter in members}
    groups: dict[str, list[nn.Parameter]] = {kind: [] for kind in rates}
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            kind = kinds.get(id(parameter))
            if kind not in groups:
                raise SettingsError(
                    f"The parameter {name} has no learning rate: its kind is {kind or 'unknown'}, and there are rates "
                    f"for {', '.join(rates)}. A method names its kinds in parameter_kinds and learning_rates."
                )
            groups[kind].append(parameter)
    return [
        {"params": groups[kind], "lr": rate, "base_lr": rate, "kind": kind}
        for kind, rate in rates.items()
        if groups[kind]
    ]


def build_optimiser(
    learner: Learner, settings: OptimiserSettings, own_rates: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """Adam, or SGD with momentum, over the groups; ``own_rates`` are those of the method's own kinds."""
    rates = {"theta": settings.theta, "encoder": settings.encoder, **(own_rates or {})}
    rates |= {kind: getattr(settings, kind) for kind in HYPERPRIOR_RATES}
    groups = parameter_groups(learner, rates)
    if not groups:
        raise SettingsError(
            "Nothing is left to train: the method, a frozen backbone and a constant hyperprior have no parameters. "
            "Train rates, votes or the backbone."
        )
    if settings.kind == "adam":
        return torch.optim.Adam(groups, weight_decay=settings.weight_decay)
    decay, nesterov = settings.weight_decay, settings.nesterov
    return torch.optim.SGD(groups, lr=settings.theta, momentum=0.9, nesterov=nesterov, weight_decay=decay)


def schedule_factor(settings: OptimiserSettings, step: int) -> float:
    """What learning rates are multiplied by at a step."""
    if settings.schedule == "step":
        return float(settings.step_factor ** (step // settings.step_every))
    if settings.schedule == "milestones":
        factors = settings.factors or (settings.step_factor,) * len(settings.milestones)
        passed = (step >= milestone for milestone in settings.milestones)
        return math.prod(factor for factor, reached in zip(factors, passed, strict=True) if reached)
    if settings.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / settings.steps))
    return 1.0


def check_gradients(optimiser: torch.optim.Optimizer, step: int) -> None:
    """Stop before a step that would spoil the weights, so that the last checkpoint stays good."""
    grads = [each.grad for group in optimiser.param_groups for each in group["params"] if each.grad is not None]
    if not bool(torch.isfinite(nn.utils.get_total_norm(grads))):
        raise DivergenceError(
            f"The gradient of step {step + 1} is not finite; the last checkpoint is intact. "
            "Lower the learning rates, or clip gradients."
        )


def clip_gradients(optimiser: torch.optim.Optimizer, settings: OptimiserSettings) -> None:
    """Bound the gradient's elements, each tensor's length and that of all, as far as the settings say so."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    if settings.clip_elements is not None:
        nn.utils.clip_grad_value_(parameters, settings.clip_elements)
    if settings.clip_each is not None:
        for parameter in parameters:
            nn.utils.clip_grad_norm_(parameter, settings.clip_each)
    if settings.clip is not None:
        nn.utils.clip_grad_norm_(parameters, settings.clip)
