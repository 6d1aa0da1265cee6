"""The standard class lists, and the division of one's own classes."""

import pytest

from e3bm.data.source import class_list, divide_by_seed, registered_sources
from e3bm.errors import DataError, SettingsError

KNOWN = [name for name in registered_sources() if registered_sources()[name]().card.published]


@pytest.mark.parametrize("name", KNOWN)
def test_standard_lists_have_the_published_sizes(name):
    source = registered_sources()[name]()
    split_of = source.known_classes().split_of
    for split, count in source.card.published.items():
        assert sum(home == split for home in split_of.values()) == count.classes
        if source.card.images_per_class and count.images:
            assert count.images == count.classes * source.card.images_per_class
    if all(count.images for count in source.card.published.values()):
        assert sum(count.images for count in source.card.published.values()) == source.card.total_images


def test_the_six_data_sets_are_known():
    assert set(KNOWN) == {"miniimagenet", "tieredimagenet", "fc100", "cifar-fs", "omniglot", "cub"}


@pytest.mark.parametrize("name", KNOWN)
def test_every_source_says_where_it_comes_from(name):
    card = registered_sources()[name]().card
    assert card.licence
    assert card.citation
    assert card.homepage.startswith("https://")
    for download in card.downloads:
        assert download.url.startswith("https://")
        assert bool(download.checksum) == bool(download.checksum_from)


def test_super_classes_are_never_divided():
    groups = class_list("cifar100")
    assert len(groups) == 20
    split_of = registered_sources()["fc100"]().known_classes().split_of
    for members in groups.values():
        assert len(members.split()) == 5
        assert len({split_of[name] for name in members.split()}) == 1
    tiered = class_list("tieredimagenet")
    assert [len(tiered[split]) for split in ("train", "val", "test")] == [20, 6, 8]
    homes = [group for split in tiered.values() for group in split]
    assert len(set(homes)) == 34


def test_cifar_numbers_are_the_alphabet():
    names = registered_sources()["fc100"]().known_classes().by_number
    assert len(names) == 100
    assert (names[0], names[4], names[30], names[99]) == ("apple", "beaver", "dolphin", "worm")


@pytest.mark.parametrize("classes", range(6, 40))
def test_division_is_complete_and_fair(classes):
    names = [f"c{n}" for n in range(classes)]
    split_of = divide_by_seed(names, 3)
    sizes = [list(split_of.values()).count(split) for split in ("train", "val", "test")]
    assert sorted(split_of) == sorted(names)
    assert min(sizes) >= 2
    assert sizes[0] == max(sizes)
    assert divide_by_seed(names[::-1], 3) == split_of
    assert any(divide_by_seed(names, seed) != split_of for seed in range(4, 8))


def test_division_that_cannot_be():
    with pytest.raises(DataError, match="5 classes cannot be divided"):
        divide_by_seed(list("abcde"), 0)
    assert len(divide_by_seed(list("abcd"), 0, (0.5, 0.0, 0.5))) == 4
    for fractions in ((0.5, 0.5, 0.5), (1.2, -0.2, 0.0), (0.5, 0.5)):
        with pytest.raises(SettingsError, match="add up to 1"):
            divide_by_seed(list("abcdefgh"), 0, fractions)


@pytest.mark.parametrize(("fractions", "sizes"), [((0.64, 0.16, 0.2), (64, 16, 20)), ((0.5, 0.0, 0.5), (50, 0, 50))])
def test_parts_have_the_sizes_that_were_asked_for(fractions: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    found = list(divide_by_seed([f"class {number}" for number in range(100)], 0, fractions).values())
    assert tuple(found.count(split) for split in ("train", "val", "test")) == sizes
