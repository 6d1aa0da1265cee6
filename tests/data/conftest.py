"""A small made-up data set in which every pixel says which image it belongs to."""

import numpy as np
import pytest

from e3bm.data.store.packed import PackedImages


@pytest.fixture(scope="session")
def tiny() -> PackedImages:
    """12 classes (7 train, 3 val, 2 test) with 20 to 31 images of 12 x 12 x 3, in mixed order."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(12), np.arange(20, 32)))
    images = rng.integers(0, 256, (len(labels), 12, 12, 3), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(len(labels)) % 256, np.arange(len(labels)) // 256
    splits = {"train": [0, 2, 4, 6, 8, 10, 11], "val": [1, 3, 5], "test": [7, 9]}
    return PackedImages.from_arrays(images, labels, [f"class {c}" for c in range(12)], splits, name="tiny")
