"""Where the base learner starts: Theta_0 = theta (Eq. 5)."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.methods.base import check_ways
from e3bm.methods.labelled import LabelledSupport


@runtime_checkable
class Initialiser(Protocol):
    """Weights and biases of a head before its first epoch."""

    def __call__(
        self, support: Float[Tensor, "T S D"], labelled: LabelledSupport
    ) -> tuple[Float[Tensor, "T W D"], Float[Tensor, "T W"]]: ...


class LearnedStart(nn.Module):
    """theta is meta-learned, the same for every task: bound to a number of ways."""

    def __init__(self, ways: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(ways, features))
        self.bias = nn.Parameter(torch.zeros(ways))
        nn.init.normal_(self.weight, std=(2.0 / features) ** 0.5)  # kaiming over the inputs

    def forward(
        self, support: Float[Tensor, "T S D"], labelled: LabelledSupport
    ) -> tuple[Float[Tensor, "T W D"], Float[Tensor, "T W"]]:
        tasks, ways = support.shape[0], labelled.class_share.shape[1]
        check_ways(self.weight.shape[0], ways, "learned initialiser")
        return self.weight.expand(tasks, -1, -1), self.bias.expand(tasks, -1)


class PrototypeStart(nn.Module):
    """theta is the task's class means: any number of ways.

    The start is the nearest-class-mean rule, s (mu.x - |mu|^2/2) with a learned s. With ``constant`` no gradient flows
    through the means, as published.
    """

    def __init__(self, *, constant: bool) -> None:
        super().__init__()
        self.constant = constant
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(
        self, support: Float[Tensor, "T S D"], labelled: LabelledSupport
    ) -> tuple[Float[Tensor, "T W D"], Float[Tensor, "T W"]]:
        means = labelled.class_means(support.detach() if self.constant else support)
        scale = self.log_scale.exp()
        return scale * means, -scale * means.square().sum(-1) / 2
