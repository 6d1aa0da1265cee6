"""Scaling and shifting a frozen backbone: what learns, what does not, and what loads."""

import pytest
import torch
from torch import nn

from e3bm.backbones import ScaleShiftConv2d, build, encode, fold_batchnorm, learnable_parameters, scale_and_shift, wrap


def small(name="resnet25"):
    return build(name, width=0.05, image_size=28)


def randomise_scales(backbone):
    for parameter in learnable_parameters(backbone).scale_shift:
        nn.init.uniform_(parameter, 0.5, 1.5)


def test_the_given_backbone_is_left_alone():
    backbone = small()
    scaled = scale_and_shift(backbone)
    assert all(parameter.requires_grad for parameter in backbone.parameters())
    assert not any(isinstance(layer, ScaleShiftConv2d) for layer in backbone.modules())
    with torch.no_grad():
        scaled.stem.conv.weight.zero_()
    assert backbone.stem.conv.weight.any()


def test_only_scales_shifts_and_batchnorm_learn():
    scaled = scale_and_shift(small())
    before = {name: parameter.detach().clone() for name, parameter in scaled.named_parameters()}
    groups = learnable_parameters(scaled)
    optimizer = torch.optim.SGD([{"params": groups.scale_shift}, {"params": groups.normalisation, "lr": 0.1}], lr=0.1)
    scaled(torch.randn(4, 3, 28, 28)).square().sum().backward()
    optimizer.step()
    for name, parameter in scaled.named_parameters():
        frozen = name.endswith(("conv.weight", "conv.bias"))
        assert parameter.requires_grad is not frozen, name
        assert (parameter.grad is None) is frozen, name
        if frozen:
            assert torch.equal(parameter, before[name]), name
    assert not torch.equal(scaled.stem.conv.scale, before["stem.conv.scale"])


def test_shapes_of_scale_and_shift():
    scaled = scale_and_shift(small())
    assert scaled.stem.conv.scale.shape == (*scaled.stem.conv.weight.shape[:2], 1, 1)
    shifts = [name for name, _ in scaled.named_parameters() if name.endswith("shift")]
    assert shifts == ["stem.conv.shift"]
    convolutions = [layer for layer in scaled.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 28
    assert all(isinstance(layer, ScaleShiftConv2d) for layer in convolutions)


@pytest.mark.parametrize("shift_all", [False, True])
def test_a_scaled_and_shifted_convolution(shift_all):
    for bias in (False, True):
        plain = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=bias).double()
        layer = ScaleShiftConv2d(plain, shift_all)
        nn.init.normal_(layer.scale)
        images = torch.randn(2, 4, 8, 8, dtype=torch.float64)
        expected = torch.nn.functional.conv2d(images, plain.weight * layer.scale, None, 2, 1, groups=2)
        if bias:
            expected = expected + plain.bias[:, None, None]
        assert (layer.shift is not None) is (bias or shift_all)
        if layer.shift is not None:
            nn.init.normal_(layer.shift)
            expected = expected + layer.shift[:, None, None]
        torch.testing.assert_close(layer(images), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shift_all", [False, True])
def test_the_state_of_a_pretrained_network_loads_as_it_is(shift_all):
    pretrained, scaled = small().double(), scale_and_shift(small(), shift_all=shift_all).double()
    pretrained(torch.randn(8, 3, 28, 28, dtype=torch.float64))
    randomise_scales(scaled)
    scaled.load_state_dict(pretrained.state_dict())
    images = torch.randn(1, 2, 3, 28, 28, dtype=torch.float64)
    # Up to rounding: kernels times 1 may lie otherwise in memory, and a shift of 0 is one addition more.
    found, expected = (encode(network, images, "running").detach() for network in (scaled, pretrained))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert scaled.stem.conv.scale.requires_grad
    assert not scaled.stem.conv.weight.requires_grad


def test_its_own_state_survives_a_round_trip():
    first, second = scale_and_shift(small()), scale_and_shift(small())
    randomise_scales(first)
    second.load_state_dict(first.state_dict())
    images = torch.randn(1, 2, 3, 28, 28)
    assert torch.equal(encode(first, images, "running"), encode(second, images, "running"))


def test_an_incomplete_state_is_still_refused():
    scaled = scale_and_shift(small())
    state = small().state_dict()
    del state["stem.conv.weight"]
    with pytest.raises(RuntimeError, match=r"stem\.conv\.weight"):
        scaled.load_state_dict(state)


def test_scaling_twice_changes_nothing():
    once = scale_and_shift(small())
    randomise_scales(once)
    twice = scale_and_shift(once)
    images = torch.randn(1, 2, 3, 28, 28)
    assert torch.equal(encode(once, images, "running"), encode(twice, images, "running"))
    assert learnable_parameters(twice).count == learnable_parameters(once).count


def test_other_layers_of_a_wrapped_network_freeze():
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    )
    scaled = scale_and_shift(wrap(module, 5))
    assert not scaled.module[4].weight.requires_grad
    assert learnable_parameters(scaled).count == 12 + 4 + 8


@pytest.mark.parametrize("shift_all", [False, True])
def test_scales_fold_away_for_inference(shift_all):
    scaled = scale_and_shift(small().double(), shift_all=shift_all)
    randomise_scales(scaled)
    folded = fold_batchnorm(scaled)
    images = torch.randn(1, 2, 3, 28, 28, dtype=torch.float64)
    assert not any(isinstance(layer, ScaleShiftConv2d) for layer in folded.modules())
    torch.testing.assert_close(
        encode(folded, images, "running"), encode(scaled, images, "running").detach(), rtol=1e-12, atol=1e-12
    )
