"""Feature maps come from the weights that give the features, with or without the last pooling."""

import pytest
import torch
import torch.nn.functional as F

from e3bm.backbones import BACKBONES, WhitenedBackbone, build, encode, wrap
from e3bm.backbones.encode import MapEncoder, TaskEncoder
from e3bm.errors import SettingsError

WITH_LAST_POOLING = {"conv4": 4, "conv4_64": 4, "conv4_egnn": 3, "resnet12": 4, "resnet12_flat": 4}
"""And the side of their maps before it."""


@pytest.mark.parametrize("name", list(BACKBONES))
def test_features_are_the_mean_of_the_maps_or_the_maps_laid_flat(name):
    backbone = build(name, width=0.125, image_size=32).double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    maps = backbone.maps(images)
    assert maps.shape[1] == backbone.feature_channels
    expected = maps.mean((2, 3)) if backbone.feature_positions == 1 else maps.flatten(1)
    torch.testing.assert_close(backbone(images), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", list(BACKBONES))
def test_the_last_pooling_can_be_left_out(name):
    backbone = build(name, width=0.125, image_size=32).double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    pooled, maps = backbone.maps(images), backbone.maps(images, last_pooling=False)
    if name in WITH_LAST_POOLING:
        assert maps.shape[2:] == (WITH_LAST_POOLING[name],) * 2
        torch.testing.assert_close(F.max_pool2d(maps, 2), pooled, rtol=1e-12, atol=1e-12)
    else:
        torch.testing.assert_close(maps, pooled, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["batch", "running"])
@pytest.mark.parametrize("last_pooling", [True, False])
def test_tasks_are_encoded_to_maps_and_padding_to_zeros(mode, last_pooling):
    backbone = build("resnet12", width=0.05, image_size=32).double()
    encoder = MapEncoder(backbone, mode, last_pooling=last_pooling)
    images = torch.randn(2, 4, 3, 32, 32, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True], [True, True, False, True]])
    maps = encoder(images, mask)
    side = 2 if last_pooling else 4
    assert maps.shape == (2, 4, backbone.feature_size, side, side)
    assert not maps[1, 2].any()
    alone = encoder(images[1:, mask[1]])
    torch.testing.assert_close(maps[1, mask[1]], alone[0], rtol=1e-12, atol=1e-12)
    if last_pooling:
        features = TaskEncoder(backbone, mode)(images, mask)
        torch.testing.assert_close(maps.mean((3, 4)), features, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(features, encode(backbone, images, mode, mask=mask), rtol=0, atol=0)


@pytest.mark.parametrize(
    "backbone",
    [wrap(torch.nn.Flatten(), 12), WhitenedBackbone(build("resnet12", width=0.05, image_size=16))],
    ids=["wrapped", "whitened"],
)
def test_a_backbone_without_maps_says_so(backbone):
    with pytest.raises(SettingsError, match="needs feature maps; choose one of the backbones"):
        backbone.maps(torch.zeros(1, 3, 16, 16))
