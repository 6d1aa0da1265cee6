"""Parts of the training classes: families stay together, and an episode is of one part."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from e3bm.core.episode import EpisodeSpec
from e3bm.data.episodes.folds import FoldSampler, SomeTrainingClasses, class_families, class_folds
from e3bm.data.source import class_list
from e3bm.errors import SettingsError


def image_set(names, train, name="own", images=8):
    members = {number: np.arange(images) + images * number for number in range(len(names))}
    rest = tuple(number for number in range(len(names)) if number not in train)
    return SimpleNamespace(
        name=name,
        class_names=tuple(names),
        splits={"train": tuple(train), "test": rest},
        image_shape=(4, 4, 3),
        digest="0",
        indices_of=members.__getitem__,
        gather=lambda positions: np.zeros((len(positions), 4, 4, 3), np.uint8),
    )


def fc100():
    members = class_list("cifar100")
    families = class_list("fc100")["train"].split()
    names = sorted(name for group in members.values() for name in group.split())
    training = {name for family in families for name in members[family].split()}
    return image_set(names, [number for number, name in enumerate(names) if name in training], "fc100"), members


@pytest.mark.parametrize("count", [2, 3, 4, 6, 12])
def test_super_classes_of_fc100_stay_together(count):
    images, members = fc100()
    folds = class_folds(images, count)
    assert [len(fold) for fold in folds] == [60 // count] * count
    assert sorted(number for fold in folds for number in fold) == sorted(images.splits["train"])
    fold_of = {images.class_names[number]: place for place, fold in enumerate(folds) for number in fold}
    for names in members.values():
        assert len({fold_of[name] for name in names.split() if name in fold_of}) <= 1


def test_classes_without_families_are_dealt_evenly():
    images = image_set([f"class {number}" for number in range(11)], range(10))
    folds = class_folds(images, 3)
    assert sorted(map(len, folds)) == [3, 3, 4]
    assert sorted(sum(folds, ())) == list(range(10))
    assert folds == class_folds(images, 3)


@pytest.mark.parametrize("count", [0, 1, 13])
def test_a_number_of_parts_that_cannot_be(count):
    images, _ = fc100()
    with pytest.raises(SettingsError, match=f"divided into 2 to 12 parts, found {count}"):
        class_folds(images, count)


def test_a_part_left_out_leaves_everything_else():
    images = image_set("abcdef", range(4))
    part = SomeTrainingClasses(images, (0, 3))
    assert part.splits == {"train": (0, 3), "test": (4, 5)}
    assert (part.name, part.digest, part.class_names) == (images.name, images.digest, images.class_names)
    assert part.indices_of(3).tolist() == images.indices_of(3).tolist()


def test_an_episode_is_of_one_part_and_parts_come_in_proportion():
    images = image_set([str(number) for number in range(15)], range(12))
    folds = ((0, 2, 4), (1, 3, 5, 6, 7, 8, 9, 10, 11))
    sampler = FoldSampler(images, folds, EpisodeSpec(3, 1, 2), 0, "training")
    episodes = sampler.batch(range(2000))
    homes = [[set(episode.classes) <= set(fold) for fold in folds].index(True) for episode in episodes]
    assert abs(Counter(homes)[0] / 2000 - 1 / 4) < 0.04  # four standard deviations
    assert {number for episode in episodes for number in episode.classes} == set(range(12))
    for episode in episodes[:50]:
        assert not set(episode.support) & set(episode.query)
    # Whoever asks, in whatever order.
    assert [sampler[number] for number in (7, 3, 900)] == [episodes[number] for number in (7, 3, 900)]
    assert sampler.batch([900, 3]) == [episodes[900], episodes[3]]
    assert FoldSampler(images, folds, EpisodeSpec(3, 1, 2), 1, "training").batch(range(20)) != episodes[:20]


def test_class_numbers_are_those_of_the_training_set():
    images = image_set([str(number) for number in range(9)], (1, 2, 3, 5, 6, 8))
    sampler = FoldSampler(images, ((8, 2, 5), (1, 6, 3)), EpisodeSpec(3, 1, 1), 0, "training")
    episodes = sampler.batch(range(10))
    places = sampler.split_classes(episodes).tolist()
    assert [[(1, 2, 3, 5, 6, 8)[place] for place in row] for row in places] == [list(each.classes) for each in episodes]


def test_related_episodes_are_of_one_family_and_the_others_stay_as_they_are():
    images, _ = fc100()
    folds = class_folds(images, 3)
    plain = FoldSampler(images, folds, EpisodeSpec(5, 1, 1), 0, "training").batch(range(400))
    mixed = FoldSampler(images, folds, EpisodeSpec(5, 1, 1), 0, "training", related=0.25).batch(range(400))
    families = [set(family) for family in class_families(images).values()]
    related = [set(episode.classes) in families for episode in mixed]
    assert abs(sum(related) / 400 - 0.25) < 0.09  # four standard deviations
    assert all(one == other for one, other, new in zip(plain, mixed, related, strict=True) if not new)
    assert len({frozenset(each.classes) for each, new in zip(mixed, related, strict=True) if new}) == 12


def test_related_episodes_need_families_of_enough_classes():
    images = image_set("abcdef", range(6))
    with pytest.raises(SettingsError, match=r"No family of training classes of .* has 3 classes"):
        FoldSampler(images, ((0, 1, 2), (3, 4, 5)), EpisodeSpec(3, 1, 1), 0, "training", related=0.5)
