"""Backbones for inference only: BatchNorm with running statistics becomes part of the convolution before it."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from e3bm.backbones.base import Backbone
from e3bm.backbones.normalisation import TaskBatchNorm2d, set_batchnorm
from e3bm.backbones.scale_shift import ScaleShiftConv2d


@torch.no_grad()
def fold_batchnorm(backbone: Backbone) -> Backbone:
    """A frozen copy in eval mode that gives the same features faster; scales and shifts are folded in too.

    A BatchNorm that does not directly follow a convolution (before the blocks of a WRN) stays what it is.
    """
    folded = deepcopy(backbone).eval().requires_grad_(False)
    set_batchnorm(folded, "running")
    for name, module in list(folded.named_modules()):
        if isinstance(module, ScaleShiftConv2d):
            folded.set_submodule(name, _plain(module, *module.effective()))
    for conv_name, norm_name in folded.conv_norm_pairs():
        conv, norm = folded.get_submodule(conv_name), folded.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, TaskBatchNorm2d)
        folded.set_submodule(conv_name, _folded(conv, norm))
        folded.set_submodule(norm_name, nn.Identity().eval())
    folded.folded = True
    return folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _folded(conv: nn.Conv2d, norm: TaskBatchNorm2d) -> nn.Conv2d:
    """One convolution for two layers, computed in float64 so that only the result is rounded."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.affine:
        factor = factor * norm.weight.double()
    bias = -norm.running_mean.double() if conv.bias is None else conv.bias.double() - norm.running_mean.double()
    bias = bias * factor
    if norm.affine:
        bias = bias + norm.bias.double()
    weight = conv.weight.double() * factor[:, None, None, None]
    return _plain(conv, weight.to(conv.weight), bias.to(conv.weight))


def _plain(like: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """An ordinary convolution of the same geometry with these numbers, in eval mode and frozen."""
    plain = nn.Conv2d(
        like.in_channels,
        like.out_channels,
        like.kernel_size,  # type: ignore[arg-type]  # torch declares its own attribute more loosely
        like.stride,  # type: ignore[arg-type]
        like.padding,  # type: ignore[arg-type]
        like.dilation,  # type: ignore[arg-type]
        like.groups,
        bias is not None,
        like.padding_mode,
        device="meta",
    )
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return plain.eval()
