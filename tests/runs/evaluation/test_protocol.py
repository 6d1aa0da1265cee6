"""What makes a number dishonest is refused."""

from dataclasses import replace

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

pytestmark = pytest.mark.same_anywhere


def test_an_image_that_is_labelled_and_asked_for_is_refused():
    with pytest.raises(DataError, match="Episode 7 has image 3 in its support and in its queries"):
        check_episode(EpisodeIndex((0, 1), (3, 5), (0, 1), (4, 3), (0, 1)), 7)
    check_episode(EpisodeIndex((0, 1), (3, 5), (0, 1), (4, 6), (0, 1)), 7)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("other", range(3))
def test_every_support_image_is_compared_with_every_query(place, other):
    support, query = [10, 11, 12, 13], [20, 21, 22]
    query[other] = support[place]
    with pytest.raises(DataError, match=f"has image {support[place]} in its support and in its queries"):
        check_episode(EpisodeIndex((0, 1), tuple(support), (0, 0, 1, 1), tuple(query), (0, 1, 1)), 7)


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


@pytest.mark.parametrize("number", [0, 255, 256, 599])
def test_a_spoilt_episode_is_found_wherever_it_stands_in_the_list(number):
    positions = {c: range(10 * c, 10 * c + 10) for c in range(6)}

    class Spoilt(EpisodeSampler):
        def batch(self, numbers):
            found = super().batch(numbers)
            for place, own in enumerate(numbers):
                if own == number:
                    found[place] = replace(found[place], query=(found[place].support[-1], *found[place].query[1:]))
            return found

    with pytest.raises(DataError, match=f"Episode {number} has image"):
        check_episodes(Spoilt(positions, EpisodeSpec(5, 1, 3), seed=0), 600)
