"""Episodes are what was asked for, and the i-th is the same whoever asks for it."""

import itertools
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3bm.core.episode import EpisodeIndex, EpisodeSpec
from e3bm.data.episodes.randomness import random_words, uniform_numbers
from e3bm.data.episodes.sampler import EpisodeSampler, episodes_hash
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError


def pool(counts: list[int]) -> dict[int, np.ndarray]:
    """Class 7 + 3 c has counts[c] images at scattered positions."""
    order = np.random.default_rng(1).permutation(sum(counts)) + 1000
    ends = np.cumsum(counts)
    return {7 + 3 * c: order[end - n : end] for c, (n, end) in enumerate(zip(counts, ends, strict=True))}


def check(episode: EpisodeIndex, spec: EpisodeSpec, positions: dict[int, np.ndarray]) -> None:
    low, high = spec.shot_range
    assert len(set(episode.classes)) == len(episode.classes) == spec.ways
    assert set(episode.classes) <= set(positions)
    assert not set(episode.support) & set(episode.query)
    assert len(set(episode.support)) == len(episode.support) == len(episode.support_labels)
    assert len(set(episode.query)) == len(episode.query) == len(episode.query_labels) == spec.ways * spec.queries
    shots, queries = Counter(episode.support_labels), Counter(episode.query_labels)
    for way in range(spec.ways):
        assert low <= shots[way] <= high
        assert queries[way] == spec.queries or spec.query_shares
    for images, labels in ((episode.support, episode.support_labels), (episode.query, episode.query_labels)):
        for image, label in zip(images, labels, strict=True):
            assert image in positions[episode.classes[label]]


@given(
    ways=st.integers(2, 20),
    shots=st.integers(1, 10),
    more=st.integers(0, 9),
    queries=st.integers(1, 16),
    shares=st.sampled_from([None, 1, 2, 5]),
    spare=st.lists(st.integers(0, 12), min_size=20, max_size=24),
    seed=st.integers(0, 2**64),
    number=st.integers(0, 2**40),
)
@settings(max_examples=150, deadline=None)
def test_every_episode_is_what_was_asked_for(
    ways: int, shots: int, more: int, queries: int, shares: int | None, spare: list[int], seed: int, number: int
) -> None:
    spec = EpisodeSpec(ways, (shots, shots + more) if more else shots, queries, shares)
    positions = pool([shots + more + spec.most_queries + extra for extra in spare])
    check(EpisodeSampler(positions, spec, seed)[number], spec, positions)


@given(
    numbers=st.lists(st.integers(0, 1000), max_size=20),
    seed=st.integers(0, 5),
    uneven=st.booleans(),
    shares=st.sampled_from([None, 2]),
)
@settings(max_examples=60, deadline=None)
def test_an_episode_does_not_depend_on_what_else_is_asked(
    numbers: list[int], seed: int, uneven: bool, shares: int | None
) -> None:
    sampler = EpisodeSampler(pool([25] * 9), EpisodeSpec(5, (1, 5) if uneven else 3, 4, shares), seed)
    assert sampler.batch(numbers) == [sampler[number] for number in numbers]
    assert [sampler[number] for number in reversed(numbers)] == sampler.batch(numbers)[::-1]


def test_workers_and_processes_get_the_same_episodes() -> None:
    sampler = EpisodeSampler(pool([25] * 9), EpisodeSpec(5, 1, 4), 3)
    alone = sampler.batch(range(24))
    with ThreadPoolExecutor(4) as workers:
        assert list(workers.map(sampler.__getitem__, range(24))) == alone
    for processes in (2, 3, 4):
        shards = [sampler.batch(range(rank, 24, processes)) for rank in range(processes)]
        assert list(itertools.chain.from_iterable(zip(*shards, strict=True))) == alone
    code = (
        "from e3bm.data.episodes.sampler import *; "
        "print(episodes_hash(EpisodeSampler({c: range(25 * c, 25 * c + 25) for c in range(9)}, EpisodeSpec(), 3), 24))"
    )
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    here = EpisodeSampler({c: range(25 * c, 25 * c + 25) for c in range(9)}, EpisodeSpec(), 3)
    assert elsewhere == episodes_hash(here, 24)


def test_the_hash_of_a_test_list_never_changes() -> None:
    positions = {c: np.arange(40) + 40 * c for c in range(10)}
    even = EpisodeSampler(positions, EpisodeSpec(5, 1, 15), 1)
    uneven = EpisodeSampler(positions, EpisodeSpec(5, (1, 5), 15), 1)
    assert episodes_hash(even, 600) == "f1e61822e65954db99299507b5f4e02b4dcfa013afba756b9ad70c4a1eefd315"
    assert episodes_hash(uneven, 600, block=7) == "318c34b5d430b565a0dcc7a8abd3a55f81659e06abf3f30a7e017c3852e76175"
    assert episodes_hash(even, 599) != episodes_hash(even, 600)
    shared = EpisodeSampler({c: np.arange(90) + 90 * c for c in range(10)}, EpisodeSpec(5, 1, 15, 2), 1)
    assert episodes_hash(shared, 600, block=7) == "18c3f02f870d503fec2bc8fbc318112c4ebd89d53c033f4a0eb057855c0df230"


@pytest.mark.parametrize("shots", [3, (1, 4)])
def test_uneven_queries_leave_the_support_as_it_was(shots: int | tuple[int, int]) -> None:
    positions = pool([40, 50, 45, 60, 47, 44])
    even = EpisodeSampler(positions, EpisodeSpec(4, shots, 6), 2)
    uneven = EpisodeSampler(positions, EpisodeSpec(4, shots, 6, 2), 2)
    assert episodes_hash(even, 60) != episodes_hash(uneven, 60)
    for known, drawn in zip(even.batch(range(60)), uneven.batch(range(60)), strict=True):
        assert (drawn.classes, drawn.support, drawn.support_labels) == (
            known.classes,
            known.support,
            known.support_labels,
        )
        for way in range(4):
            of_way = [
                {q for q, label in zip(e.query, e.query_labels, strict=True) if label == way} for e in (known, drawn)
            ]
            assert of_way[1] <= of_way[0] or of_way[0] < of_way[1]


@pytest.mark.parametrize("shares", [1, 2, 5])
def test_shares_are_those_of_a_dirichlet_distribution(shares: int) -> None:
    """Mean 1 / W and variance (1 / W) (1 - 1 / W) / (W a + 1), and the same for every class; the seed is fixed."""
    ways, queries, rounds = 5, 200, 2000
    sampler = EpisodeSampler(
        {c: range(1100 * c, 1100 * c + 1100) for c in range(5)}, EpisodeSpec(5, 1, queries, shares), 4
    )
    counts = np.array([np.bincount(e.query_labels, minlength=ways) for e in sampler.batch(range(rounds))])
    drawn = counts / (ways * queries)
    assert (counts.sum(1) == ways * queries).all()
    variance = (1 / ways) * (1 - 1 / ways) / (ways * shares + 1)
    np.testing.assert_allclose(drawn.mean(0), 1 / ways, atol=5 * (variance / rounds) ** 0.5)
    # Rounding adds at most a twelfth of a query twice; the tolerance is five deviations of a variance's estimate.
    np.testing.assert_allclose(drawn.var(0), variance, rtol=5 * (3 / rounds) ** 0.5)


def test_every_further_image_is_equally_likely() -> None:
    sampler = EpisodeSampler({c: range(10 * c, 10 * c + 9) for c in range(2)}, EpisodeSpec(2, 1, 4, 1), 11)
    used = Counter(image for e in sampler.batch(range(6000)) for image in e.query)
    expected = sum(used.values()) / 18
    assert len(used) == 18
    assert sum((seen - expected) ** 2 / expected for seen in used.values()) < 17 + 5 * 34**0.5


def test_only_classes_of_the_right_split_are_drawn(tiny: PackedImages) -> None:
    for split, ways in (("train", 7), ("val", 3), ("test", 2)):
        sampler = EpisodeSampler.of_split(tiny, split, EpisodeSpec(ways, 2, 3), 0)
        for episode in sampler.batch(range(50)):
            assert set(episode.classes) == set(tiny.splits[split])
            drawn = tiny.labels[list(episode.support + episode.query)]
            assert set(drawn.tolist()) == set(tiny.splits[split])


def test_seeds_streams_and_numbers_give_different_episodes(tiny: PackedImages) -> None:
    spec = EpisodeSpec(5, 1, 5)
    samplers = [
        EpisodeSampler.of_split(tiny, "train", spec, seed, stream=stream) for seed in (0, 1) for stream in ("a", "b")
    ]
    episodes = {sampler[number] for sampler in samplers for number in range(50)}
    assert len(episodes) == 4 * 50


def test_every_choice_is_equally_likely() -> None:
    """Chi-square of classes per label, support images and query order; the seed is fixed, so the test cannot waver."""
    rounds, ways = 6000, 3
    sampler = EpisodeSampler({c: range(10 * c, 10 * c + 6) for c in range(5)}, EpisodeSpec(ways, (1, 2), 2), 11)
    episodes = sampler.batch(range(rounds))
    assigned = Counter((way, number) for e in episodes for way, number in enumerate(e.classes))
    first_support = Counter(e.support[0] for e in episodes)
    orders = Counter(e.query_labels for e in episodes)
    shots = Counter(e.support_labels.count(way) for e in episodes for way in range(ways))
    used = Counter(image for e in episodes for image in e.query)
    for counter, cells in ((assigned, 15), (first_support, 30), (orders, 90), (shots, 2), (used, 30)):
        assert len(counter) == cells
        expected = sum(counter.values()) / cells
        chi_square = sum((seen - expected) ** 2 / expected for seen in counter.values())
        assert chi_square < (cells - 1) + 5 * (2 * (cells - 1)) ** 0.5, (cells, chi_square)


def test_impossible_episodes_are_refused_in_a_sentence(tiny: PackedImages) -> None:
    with pytest.raises(DataError, match="Episodes of 4 ways need 4 classes, found 3; ask for fewer ways"):
        EpisodeSampler.of_split(tiny, "val", EpisodeSpec(4, 1, 1), 0)
    with pytest.raises(DataError, match="Class 'class 1' has 21 images, but 7 shots and 15 queries need 22"):
        EpisodeSampler.of_split(tiny, "val", EpisodeSpec(2, (1, 7), 15), 0)
    with pytest.raises(DataError, match="Class 4 has 2 images, but 2 shots and 1 queries need 3"):
        EpisodeSampler({3: range(9), 4: range(2)}, EpisodeSpec(2, 2, 1), 0)
    with pytest.raises(DataError, match="Class 4 has 9 images, but 2 shots and 8 queries that may all be of one class"):
        EpisodeSampler({3: range(10), 4: range(9)}, EpisodeSpec(2, 2, 4, 2), 0)
    with pytest.raises(DataError, match="no split 'validation'; the splits are train, val, test"):
        EpisodeSampler.of_split(tiny, "validation", EpisodeSpec(2, 1, 1), 0)
    with pytest.raises(DataError, match="numbered from 0, found -1"):
        EpisodeSampler.of_split(tiny, "val", EpisodeSpec(2, 1, 1), 0)[-1]
    alone = PackedImages.from_arrays(np.zeros((2, 4, 4, 1), np.uint8), np.zeros(2, np.int64), ["a"], {"train": [0]})
    with pytest.raises(DataError, match="The test split of 'arrays' has no classes"):
        EpisodeSampler.of_split(alone, "test", EpisodeSpec(2, 1, 1), 0)


def test_all_images_of_a_class_can_be_used_up() -> None:
    positions = pool([6] * 2)
    spec = EpisodeSpec(2, 2, 4)
    for episode in EpisodeSampler(positions, spec, 0).batch(range(20)):
        check(episode, spec, positions)


@given(addresses=st.lists(st.integers(0, 50), max_size=12), width=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_random_words_have_addresses(addresses: list[int], width: int) -> None:
    everything = random_words(5, "here", range(51), width)
    np.testing.assert_array_equal(random_words(5, "here", addresses, width), everything[addresses])
    if width:
        assert not np.array_equal(everything, random_words(5, "there", range(51), width))
        assert not np.array_equal(everything, random_words(6, "here", range(51), width))
        numbers = uniform_numbers(5, "here", range(51), width)
        assert (numbers >= 0).all()
        assert (numbers < 1).all()
        assert len(np.unique(everything)) == everything.size


def test_the_same_classes_in_another_split_give_other_episodes(tiny: PackedImages) -> None:
    """Lists of different splits have nothing in common, not even which places of their pools they draw."""
    members = tiny.splits["train"]
    rest = [number for number in range(12) if number not in members]
    spec, found = EpisodeSpec(5, 1, 5), []
    for split, other in (("train", "val"), ("val", "test"), ("test", "train")):
        splits = {split: members, other: rest}
        moved = PackedImages.from_arrays(tiny.images, tiny.labels, tiny.class_names, splits)
        found.append(EpisodeSampler.of_split(moved, split, spec, 0).batch(range(20)))
    assert len({episode for episodes in found for episode in episodes}) == 3 * 20
