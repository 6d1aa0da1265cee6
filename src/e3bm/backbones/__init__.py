"""Networks from images to features: by name, at any width, for any number of channels, BatchNorm task by task."""

from e3bm.backbones.base import BACKBONES, Backbone, BackboneFactory, build, wrap
from e3bm.backbones.conv4 import Conv4
from e3bm.backbones.encode import EncodeMode, encode
from e3bm.backbones.folding import fold_batchnorm
from e3bm.backbones.normalisation import (
    BatchNormMode,
    TaskBatchNorm2d,
    batchnorm_mode,
    commit_statistics,
    pop_statistics,
    set_batchnorm,
)
from e3bm.backbones.resnet import ResNet
from e3bm.backbones.scale_shift import ScaleShiftConv2d, ScaleShiftParameters, learnable_parameters, scale_and_shift
from e3bm.backbones.tadam_resnet import TadamResNet
from e3bm.backbones.whitened import WhitenedBackbone, whitening_of
from e3bm.backbones.wide_resnet import WideResNet

__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneFactory",
    "BatchNormMode",
    "Conv4",
    "EncodeMode",
    "ResNet",
    "ScaleShiftConv2d",
    "ScaleShiftParameters",
    "TadamResNet",
    "TaskBatchNorm2d",
    "WhitenedBackbone",
    "WideResNet",
    "batchnorm_mode",
    "build",
    "commit_statistics",
    "encode",
    "fold_batchnorm",
    "learnable_parameters",
    "pop_statistics",
    "scale_and_shift",
    "set_batchnorm",
    "whitening_of",
    "wrap",
]
