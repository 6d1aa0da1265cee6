"""The plain ResNet-12 that the benchmarks time gives the package's features."""

import torch
from benchmarks.backbone import backbone, multiplications, our_features, reference, steps_between


def test_features_are_equal():
    ours, images = backbone(32, width=0.25).double(), torch.rand(4, 3, 32, 32, dtype=torch.float64)
    plain = reference(ours)
    found = our_features(ours)(images)
    torch.testing.assert_close(found, plain(images), rtol=1e-10, atol=1e-10)
    assert float(found.std()) > 1e-3
    for work in steps_between(ours, images).values():
        torch.testing.assert_close(work(), found, rtol=1e-10, atol=1e-10)


def test_operations_are_counted():
    """A convolution of k x k over h x w positions costs 2 k k in out h w."""
    plain = reference(backbone(32, width=0.25))
    count = 0
    size = 32
    for block in plain.blocks:
        for layer in (*block.residual, block.shortcut):
            count += 2 * layer.conv.weight.numel() * size * size
        size //= 2
    assert multiplications(plain, 32) == count
