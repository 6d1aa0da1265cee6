"""BatchNorm inside a head: each task's own statistics in training, running averages in tests.

The statistics of a task are set aside in training; whatever trains the model collects and applies them in task order,
so that tasks never mix and the result does not depend on which process held which task.
"""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from e3bm.errors import DataError, SettingsError

EPS, MOMENTUM = 1e-5, 0.1


class HeadNorm(nn.Module):
    """Normalises rows of T tasks; a row may count several times, or not at all where it is padding."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.num_features = features
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.pending: list[Float[Tensor, "2 H"]] = []

    def forward(
        self, values: Float[Tensor, "T N H"], counts: Float[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N H"]:
        """``counts`` says how often each row enters its task's statistics; without it every row enters once."""
        if not self.training:
            scale, shift = self.line()
            return torch.addcmul(shift, values, scale)
        if counts is None:
            counts = values.new_ones(values.shape[:2])
        total = counts.sum(1).view(-1, 1, 1)
        if not bool((total > 1).all()):
            raise DataError(
                f"Batch statistics need two or more examples a task, found {total.flatten().tolist()}; "
                "use larger episodes, or eval(), which normalises by running averages."
            )
        share = counts.unsqueeze(1) / total
        normalised, mean, variance = Normalise.apply(values, share, self.weight, self.bias)
        unbiased = variance * (total / (total - 1))
        self.pending.extend(torch.cat([mean, unbiased], 1).unbind(0))
        return cast(Tensor, normalised)

    def line(self) -> tuple[Float[Tensor, " H"], Float[Tensor, " H"]]:
        """By running averages the layer is scale * x + shift."""
        # Copies, because averages that move before the backward pass must not change what the graph has saved.
        scale = self.weight * (self.running_var.clone() + EPS).rsqrt()
        return scale, self.bias - self.running_mean.clone() * scale

    def take(self) -> Float[Tensor, "calls 2 H"]:
        """Mean and unbiased variance of each task of each call since the last time."""
        taken = torch.stack(self.pending) if self.pending else self.running_mean.new_empty(0, 2, self.num_features)
        self.pending.clear()
        return taken

    @torch.no_grad()
    def commit(self, calls: Float[Tensor, "calls 2 H"]) -> None:
        """Move the running averages by each of them in turn."""
        running = torch.stack([self.running_mean, self.running_var])
        for call in calls.to(running):
            self.num_batches_tracked.add_(1)
            running = MOMENTUM * call + (1 - MOMENTUM) * running
        self.running_mean.copy_(running[0])
        self.running_var.copy_(running[1])


class Normalise(Function):
    """weight * (x - mean) / sqrt(variance + EPS) + bias, with mean and variance of each task, both constants outside.

    Torch's own derivative of these steps goes through all rows more than twice as often. There is no second one: it
    would need the values, too, which nothing else keeps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Float[Tensor, "T N H"],
        share: Float[Tensor, "T 1 N"],
        weight: Float[Tensor, " H"],
        bias: Float[Tensor, " H"],
    ) -> tuple[Float[Tensor, "T N H"], Float[Tensor, "T 1 H"], Float[Tensor, "T 1 H"]]:
        mean = share @ values
        centred = values - mean
        variance = share @ centred.square()
        inverse = (variance + EPS).rsqrt()
        ctx.save_for_backward(centred, share, inverse, weight)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(bias, centred, weight * inverse), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        if torch.is_grad_enabled():  # torch's word for create_graph; else the second derivative would lack a part
            raise SettingsError(
                "The BatchNorm of a head (HeadNorm) has no second derivative, but one was asked for "
                "(create_graph=True); take first-order gradients, or torch.nn.BatchNorm1d task by task."
            )
        centred, share, inverse, weight = ctx.saved_tensors
        gradient = gradients[0]
        by_bias = gradient.sum(1, keepdim=True)
        by_weight = (gradient * centred).sum(1, keepdim=True) * inverse
        # A row moves its own value, and by its share the mean and the variance of all.
        of_all = torch.addcmul(by_bias, centred, by_weight * inverse).mul_(share.mT)
        of_row = torch.sub(gradient, of_all, out=of_all).mul_(weight * inverse)
        return of_row, None, by_weight.sum((0, 1)), by_bias.sum((0, 1))


class NormedLinear(nn.Module):
    """A linear layer and its HeadNorm; by running averages the two are one matrix product."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.norm = HeadNorm(outputs)

    def forward(
        self, values: Float[Tensor, "T N I"], counts: Float[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N O"]:
        if self.training:
            normalised: Tensor = self.norm(self.linear(values), counts)
            return normalised
        return functional.linear(values, *self.matrix())

    def matrix(self) -> tuple[Float[Tensor, "O I"], Float[Tensor, " O"]]:
        """By running averages the two are this matrix and shift."""
        scale, shift = self.norm.line()
        if self.linear.bias is not None:
            shift = torch.addcmul(shift, self.linear.bias, scale)
        return self.linear.weight * scale.unsqueeze(1), shift
