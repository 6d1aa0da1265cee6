"""Pretraining batches: every image once per epoch, the same batch whenever it is asked for."""

import numpy as np
import pytest
import torch

from e3bm.data.episodes.classification import ClassificationBatches
from e3bm.data.pixels.pipeline import NORMALISATIONS, Pipeline
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError, SettingsError

PLAIN = Pipeline.parse("normalise none")
RANDOM = Pipeline.parse("padded_crop 12 2, flip, normalise mtl")


def positions(images: torch.Tensor) -> list[int]:
    """The first pixel of an image of the tiny set says where it lies."""
    return (images[:, 0, 0, 0] * 255 + images[:, 1, 0, 0] * 255 * 256).round().int().tolist()


def test_an_epoch_visits_every_image_of_the_split_once(tiny: PackedImages) -> None:
    batches = ClassificationBatches(tiny, "train", PLAIN, 1, 0)
    expected = [p for number in tiny.splits["train"] for p in tiny.indices_of(number).tolist()]
    assert len(batches) == len(expected)
    for epoch in (0, 1):
        seen = []
        for batch in (batches.batch(epoch, index) for index in range(len(batches))):
            seen += positions(batch.images)
            assert batches.classes[int(batch.labels)] == tiny.labels[seen[-1]]
        assert sorted(seen) == sorted(expected)
        assert seen != sorted(seen)


def test_labels_count_the_classes_of_the_split(tiny: PackedImages) -> None:
    batches = ClassificationBatches(tiny, "val", PLAIN, 16, 3)
    assert batches.classes == (1, 3, 5)
    assert len(batches) == (21 + 23 + 25) // 16
    batch = batches.batch(0, 1)
    assert len(batch) == 16
    assert batch.images.shape == (16, 3, 12, 12)
    assert [batches.classes[label] for label in batch.labels.tolist()] == tiny.labels[positions(batch.images)].tolist()
    assert set(batch.labels.tolist()) == {0, 1, 2}


def test_a_batch_is_a_function_of_seed_epoch_and_index(tiny: PackedImages) -> None:
    batches = ClassificationBatches(tiny, "train", RANDOM, 16, 3)
    through = [batches.batch(2, index) for index in range(len(batches))]
    fresh = ClassificationBatches(tiny, "train", RANDOM, 16, 3)
    for index in (5, 0, 3):
        fresh.batch(index, 1)  # whatever was asked before
        assert torch.equal(fresh.batch(2, index).images, through[index].images)
        assert torch.equal(fresh.batch(2, index).labels, through[index].labels)
    resumed = [fresh.batch(2, index) for index in range(4, len(fresh))]
    assert len(resumed) == len(batches) - 4
    for one, other in zip(resumed, through[4:], strict=True):
        assert torch.equal(one.images, other.images)
    orders = [batches.order(epoch).tolist() for epoch in range(3)]
    orders.append(ClassificationBatches(tiny, "train", RANDOM, 16, 4).order(0).tolist())
    assert len({tuple(order) for order in orders}) == 4


def test_augmentation_is_new_in_every_epoch(tiny: PackedImages) -> None:
    batches = ClassificationBatches(tiny, "train", RANDOM, 1, 0)
    place = [int(np.flatnonzero(batches.order(epoch) == 0)[0]) for epoch in range(8)]
    views = {batches.batch(epoch, index).images.numpy().tobytes() for epoch, index in enumerate(place)}
    assert len(views) > 4


def test_the_shares_of_all_processes_make_up_the_batch(tiny: PackedImages) -> None:
    whole = ClassificationBatches(tiny, "train", RANDOM, 16, 3).batch(1, 2)
    for rank in range(4):
        share = ClassificationBatches(tiny, "train", RANDOM, 16, 3, rank=rank, processes=4).batch(1, 2)
        assert torch.equal(share.images, whole.images[rank::4])
        assert torch.equal(share.labels, whole.labels[rank::4])
    with pytest.raises(SettingsError, match="A batch of 16 cannot be shared evenly by 3 processes"):
        ClassificationBatches(tiny, "train", RANDOM, 16, 3, processes=3)


def test_shuffles_are_uniform(tiny: PackedImages) -> None:
    batches = ClassificationBatches(tiny, "test", PLAIN, 8, 0)
    firsts = np.bincount([batches.order(epoch)[0] for epoch in range(2000)], minlength=27 + 29)
    expected = 2000 / len(firsts)
    assert ((firsts - expected) ** 2 / expected).sum() < len(firsts) + 5 * (2 * len(firsts)) ** 0.5


def test_the_precision_can_be_chosen(tiny: PackedImages) -> None:
    batch = ClassificationBatches(tiny, "val", PLAIN, 4, 0, dtype=torch.float64).batch(0, 0)
    pixels = torch.from_numpy(tiny.gather(np.array(positions(batch.images)))).permute(0, 3, 1, 2)
    assert torch.equal(batch.images, NORMALISATIONS["none"](pixels, torch.float64))


def test_wrong_requests_are_refused(tiny: PackedImages) -> None:
    with pytest.raises(DataError, match="no split 'base' with classes in 'tiny'; it has train, val, test"):
        ClassificationBatches(tiny, "base", PLAIN, 4, 0)
    for size in (0, 70):
        with pytest.raises(SettingsError, match=rf"batch size must lie in 1\.\.69, found {size}"):
            ClassificationBatches(tiny, "val", PLAIN, size, 0)
    with pytest.raises(SettingsError, match=r"An epoch has batches 0\.\.16, found 17"):
        ClassificationBatches(tiny, "val", PLAIN, 4, 0).batch(0, 17)


def test_an_image_is_augmented_anew_in_every_epoch(tiny: PackedImages) -> None:
    batches = ClassificationBatches(tiny, "train", RANDOM, 1, 3)
    seen = []
    for epoch in range(8):
        place = int(np.flatnonzero(batches.order(epoch) == 0)[0])  # where this epoch visits the first image
        # The same place in every epoch: draws that depended on places alone would repeat.
        batches._order = epoch, np.roll(batches.order(epoch), -place)
        seen.append(batches.batch(epoch, 0).images)
    assert len({image.numpy().tobytes() for image in seen}) > 4
