"""BatchNorm that knows about episodes: a task's own statistics, or the running ones, and never a mixture of tasks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from e3bm.errors import DataError, SettingsError

BatchNormMode = Literal["standard", "batch", "running"]


@runtime_checkable
class SetsStatisticsAside(Protocol):
    """A layer whose running statistics move only when it is told to: in a backbone, or in a method's head."""

    num_features: int

    def take(self) -> Float[Tensor, "calls 2 C"]:
        """The mean and unbiased variance of each call since the last time, in order."""
        ...

    def commit(self, calls: Float[Tensor, "calls 2 C"]) -> None:
        """Move the running statistics by each call in turn."""
        ...


class TaskBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` with the same parameters and buffers, and a mode.

    ``standard`` is ``nn.BatchNorm2d`` itself, governed by train() and eval(). ``batch`` normalises with the statistics
    of the call's own images, ``running`` with the running ones, both whatever train() and eval() say. In ``batch`` mode
    with ``update`` on, the statistics of every call are set aside, for ``commit_statistics`` to apply in task order.
    """

    mode: BatchNormMode = "standard"
    update: bool = False

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, True, device, dtype)
        self.pending: list[Float[Tensor, "2 C"]] = []

    def forward(self, input: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        if self.mode == "standard":
            return super().forward(input)
        mean, variance = self.running_mean, self.running_var
        assert mean is not None
        assert variance is not None
        if self.mode == "running":
            if torch.is_grad_enabled():  # a commit before the backward pass must not change what the graph has saved
                mean, variance = mean.clone(), variance.clone()
            return F.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        if input.numel() == input.shape[1]:
            raise DataError(
                f"Batch statistics need more than one value per channel, found an activation of shape "
                f"{tuple(input.shape)}; encode more or larger images, or use the running statistics."
            )
        if not self.update:
            return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
        call = torch.zeros(2, self.num_features, dtype=mean.dtype, device=mean.device)
        # With momentum 1 the operation leaves this call's mean and unbiased variance in the buffers it is given.
        output = F.batch_norm(input, call[0], call[1], self.weight, self.bias, True, 1.0, self.eps)
        self.pending.append(call)
        return output

    def take(self) -> Float[Tensor, "calls 2 C"]:
        """What was set aside since the last time."""
        assert self.running_mean is not None
        empty = self.running_mean.new_empty(0, 2, self.num_features)
        taken = torch.stack(self.pending) if self.pending else empty
        self.pending.clear()
        return taken

    def commit(self, calls: Float[Tensor, "calls 2 C"]) -> None:
        """Move the running statistics by each call in turn, as ``nn.BatchNorm2d`` would have done."""
        mean, variance, seen = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert variance is not None
        assert seen is not None
        with torch.no_grad():
            running = torch.stack([mean, variance])
            for call in calls.to(running):
                seen.add_(1)
                share = self.momentum if self.momentum is not None else 1.0 / float(seen)
                running = share * call + (1.0 - share) * running
            mean.copy_(running[0])
            variance.copy_(running[1])


def task_batchnorms(module: nn.Module) -> list[TaskBatchNorm2d]:
    """Every TaskBatchNorm2d of a network, in the order of its modules."""
    return [layer for layer in module.modules() if isinstance(layer, TaskBatchNorm2d)]


def set_batchnorm(module: nn.Module, mode: BatchNormMode, update: bool = False) -> None:
    """Put every BatchNorm layer of a network into one mode."""
    if mode not in get_args(BatchNormMode):
        raise SettingsError(f"There is no BatchNorm mode '{mode}'; known: {', '.join(get_args(BatchNormMode))}.")
    for layer in task_batchnorms(module):
        layer.mode, layer.update = mode, update


@contextmanager
def batchnorm_mode(module: nn.Module, mode: BatchNormMode, update: bool = False) -> Iterator[None]:
    """Put every BatchNorm layer into one mode for a while, and back into its own afterwards."""
    before = [(layer, layer.mode, layer.update) for layer in task_batchnorms(module)]
    set_batchnorm(module, mode, update)
    try:
        yield
    finally:
        for layer, its_mode, its_update in before:
            layer.mode, layer.update = its_mode, its_update


def pop_statistics(module: nn.Module) -> list[Float[Tensor, "_ 2 _"]]:
    """Take what was set aside since the last time: per layer, the mean and unbiased variance of each call in order.

    Popped after every ``encode``, the calls are tasks: processes that hold consecutive tasks concatenate theirs along
    the first axis and all commit the same.
    """
    return [layer.take() for layer in _with_statistics(module)]


def commit_statistics(module: nn.Module, gathered: Sequence[Float[Tensor, "_ 2 _"]]) -> None:
    """Apply popped (and, across processes, gathered) statistics to the running ones, call by call."""
    layers = _with_statistics(module)
    if len(layers) != len(gathered):
        raise SettingsError(
            f"The network has {len(layers)} BatchNorm layers but statistics for {len(gathered)} were given; "
            "commit what pop_statistics returned for the same network."
        )
    for layer, calls in zip(layers, gathered, strict=True):
        if calls.shape[1:] != (2, layer.num_features):
            raise SettingsError(
                f"A BatchNorm layer of {layer.num_features} channels was given statistics of shape "
                f"{tuple(calls.shape)}; expected (calls, 2, {layer.num_features})."
            )
        layer.commit(calls)


def _with_statistics(module: nn.Module) -> list[SetsStatisticsAside]:
    return [layer for layer in module.modules() if isinstance(layer, SetsStatisticsAside)]


def convert_batchnorm(module: nn.Module) -> nn.Module:
    """Give a network TaskBatchNorm2d in place of nn.BatchNorm2d; parameters and buffers stay the same objects."""
    if isinstance(module, _BatchNorm):
        return _converted(module)
    for name, child in module.named_children():
        module.add_module(name, convert_batchnorm(child))
    return module


def _converted(layer: _BatchNorm) -> TaskBatchNorm2d:
    if isinstance(layer, TaskBatchNorm2d):
        return layer
    if type(layer) is not nn.BatchNorm2d or not layer.track_running_stats:
        raise SettingsError(
            f"The network has a {layer}, which cannot keep each task's statistics apart; "
            "only nn.BatchNorm2d with running statistics (or layers without batch statistics) can be used."
        )
    converted = TaskBatchNorm2d(
        layer.num_features, eps=layer.eps, momentum=layer.momentum, affine=layer.affine, device="meta"
    )
    converted.weight, converted.bias = layer.weight, layer.bias
    converted.running_mean, converted.running_var = layer.running_mean, layer.running_var
    converted.num_batches_tracked = layer.num_batches_tracked
    return converted.train(layer.training)
