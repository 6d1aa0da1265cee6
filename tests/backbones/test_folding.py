"""Folded backbones give the features of eval mode."""

import pytest
import torch
from torch import nn

from e3bm.backbones import BACKBONES, build, encode, fold_batchnorm, wrap

REMAINING = {"wrn28_10": 13, "wrn28_10_sib": 12}  # before each block, and the last one; SIB's stem takes its block's


def trained(name, dtype, **options):
    """A backbone whose BatchNorm layers look as after training."""
    backbone = build(name, width=0.125, image_size=32, **options).to(dtype)
    backbone.train()
    for _ in range(3):
        backbone(torch.randn(4, 3, 32, 32, dtype=dtype) + 0.3)
    for layer in backbone.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, -0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.1)
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.normal_(layer.bias, std=0.1)
    return backbone


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", list(BACKBONES))
def test_folding_is_exact(name, dtype, tolerance):
    backbone = trained(name, dtype)
    folded = fold_batchnorm(backbone)
    images = torch.randn(4, 3, 32, 32, dtype=dtype)
    with torch.inference_mode():
        features, expected = folded(images), backbone.eval()(images)
    assert (features - expected).norm() <= tolerance * expected.norm()
    assert expected.norm() > 0
    left = sum(isinstance(layer, nn.BatchNorm2d) for layer in folded.modules())
    assert left == REMAINING.get(name, 0)


def test_the_given_backbone_is_left_alone():
    backbone = trained("resnet12", torch.float32)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    fold_batchnorm(backbone)
    assert backbone.training
    assert not backbone.folded
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())


def test_a_folded_copy_is_frozen_in_eval_mode_and_channels_last():
    folded = fold_batchnorm(trained("resnet18", torch.float32))
    assert folded.folded
    assert not any(module.training for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert folded.blocks[1].residual[0].conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_folding_twice_changes_nothing():
    folded = fold_batchnorm(trained("wrn28_10_sib", torch.float64))
    images = torch.randn(1, 2, 3, 32, 32, dtype=torch.float64)
    assert torch.equal(encode(folded, images, "running"), encode(fold_batchnorm(folded), images, "running"))


def test_sibs_stem_is_not_folded_where_its_output_is_read_twice():
    """At a tiny width and stride 1 the first block keeps its shape, and its shortcut reads the stem as it is."""
    backbone = trained("wrn28_10_sib", torch.float64, strides=(1, 2, 2))
    narrow = build("wrn28_10_sib", width=0.05, strides=(1, 2, 2)).double()
    assert ("stem", "blocks.0.norm1") in backbone.conv_norm_pairs()
    assert ("stem", "blocks.0.norm1") not in narrow.conv_norm_pairs()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(fold_batchnorm(narrow)(images), narrow.eval()(images).detach(), rtol=1e-12, atol=1e-12)


def test_a_wrapped_network_is_copied_and_set_to_running_statistics():
    backbone = wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)), 4)
    backbone(torch.randn(8, 3, 8, 8))
    images = torch.randn(2, 3, 8, 8)
    folded = fold_batchnorm(backbone)
    torch.testing.assert_close(folded.train()(images), backbone.eval()(images).detach())
