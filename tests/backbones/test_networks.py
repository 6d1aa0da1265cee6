"""The networks' structure: sizes, strides, initial weights, dropout; 4CONV against plain torch operations."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from e3bm.backbones import BACKBONES, build
from e3bm.backbones.layers import DropBlock, channels_last, scaled
from e3bm.errors import DataError, SettingsError


def last_map(backbone, image_size):
    """Height and width of what the last block gives."""
    sizes = []
    backbone.blocks[-1].register_forward_hook(lambda module, inputs, output: sizes.append(tuple(output.shape[2:])))
    with torch.inference_mode():
        backbone.eval()(torch.randn(1, 3, image_size, image_size))
    return sizes[0]


@pytest.mark.parametrize(
    ("name", "options", "image_size", "side"),
    [
        ("resnet12", {}, 84, 5),
        ("resnet12", {}, 28, 1),
        ("resnet12_can", {}, 84, 6),
        ("conv4_egnn", {}, 84, 10),  # before its last pooling
        ("resnet18", {}, 84, 11),
        ("resnet18", {"image_size": 112}, 112, 7),
        ("resnet25", {}, 80, 10),
        ("wrn28_10", {}, 32, 8),
        ("wrn28_10_sib", {}, 80, 10),
        ("wrn28_10_sib", {"strides": (1, 2, 2)}, 32, 8),
    ],
)
def test_the_size_of_the_last_map(name, options, image_size, side):
    assert last_map(build(name, width=0.05, **options), image_size) == (side, side)


def test_published_sizes_of_backbones_of_single_systems():
    count = lambda network: sum(parameter.numel() for parameter in network.parameters())
    assert count(build("resnet12_can")) == 8_037_696
    assert (build("resnet12_flat").feature_size, build("resnet12_flat", image_size=32).feature_size) == (16_000, 2560)
    assert count(build("resnet12_flat")) == count(build("resnet12"))
    assert build("conv4_egnn").feature_size == 256 * 5 * 5


def test_a_flat_resnet12_has_the_positions_of_its_maps():
    backbone = build("resnet12_flat", width=0.05, image_size=48).eval()
    images = torch.randn(2, 3, 48, 48)
    with torch.inference_mode():
        assert torch.equal(backbone(images), backbone.maps(images).flatten(1))
        with pytest.raises(DataError, match="keeps the 9 positions of its last map; images of 32 x 32 pixels give 4"):
            backbone(torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize(
    ("width", "channel", "expected"), [(1.0, 64, 64), (0.5, 160, 80), (0.125, 32, 8), (0.3, 80, 24), (2.0, 16, 32)]
)
def test_scaled_channels(width, channel, expected):
    assert scaled(width, channel) == expected


def test_conv4_is_conv_batchnorm_relu_pool_flattened_by_channel():
    backbone = build("conv4", width=0.25, channels=1, image_size=28).double()
    images = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    maps = images
    for block in backbone.blocks:
        nn.init.normal_(block.norm.weight)
        nn.init.normal_(block.norm.bias)
        maps = F.conv2d(maps, block.conv.weight, block.conv.bias, padding=1)
        mean, variance = maps.mean((0, 2, 3), keepdim=True), maps.var((0, 2, 3), keepdim=True, unbiased=False)
        maps = (maps - mean) / (variance + 1e-5).sqrt()
        maps = maps * block.norm.weight[:, None, None] + block.norm.bias[:, None, None]
        maps = F.max_pool2d(maps.clamp_min(0), 2)
    torch.testing.assert_close(backbone(images), maps.reshape(3, -1), rtol=1e-12, atol=1e-12)


def test_features_of_conv4_are_channel_major():
    backbone = build("conv4", width=0.25, image_size=32).eval()
    features = backbone(torch.randn(2, 3, 32, 32))
    nn.init.zeros_(backbone.blocks[3].norm.weight)
    with torch.no_grad():
        backbone.blocks[3].norm.bias.copy_(torch.arange(8.0))
    features = backbone(torch.randn(2, 3, 32, 32)).view(2, backbone.feature_channels, backbone.feature_positions)
    assert torch.equal(features, torch.arange(8.0)[:, None].expand(2, 8, 4))


@pytest.mark.parametrize("name", ["conv4", "conv4_64", "conv4_stride"])
def test_conv4_starts_xavier_uniform(name):
    for layer in build(name).modules():
        if isinstance(layer, nn.Conv2d):
            bound = math.sqrt(6 / (9 * (layer.in_channels + layer.out_channels)))
            assert layer.weight.abs().max() <= bound
            assert layer.weight.abs().max() > 0.95 * bound
            assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
            assert not layer.bias.any()


@pytest.mark.parametrize("name", [name for name in BACKBONES if name.startswith(("resnet", "wrn"))])
def test_residual_nets_start_normal_by_fan_out(name):
    backbone = build(name, width=0.25)
    gain = 0.2 if name == "resnet12_tadam" else 2.0  # Kaiming's for ReLU; TADAM has its own
    for layer in backbone.modules():
        if isinstance(layer, nn.Conv2d):
            expected = math.sqrt(gain / (layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels))
            assert layer.weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * layer.weight.numel()))
            assert layer.bias is None or not layer.bias.any()
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert not layer.bias.any()


def test_the_biased_wrn_ends_in_a_fast_batchnorm_and_sibs_does_not():
    assert build("wrn28_10", width=0.05).norm.momentum == 0.9
    assert build("wrn28_10_sib", width=0.05).norm.momentum == 0.1


def test_the_wrn_forms_put_their_strides_and_shortcuts_where_published():
    biased, sib = build("wrn28_10", width=0.05), build("wrn28_10_sib", width=0.05)
    assert [(b.conv1.stride[0], b.conv2.stride[0]) for b in biased.blocks[::4]] == [(1, 1), (1, 2), (1, 2)]
    assert [(b.conv1.stride[0], b.conv2.stride[0]) for b in sib.blocks[::4]] == [(2, 1)] * 3
    for network, from_input in ((biased, True), (sib, False)):
        block = network.blocks[4].eval()
        seen = []
        block.shortcut.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(inputs[0]))
        maps = -torch.ones(1, block.conv1.in_channels, 8, 8)
        block(maps)
        assert torch.equal(seen[0], maps) is from_input


@pytest.mark.parametrize("strides", [(1, 2), (0, 2, 2)])
def test_impossible_strides_are_refused(strides):
    with pytest.raises(SettingsError, match="three strides"):
        build("wrn28_10_sib", strides=strides)


@pytest.mark.parametrize(
    ("name", "option"), [("resnet12", "dropout"), ("resnet12", "dropblock"), ("wrn28_10", "dropout")]
)
def test_dropout_acts_in_training_only(name, option):
    backbone = build(name, width=0.125, image_size=32, **{option: 0.5})
    images = torch.randn(2, 3, 32, 32)
    assert not torch.equal(backbone(images), backbone(images))
    backbone.eval()
    assert torch.equal(backbone(images), backbone(images))


def test_without_options_nothing_is_dropped():
    backbone = build("resnet12", width=0.125, image_size=32)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(backbone(images), backbone(images))


@pytest.mark.parametrize("rate", [-0.1, 1.0])
@pytest.mark.parametrize("option", ["dropout", "dropblock"])
def test_impossible_rates_are_refused(option, rate):
    with pytest.raises(SettingsError, match=f"{option} rate must be"):
        build("resnet12", **{option: rate})


def test_dropblock_drops_squares_at_its_rate_and_keeps_the_mean():
    layer = DropBlock(0.1, 3)
    maps = torch.ones(64, 16, 10, 10)
    dropped = layer(maps)
    zero = dropped == 0
    assert zero.float().mean().item() == pytest.approx(0.1, abs=0.02)  # squares may overlap
    assert dropped.mean().item() == pytest.approx(1.0, abs=1e-5)
    # Every dropped pixel lies in a dropped 3x3 square: erosion by 3x3 and dilation by 3x3 give the same set back.
    eroded = -F.max_pool2d(-zero.float(), 3, stride=1)
    assert torch.equal(F.max_pool2d(F.pad(eroded, [2] * 4), 3, stride=1), zero.float())
    assert torch.equal(layer.eval()(maps), maps)


def test_a_block_larger_than_the_map_drops_whole_maps():
    dropped = DropBlock(0.5, 7)(torch.ones(64, 8, 2, 2))
    assert set(dropped.eq(0).float().mean((2, 3)).unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_layout_and_nothing_else(channels):
    images = torch.randn(2, channels, 6, 6)
    laid_out = channels_last(images)
    assert torch.equal(laid_out, images)
    assert laid_out.stride() == (36 * channels, 1, 6 * channels, channels)
    convolved = nn.Conv2d(channels, 4, 3)(laid_out)
    assert convolved.is_contiguous(memory_format=torch.channels_last)
    assert not convolved.is_contiguous()


def test_the_network_of_tadam_rounds_odd_sides_up_and_pools_three_times():
    backbone = build("resnet12_tadam", width=0.05).eval()
    assert backbone.maps(torch.randn(1, 3, 84, 84)).shape[2:] == (11, 11)
    assert backbone.maps(torch.randn(1, 3, 32, 32)).shape[2:] == (4, 4)


def test_the_network_of_tadam_is_swish_after_batchnorm_of_its_own_kind():
    backbone = build("resnet12_tadam", width=0.05, channels=2, image_size=8).double()
    maps = images = torch.randn(3, 2, 8, 8, dtype=torch.float64)
    norm = lambda values: F.batch_norm(values, None, None, training=True, eps=1e-3)
    for number, block in enumerate(backbone.blocks):
        hidden = maps if number == 0 else F.max_pool2d(maps, 2)
        maps = hidden
        for index, layer in enumerate(block.residual):
            maps = norm(F.conv2d(maps, layer.conv.weight, padding=1))
            maps = maps * maps.sigmoid() if index < 2 else maps
        maps = maps + norm(F.conv2d(hidden, block.shortcut.conv.weight))
        maps = maps * maps.sigmoid()
    torch.testing.assert_close(backbone(images), maps.mean((2, 3)), rtol=1e-12, atol=1e-12)
    assert {(layer.eps, layer.momentum) for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d)} == {
        (1e-3, 0.05)
    }
