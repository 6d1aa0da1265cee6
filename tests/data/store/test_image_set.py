"""Turned classes are new classes: own numbers, own positions, the pixels of the old ones turned."""

import numpy as np
import pytest

from e3bm.core.episode import EpisodeSpec
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.store.image_set import ImageSet, RotatedClasses
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError


def test_only_the_named_splits_get_turned_classes(tiny: PackedImages) -> None:
    view = RotatedClasses(tiny)
    assert isinstance(view, ImageSet)
    assert isinstance(tiny, ImageSet)
    assert view.splits["val"] == tiny.splits["val"]
    assert view.splits["test"] == tiny.splits["test"]
    assert len(view.splits["train"]) == 4 * len(tiny.splits["train"])
    assert set(view.splits["train"][:7]) == set(tiny.splits["train"])
    members = [number for split in view.splits.values() for number in split]
    assert len(set(members)) == len(members)
    assert view.class_names[4 + 2 * 12] == "class 4 turned 180"
    assert len(set(view.class_names)) == len(view.class_names) == 48
    assert (view.name, view.image_shape, len(view)) == ("tiny+rotations", (12, 12, 3), 4 * len(tiny))
    assert view.digest != tiny.digest
    assert RotatedClasses(tiny, ("train", "val", "test")).splits["test"] == (7, 9, 19, 21, 31, 33, 43, 45)


def test_turned_classes_hold_the_turned_images(tiny: PackedImages) -> None:
    view = RotatedClasses(tiny)
    for turn in range(4):
        positions = view.indices_of(4 + 12 * turn)
        assert set(positions // len(tiny)) == {turn}
        upright = tiny.gather(tiny.indices_of(4))
        np.testing.assert_array_equal(view.gather(positions), np.rot90(upright, turn, axes=(1, 2)))
    mixed = np.array([5, 5 + len(tiny), 6 + 2 * len(tiny), 5 + 3 * len(tiny)])
    separate = np.concatenate([view.gather(mixed[n : n + 1]) for n in range(4)])
    np.testing.assert_array_equal(view.gather(mixed), separate)


def test_episodes_mix_turned_and_upright_classes(tiny: PackedImages) -> None:
    view = RotatedClasses(tiny)
    sampler = EpisodeSampler.of_split(view, "train", EpisodeSpec(20, 2, 3), 0)
    turns = {number // 12 for episode in sampler.batch(range(5)) for number in episode.classes}
    assert turns == {0, 1, 2, 3}
    for episode in sampler.batch(range(5)):
        for image, label in zip(episode.query, episode.query_labels, strict=True):
            number = episode.classes[label]
            assert image // len(tiny) == number // 12
            assert tiny.labels[image % len(tiny)] == number % 12


def test_only_square_images_and_known_splits_can_be_turned(tiny: PackedImages) -> None:
    flat = PackedImages.from_arrays(np.zeros((2, 3, 4, 1), np.uint8), np.zeros(2, np.int64), ["a"], {"train": [0]})
    with pytest.raises(DataError, match="Only square images can be turned by 90 degrees; found 3 x 4"):
        RotatedClasses(flat)
    with pytest.raises(DataError, match="no split 'base'; the splits are train, val, test"):
        RotatedClasses(tiny, ("base",))
