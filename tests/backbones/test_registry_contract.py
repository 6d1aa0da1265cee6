"""What every backbone of the registry must keep, whoever wrote it."""

import pytest
import torch
from torch import nn

from e3bm.backbones import BACKBONES, Backbone, TaskBatchNorm2d, build, encode, scale_and_shift
from e3bm.backbones.layers import DropBlock
from e3bm.errors import SettingsError

OURS = {
    "conv4", "conv4_64", "conv4_stride", "conv4_egnn", "resnet12", "resnet12_flat", "resnet12_can", "resnet12_tadam",
    "resnet18", "resnet25", "wrn28_10", "wrn28_10_sib",
}  # fmt: skip


def randomise_batchnorm(network: nn.Module) -> None:
    """Running statistics and gamma, beta as a trained network has them."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)


def without_chance(network: Backbone) -> Backbone:
    """The same network with nothing dropped: in training, two passes of the same images agree."""
    for layer in network.modules():
        if isinstance(layer, nn.Dropout | nn.Dropout2d):
            layer.p = 0.0
        if isinstance(layer, DropBlock):
            layer.rate = 0.0
    return network


def test_our_names_are_known():
    assert set(BACKBONES) >= OURS


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("image_size", [28, 32, 80, 84])
@pytest.mark.parametrize("name", list(BACKBONES))
def test_the_feature_size_is_true(name, image_size, channels):
    backbone = build(name, width=0.125, channels=channels, image_size=image_size).eval()
    with torch.inference_mode():
        features = backbone(torch.randn(2, channels, image_size, image_size))
    assert isinstance(backbone, Backbone)
    assert isinstance(backbone.feature_size, int)
    assert features.shape == (2, backbone.feature_size)
    assert backbone.feature_channels * backbone.feature_positions == backbone.feature_size
    assert features.isfinite().all()


@pytest.mark.parametrize("name", list(BACKBONES))
def test_every_parameter_and_the_images_get_a_gradient(name):
    backbone = build(name, width=0.125, image_size=28)
    images = torch.randn(4, 3, 28, 28, requires_grad=True)
    backbone(images).square().sum().backward()
    assert images.grad.abs().sum() > 0
    for parameter_name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", list(BACKBONES))
def test_the_input_is_left_alone_and_a_second_call_agrees(name):
    backbone = build(name, width=0.125, channels=1, image_size=28).eval()
    randomise_batchnorm(backbone)
    images = torch.randn(2, 1, 28, 28)
    before = images.clone()
    with torch.inference_mode():
        assert torch.equal(backbone(images), backbone(images))
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", list(BACKBONES))
def test_the_memory_layout_of_the_images_does_not_matter(name):
    backbone = build(name, width=0.125, image_size=28).double().eval()
    images = torch.randn(2, 3, 28, 28, dtype=torch.float64)
    laid_out = images.contiguous(memory_format=torch.channels_last)
    strided = images.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(backbone(images), backbone(laid_out))
    assert torch.equal(backbone(images), backbone(strided))


@pytest.mark.parametrize("name", list(BACKBONES))
def test_the_state_survives_a_round_trip(name, tmp_path):
    first, second = (build(name, width=0.125, image_size=28).eval() for _ in range(2))
    randomise_batchnorm(first)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    images = torch.randn(2, 3, 28, 28)
    assert not torch.equal(first(images), second(images))
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(first(images), second(images))


@pytest.mark.parametrize("name", list(BACKBONES))
def test_every_batchnorm_keeps_tasks_apart(name):
    backbone = without_chance(build(name, width=0.125, image_size=28))
    layers = [layer for layer in backbone.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    assert layers
    assert all(isinstance(layer, TaskBatchNorm2d) for layer in layers)
    images = torch.randn(2, 3, 3, 28, 28)
    together = encode(backbone, images, "batch")
    other_company = encode(backbone, torch.stack([10 * torch.randn(3, 3, 28, 28), images[1]]), "batch")
    assert torch.equal(together[1], other_company[1])


@pytest.mark.parametrize("name", list(BACKBONES))
def test_width_scales_channels_by_eights(name):
    sizes = [build(name, width=width, image_size=28).feature_channels for width in (0.01, 0.125, 0.25)]
    assert sizes[0] == 8
    assert all(size % 8 == 0 for size in sizes)
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", list(BACKBONES))
def test_scale_and_shift_starts_as_the_same_network(name):
    backbone = without_chance(build(name, width=0.125, image_size=28).double())
    randomise_batchnorm(backbone)
    images = torch.randn(1, 3, 3, 28, 28, dtype=torch.float64)
    for mode in ("batch", "running"):
        found, expected = (encode(network, images, mode).detach() for network in (scale_and_shift(backbone), backbone))
        # Up to rounding: kernels times 1 may lie otherwise in memory than the kernels.
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_an_unknown_name_is_told_with_its_neighbour():
    with pytest.raises(SettingsError, match=r"'resnet-12'.*Did you mean 'resnet12'"):
        build("resnet-12")


@pytest.mark.parametrize("settings", [{"width": 0.0}, {"width": -1.0}, {"channels": 0}, {"image_size": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SettingsError, match="found"):
        build("resnet18", **settings)


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match=r"'conv4' cannot be built.*dropblock.*it takes.*bias"):
        build("conv4", dropblock=0.1)


@pytest.mark.parametrize("name", ["conv4", "conv4_64", "resnet12"])
def test_images_too_small_to_be_halved_four_times_are_refused(name):
    with pytest.raises(SettingsError, match="16 pixels or more, found 15"):
        build(name, image_size=15)
