"""The softmax cross-entropy of a support set in closed form: its value, and its derivative by the scores.

Inside the heads scores are [T, W, S], a row for each class: a softmax over the last axis would be many times slower for
a few classes, and rows of scores match rows of weights.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


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
