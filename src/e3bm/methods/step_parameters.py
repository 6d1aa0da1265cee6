"""Parameters that MAML++ has for every inner step: learning rates of each tensor, and BatchNorm's scales and shifts."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.errors import SettingsError
from e3bm.methods.maml_passes import Parameters, parameter_names
from e3bm.methods.step_statistics import Part, step_of


class StepRates(nn.Module):
    """A learned rate for every inner step and tensor, in units of rates; all start at the base rate.

    An epoch's rate divided by the base rate multiplies them: a constant schedule leaves them as they are, and rates
    that are learned or generated for a task raise or lower them together.
    """

    base: Tensor

    def __init__(self, tensors: int, epochs: int, rate: float) -> None:
        super().__init__()
        self.register_buffer("base", torch.tensor(float(rate)))
        self.values = nn.Parameter(torch.full((epochs, tensors), float(rate)))

    def forward(self, updates: int, rate: Float[Tensor, " T"]) -> Float[Tensor, "T L"]:
        values = self.values[check_step(updates, len(self.values), "learning rates")]
        return (rate / self.base).unsqueeze(1) * values


class StepNorms(nn.Module):
    """BatchNorm's scales and shifts for every inner step, which start as the backbone has them.

    The backbone's own are then used by nobody and are not trained.
    """

    def __init__(self, backbone: nn.Module, epochs: int) -> None:
        super().__init__()
        own = dict(backbone.named_parameters())
        fixed = [own[name] for name in parameter_names(backbone).fixed]
        self.epochs = epochs
        self.values = nn.ParameterList(each.detach().expand(epochs, -1).clone() for each in fixed)
        for each in fixed:
            each.requires_grad_(False)

    def forward(self, part: Part, updates: int) -> Parameters:
        step = check_step(step_of(part, updates), self.epochs, "BatchNorm weights")
        return tuple(each[step] for each in self.values)


def check_step(step: int, epochs: int, what: str) -> int:
    """Refuse a step that has no parameters of its own."""
    if step >= epochs:
        raise SettingsError(
            f"MAML++ has {what} for {epochs} inner epochs but epoch {step + 1} was asked for; train and test with the "
            "same number, or switch its per-step parameters off."
        )
    return step
