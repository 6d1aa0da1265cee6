"""The DataLoader that the benchmarks time makes the pictures that the package makes."""

import numpy as np
import torch
from benchmarks.pipeline import EVALUATE, TRAIN, pictures, sides, transform
from benchmarks.pipeline_reference import PictureFiles, resized_crop_box

from e3bm.data.pixels.augment import CROP_TRIES, crop_boxes
from e3bm.data.pixels.pipeline import NORMALISATIONS, Pipeline

SMALLEST_STD = min(NORMALISATIONS["mtl"].std)
WITHIN = 4 / SMALLEST_STD  # two resizings, each within 2 of 255


def script(draws):
    """The numbers of one image in the order in which the plain side asks for them."""
    tries = draws[: 2 * CROP_TRIES].view(2, CROP_TRIES)
    yield float(tries[0, 0])
    yield float(tries[1, 0])
    yield from map(float, draws[2 * CROP_TRIES :])


def numbers(count):
    draws = torch.rand(count, 2 * CROP_TRIES + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    draws[:, 0] *= 0.5  # a small area fits at the first try
    return draws


def test_evaluation_pictures_are_equal():
    with pictures(2, 3) as data:
        ours = Pipeline.parse(EVALUATE)(torch.from_numpy(data.packed.gather(np.arange(6))).permute(0, 3, 1, 2))
        files = PictureFiles(data.paths, transform(EVALUATE))
        theirs = torch.stack([files[number] for number in range(6)])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=WITHIN / 2)
    assert float((ours - theirs).abs().mean()) < 0.1 * WITHIN
    assert float(theirs.std()) > 0.5


def test_training_pictures_are_equal():
    draws = numbers(6)
    with pictures(2, 3) as data:
        ours = Pipeline.parse(TRAIN)(torch.from_numpy(data.packed.gather(np.arange(6))).permute(0, 3, 1, 2), draws)
        theirs = []
        for number in range(6):
            plain = transform(TRAIN)
            plain = type(plain)(**{**vars(plain), "draw": script(draws[number]).__next__})
            theirs.append(PictureFiles(data.paths, plain)[number])
    torch.testing.assert_close(ours, torch.stack(theirs), rtol=0, atol=WITHIN)
    assert float((ours - torch.stack(theirs)).abs().mean()) < 0.1 * WITHIN


def test_boxes_are_equal():
    draws = numbers(50)
    ours = crop_boxes(92, 92, (0.08, 1.0), (3 / 4, 4 / 3), draws[:, :-1])
    for box, row in zip(ours.tolist(), draws, strict=True):
        left, top, width, height = resized_crop_box(92, script(row).__next__)
        assert [top, left, height, width] == box


def test_both_sides_run():
    with pictures(5, 16) as data:
        for text in (EVALUATE, TRAIN):
            slow, fast = sides(data, text)
            assert slow().shape == (80, 3, 84, 84)
            fast()
