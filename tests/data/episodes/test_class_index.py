from types import SimpleNamespace

import pytest

from e3bm.core.episode import EpisodeSpec
from e3bm.data.episodes.class_index import ClassIndex
from e3bm.data.episodes.sampler import EpisodeSampler, episodes_hash
from e3bm.errors import DataError


@pytest.mark.parametrize(
    ("split", "ways", "shots", "shares"), [("train", 5, 1, None), ("val", 3, (1, 4), None), ("val", 3, 1, 2)]
)
def test_the_index_alone_draws_the_same_episodes(tiny, split, ways, shots, shares):
    spec = EpisodeSpec(ways, shots, 3, shares)
    expected = episodes_hash(EpisodeSampler.of_split(tiny, split, spec, 7, stream="test"), 40)
    index = ClassIndex.from_json(ClassIndex.of(tiny).as_json())
    stated = SimpleNamespace(ways=ways, shots=shots, queries=3, query_shares=shares, episodes=40, split=split)
    assert index.hash_of(SimpleNamespace(**vars(stated), episodes_seed=7)) == expected
    assert index.hash_of(SimpleNamespace(**vars(stated), episodes_seed=8)) != expected


def test_it_is_written_and_read_whole(tiny):
    index = ClassIndex.of(tiny)
    assert ClassIndex.from_json(index.as_json()) == index
    assert index.digest == tiny.digest
    assert index.as_json()["splits"] == {"train": "0 2 4 6 8 10-11", "val": "1 3 5", "test": "7 9"}


def test_something_else_is_refused():
    with pytest.raises(DataError, match="not a class index"):
        ClassIndex.from_json({"name": "x", "digest": "y", "splits": {"train": "0-a"}, "labels": "0x5"})
