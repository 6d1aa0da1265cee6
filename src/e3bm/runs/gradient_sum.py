"""Gradients of all processes added up in buckets, each sent as soon as it is complete, while the backward pass runs.

A backward pass finishes the gradients of the last layers first, so buckets are filled from the last parameter to the
first. Every process sends them in the same order, whatever order its own gradients come in, and a process without
tasks sends zeros. Only gloo on CPU has been run; nccl is untested.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn

BUCKET_BYTES = 1 << 20
"""Small enough that the first leaves early, large enough that messages are few."""


class _Bucket:
    """Some parameters whose gradients travel in one message."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing = len(parameters)
        self._flat: Tensor | None = None
        self._work: distributed.Work | None = None

    @property
    def sent(self) -> bool:
        return self._flat is not None

    def send(self) -> None:
        """Send the gradients; a parameter that was not used has the gradient zero."""
        self._flat = torch.cat([_gradient(parameter).flatten() for parameter in self.parameters])
        self._work = distributed.all_reduce(self._flat, async_op=True)

    def receive(self) -> None:
        """Wait for the sum, and put it into its places."""
        assert self._flat is not None
        if self._work is not None:
            self._work.wait()
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, part in zip(self.parameters, self._flat.split(sizes), strict=True):
            gradient = _gradient(parameter)
            gradient.copy_(part.view_as(gradient))


@contextmanager
def summed_gradients(parameters: Iterable[nn.Parameter], bucket_bytes: int = BUCKET_BYTES) -> Iterator[None]:
    """After the block, which holds one backward pass or none, gradients are the sums over all processes."""
    buckets = _buckets([parameter for parameter in parameters if parameter.requires_grad], bucket_bytes)
    place = {parameter: bucket for bucket in buckets for parameter in bucket.parameters}

    def note(parameter: Tensor) -> None:
        bucket = place[parameter]  # type: ignore[index]  # the hook gives the parameter itself
        assert not bucket.sent, "a gradient changed after it was sent: there was a second backward pass"
        bucket.missing -= 1
        # In the same order everywhere: a later bucket waits for the ones before it.
        for other in buckets:
            if other.sent:
                continue
            if other.missing > 0:
                break
            other.send()

    hooks = [parameter.register_post_accumulate_grad_hook(note) for parameter in place]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for bucket in buckets:
        if not bucket.sent:
            bucket.send()
    for bucket in buckets:
        bucket.receive()


def _buckets(parameters: list[nn.Parameter], bucket_bytes: int) -> list[_Bucket]:
    """Parameters from the last to the first, in groups of one precision and about so many bytes."""
    groups: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed(parameters):
        if not groups or size >= bucket_bytes or groups[-1][0].dtype != parameter.dtype:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.nbytes
    return [_Bucket(group) for group in groups]


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
