"""The outer loop's optimiser: one group per kind of parameter, learning rates a pure function of the step."""

import math

import torch
from torch import nn

from e3bm.core.learner import MetaLearner
from e3bm.errors import DivergenceError, SettingsError
from e3bm.runs.settings import OptimiserSettings


def parameter_groups(learner: MetaLearner, settings: OptimiserSettings) -> list[dict[str, object]]:
    """Every trained parameter once, with the learning rate of its kind."""
    rates = {
        "theta": settings.theta,
        "encoder": settings.encoder,
        "gradient_net": settings.gradient_net,
        "psi_rate": settings.psi_rate,
        "psi_weight": settings.psi_weight,
        "base_rate": settings.base_rate,
        "base_weight": settings.base_weight,
    }
    generators = _generators(learner)
    kinds: dict[str, list[nn.Parameter]] = {kind: [] for kind in rates}
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            kinds[_kind(name, generators)].append(parameter)
    return [
        {"params": kinds[kind], "lr": rate, "base_lr": rate, "kind": kind}
        for kind, rate in rates.items()
        if kinds[kind]
    ]


def _generators(learner: MetaLearner) -> list[str]:
    """Which of alpha and v are generated, in the order in which generators list their parameters."""
    schedules = {"psi_rate": learner.hyperprior.rate, "psi_weight": learner.hyperprior.weight}
    return [kind for kind, schedule in schedules.items() if schedule.generated]


def _kind(name: str, generators: list[str]) -> str:
    if name.startswith("hyperprior.generator."):
        # Entry i of a parameter list belongs to generator i; a joint generator has one entry and counts as alpha's.
        return generators[int(name.rpartition(".")[2])]
    for start, kind in (
        ("method.encoder.", "encoder"),
        ("method.gradient_net.", "gradient_net"),
        ("hyperprior.rate.", "base_rate"),
        ("hyperprior.weight.", "base_weight"),
    ):
        if name.startswith(start):
            return kind
    return "theta"


def build_optimiser(learner: MetaLearner, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """Adam, or SGD with Nesterov momentum, over the groups."""
    groups = parameter_groups(learner, settings)
    if not groups:
        raise SettingsError(
            "Nothing is left to train: the method, a frozen backbone and a constant hyperprior have no parameters. "
            "Train rates, votes or the backbone, or test the pre-trained run as it is."
        )
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


def check_gradients(optimiser: torch.optim.Optimizer, step: int) -> None:
    """Stop before a step that would spoil the weights, so that the last checkpoint stays good."""
    grads = [each.grad for group in optimiser.param_groups for each in group["params"] if each.grad is not None]
    if not bool(torch.isfinite(nn.utils.get_total_norm(grads))):
        raise DivergenceError(
            f"The gradient of step {step + 1} is not finite; the last checkpoint is good. "
            "Lower the learning rates, or clip gradients."
        )


def clip_gradients(optimiser: torch.optim.Optimizer, settings: OptimiserSettings) -> None:
    """Bound the gradient's elements and its length, as far as the settings say so."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    if settings.clip_elements is not None:
        nn.utils.clip_grad_value_(parameters, settings.clip_elements)
    if settings.clip is not None:
        nn.utils.clip_grad_norm_(parameters, settings.clip)
