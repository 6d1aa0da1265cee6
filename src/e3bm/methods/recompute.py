"""Computations that are run again in the backward pass instead of keeping what they computed: memory for time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Computation = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


class Recomputed(Function):
    """The computation may itself take gradients, for which torch's own checkpoints would run it once more."""

    @staticmethod
    def forward(ctx: Any, compute: Computation, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.compute = compute
        ctx.randomness = torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        return compute(inputs)  # gradients are switched off in here

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        inputs = [each.detach().requires_grad_(want) for each, want in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.randomness)
            outputs = ctx.compute(inputs)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        sources = [each for each in inputs if each.requires_grad]
        found = iter(
            torch.autograd.grad([pair[0] for pair in pairs], sources, [pair[1] for pair in pairs], allow_unused=True)
            if pairs
            else [None] * len(sources)
        )
        return None, *(next(found) if want else None for want in wanted)


def run(compute: Computation, inputs: Sequence[Tensor], *, recompute: bool) -> tuple[Tensor, ...]:
    """The results of a deterministic computation on its differentiable inputs."""
    if recompute and torch.is_grad_enabled():
        return Recomputed.apply(compute, *inputs)  # type: ignore[no-any-return]
    return compute(inputs)
