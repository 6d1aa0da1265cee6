"""What makes a number dishonest is refused."""

import numpy as np
import pytest

from e3bm.core.episode import EpisodeIndex, EpisodeSpec
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError, SettingsError
from e3bm.runs.evaluation.protocol import (
    check_episode,
    check_episodes,
    check_selection,
    check_splits,
    seen_classes,
)


def test_an_image_that_is_labelled_and_asked_for_is_refused():
    with pytest.raises(DataError, match="Episode 7 has image 3 in its support and in its queries"):
        check_episode(EpisodeIndex((0, 1), (3, 5), (0, 1), (4, 3), (0, 1)), 7)
    check_episode(EpisodeIndex((0, 1), (3, 5), (0, 1), (4, 6), (0, 1)), 7)


def test_a_class_that_is_there_twice_is_refused():
    with pytest.raises(DataError, match="the same class twice"):
        check_episode(EpisodeIndex((4, 4), (3, 5), (0, 1), (8, 9), (0, 1)), 0)


def test_all_episodes_of_a_list_are_looked_at():
    positions = {number: range(10 * number, 10 * number + 10) for number in range(6)}
    check_episodes(EpisodeSampler(positions, EpisodeSpec(5, 1, 3), seed=0), 600)
    overlapping = {number: [0, 1, 2, 3] for number in range(6)}  # every class claims the same images
    with pytest.raises(DataError, match="in its support and in its queries"):
        check_episodes(EpisodeSampler(overlapping, EpisodeSpec(5, 1, 3), seed=0), 600)


def test_splits_that_share_a_class_are_refused():
    check_splits({"train": [0, 1], "val": [2], "test": [3]})
    with pytest.raises(DataError, match="Class 1 is in the splits train and test"):
        check_splits({"train": [0, 1], "val": [2], "test": [1]})


def test_selecting_on_the_test_classes_is_refused():
    check_selection("val")
    check_selection("train")
    with pytest.raises(SettingsError, match="Selecting on the test classes is refused"):
        check_selection("test")


def data(names):
    labels = np.repeat(np.arange(len(names)), 2)
    images = np.zeros((len(labels), 4, 4, 1), np.uint8)
    half = len(names) // 2
    splits = {"train": range(half), "val": [], "test": range(half, len(names))}
    return PackedImages.from_arrays(images, labels, names, splits, name=f"set of {names[0]}")


def test_classes_of_another_data_set_that_were_trained_on_are_refused():
    trained = data(["dog", "cat", "owl", "newt"])  # dog and cat were trained on
    assert seen_classes(trained, data(["tea", "ink", "oak", "elm"]), "test", allowed=False) == 0
    assert seen_classes(trained, data(["dog", "cat", "owl", "elm"]), "test", allowed=False) == 0
    overlapping = data(["tea", "ink", "cat", "elm"])
    with pytest.raises(DataError, match=r"1 classes of the test split of 'set of tea' were trained on.*\(cat\)"):
        seen_classes(trained, overlapping, "test", allowed=False)
    assert seen_classes(trained, overlapping, "test", allowed=True) == 1
