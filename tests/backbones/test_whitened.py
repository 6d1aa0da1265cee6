"""Whitened features: what the matrix does to the training features, and which views of an image are averaged."""

import pytest
import torch

from e3bm.backbones import WhitenedBackbone, build, encode, fold_batchnorm, scale_and_shift, whitening_of
from e3bm.backbones.whitened import FLOOR, MOVES, views
from e3bm.errors import DataError


def table(rows=400, size=6):
    """Features whose axes vary very differently, far from zero."""
    generator = torch.Generator().manual_seed(3)
    mixing = torch.randn(size, size, generator=generator, dtype=torch.float64) * torch.logspace(0, -2, size)
    return torch.randn(rows, size, generator=generator, dtype=torch.float64) @ mixing + 5


def whitened(name="conv4", **settings):
    torch.manual_seed(2)
    backbone = WhitenedBackbone(build(name, image_size=16, **settings)).double().eval()
    size = backbone.feature_size
    backbone.put(
        whitening_of(torch.randn(50, size, dtype=torch.float64) @ torch.randn(size, size, dtype=torch.float64))
    )
    return backbone


def test_each_variance_is_divided_by_the_root_of_itself_and_its_share_of_the_floor():
    features = table()
    found = whitening_of(features)
    turned = (features - found.centre) @ found.matrix
    before = torch.linalg.eigvalsh(torch.cov(features.T, correction=0))
    after = torch.linalg.eigvalsh(torch.cov(turned.T, correction=0))
    torch.testing.assert_close(after, before / (before + FLOOR * before.mean()).sqrt(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(turned.mean(0), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)
    assert after.max() / after.min() < before.max() / before.min()


def test_the_matrix_is_symmetric_and_turns_with_the_features():
    features = table()
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    plain, turned = whitening_of(features), whitening_of(features @ turn)
    torch.testing.assert_close(plain.matrix, plain.matrix.T)
    torch.testing.assert_close(turned.matrix, turn.T @ plain.matrix @ turn)


@pytest.mark.parametrize("features", [torch.ones(1, 3), torch.ones(9, 3)])
def test_features_without_spread_are_refused(features):
    with pytest.raises(DataError, match=r"Whitening needs|All features are equal"):
        whitening_of(features)


def moved(image, down, right):
    """Pixel by pixel: each comes from where it was before the move, or from the border nearest to that."""
    result = torch.empty_like(image)
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            result[:, row, column] = image[:, min(max(row - down, 0), 15), min(max(column - right, 0), 15)]
    return result


def test_features_are_the_mean_over_the_image_and_its_mirror_image_and_both_moved():
    backbone = whitened(width=0.25)
    images = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    seen = [torch.stack([moved(side, *move) for side in (image, image.flip(2)) for move in MOVES]) for image in images]
    torch.testing.assert_close(torch.stack(list(views(images)), 1), torch.stack(seen), rtol=0, atol=0)
    mean = torch.stack([backbone.trunk(each).mean(0) for each in seen])
    torch.testing.assert_close(backbone(images), (mean - backbone.centre) @ backbone.matrix, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(backbone(images), backbone(images.flip(-1)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["conv4", "resnet12", "wrn28_10"])
def test_it_can_be_folded_scaled_and_shifted(name):
    backbone = whitened(name, width=0.1)
    images = torch.rand(1, 2, 3, 16, 16, dtype=torch.float64)
    expected = encode(backbone, images, "running")
    assert len(fold_batchnorm(backbone).conv_norm_pairs()) < len(backbone.conv_norm_pairs())
    torch.testing.assert_close(encode(fold_batchnorm(backbone), images, "running"), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(encode(scale_and_shift(backbone), images, "running"), expected, rtol=1e-9, atol=1e-9)
