"""The softmax cross-entropy of a support set in closed form: its value, and its derivative by the scores.

Inside the heads scores are [T, W, S], a row for each class: a softmax over the last axis would be many times slower for
a few classes, and rows of scores match rows of weights.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from e3bm.methods.base import check_ways


class LabelledSupport:
    """Labels of T support sets; padded examples have no share in the mean (Eq. 7)."""

    def __init__(self, labels: Int[Tensor, "T S"], mask: Bool[Tensor, "T S"], ways: int, dtype: torch.dtype) -> None:
        real = mask.to(dtype).unsqueeze(1)
        self.share: Float[Tensor, "T 1 S"] = real / real.sum(-1, keepdim=True)
        one_hot = functional.one_hot(labels, ways).to(dtype).mT.contiguous()
        self.minus_targets: Float[Tensor, "T W S"] = -one_hot * self.share
        self.class_share: Float[Tensor, "T W S"] = one_hot * real / (one_hot * real).sum(-1, keepdim=True)

    def residual(self, log_probabilities: Float[Tensor, "T W S"]) -> Float[Tensor, "T W S"]:
        """(softmax - target) / number of real examples: the gradient of the mean loss by the scores."""
        return torch.addcmul(self.minus_targets, log_probabilities.exp(), self.share)

    def loss(self, log_probabilities: Float[Tensor, "T W S"]) -> Float[Tensor, " T"]:
        """Mean cross-entropy over the real examples."""
        return (log_probabilities * self.minus_targets).sum((1, 2))

    def class_means(self, features: Float[Tensor, "T S D"]) -> Float[Tensor, "T W D"]:
        """Prototypes: the mean of each class's real examples."""
        return self.class_share @ features


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
        self.check_ways(ways)
        return self.weight.expand(tasks, -1, -1), self.bias.expand(tasks, -1)

    def check_ways(self, ways: int) -> None:
        check_ways(self.weight.shape[0], ways, "learned initialiser")


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
