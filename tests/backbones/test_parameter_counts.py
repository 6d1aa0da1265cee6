"""The exact parameter counts that the paper's Table S3 rests on; nothing is allocated."""

import pytest
import torch
from torch import nn

from e3bm.backbones import build, learnable_parameters, scale_and_shift

pytestmark = pytest.mark.same_anywhere


@pytest.fixture(autouse=True)
def _allocate_nothing():
    with torch.device("meta"):
        yield


def count(network: nn.Module, learnable: bool = False) -> int:
    return sum(p.numel() for p in network.parameters() if p.requires_grad or not learnable)


@pytest.mark.parametrize(
    ("name", "options", "expected", "feature_size"),
    [
        ("conv4", {}, 28_896, 800),
        ("conv4", {"image_size": 32}, 28_896, 128),
        ("conv4_64", {}, 113_088, 1600),
        ("conv4_64", {"bias": False}, 112_832, 1600),
        ("conv4_stride", {"image_size": 28, "channels": 1}, 111_936, 256),
        ("conv4_stride", {"image_size": 28, "channels": 1, "average": True}, 111_936, 64),
        ("resnet12", {}, 12_424_320, 640),
        ("resnet18", {}, 11_168_832, 512),
        ("resnet25", {}, 36_579_360, 640),
        ("resnet12_tadam", {}, 7_996_800, 512),
        ("wrn28_10", {}, 36_482_880, 640),
        ("wrn28_10_sib", {}, 36_472_784, 640),
    ],
)
def test_backbones(name, options, expected, feature_size):
    backbone = build(name, **options)
    assert count(backbone) == expected
    assert backbone.feature_size == feature_size


@pytest.mark.parametrize(("image_size", "expected"), [(84, 32_901), (32, 29_541)])
def test_conv4_with_a_five_way_head(image_size, expected):
    backbone = build("conv4", image_size=image_size)
    assert count(backbone) + count(nn.Linear(backbone.feature_size, 5)) == expected


@pytest.mark.parametrize(
    ("name", "expected", "normalisation"), [("resnet25", 4_321_440, 20_320), ("resnet12", 1_625_728, 9_472)]
)
def test_what_mtl_learns(name, expected, normalisation):
    backbone = scale_and_shift(build(name))
    groups = learnable_parameters(backbone)
    assert count(backbone, learnable=True) == groups.count == expected
    assert sum(parameter.numel() for parameter in groups.normalisation) == normalisation


def test_shifting_every_convolution_adds_one_number_per_output():
    convolutions = [layer for layer in build("resnet12").modules() if isinstance(layer, nn.Conv2d)]
    shifted = learnable_parameters(scale_and_shift(build("resnet12"), shift_all=True))
    assert shifted.count == 1_625_728 + sum(layer.out_channels for layer in convolutions)


def test_half_width_resnet12_has_the_channels_of_the_prototype():
    backbone = build("resnet12", width=0.5)
    assert [block.shortcut.conv.out_channels for block in backbone.blocks] == [32, 80, 160, 320]
