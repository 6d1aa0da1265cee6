"""Features are computed once per weights, data and pipeline; whatever is wrong with the cache costs time only."""

from pathlib import Path

import numpy as np
import pytest
import torch

from e3bm.data.store.features import FeatureCache, FeatureTasks, embed_images, feature_key
from e3bm.errors import DataError
from e3bm.progress import Silent
from e3bm.runs.assembly import build_backbone
from e3bm.runs.engine import Engine
from e3bm.runs.tasks import episode_sampler, feature_tasks, open_data
from e3bm.storage import LEFTOVERS, lock, release
from small_runs import settings


class Counted(Silent):
    """How often features were computed."""

    def __init__(self):
        self.times = 0

    def begin(self, title, total, done=0):
        self.times += 1


@pytest.fixture
def prepared(small_data, tmp_path):
    """A data set beside an empty cache, a sampler of it, and a backbone."""
    wanted = settings(small_data, "mtl")
    data = open_data(wanted.data)
    data = type(data)(data.images, data.training, data.evaluation, tmp_path)
    sampler = episode_sampler(data, "train", wanted.episode, 0, "training")
    return data, sampler, build_backbone(wanted.backbone, *data.input_shape)


def load(data, sampler, backbone, **options):
    """Tasks of features, and how often features were computed for them."""
    counted = Counted()
    tasks = feature_tasks(data, sampler, backbone, counted, torch.float32, Engine(), **options)
    return tasks, counted.times


def cached(tmp_path):
    return sorted((tmp_path / "features").glob("*.npy"))


def test_the_second_time_they_are_read(prepared, tmp_path):
    first, computed = load(*prepared)
    again, computed_again = load(*prepared)
    assert (computed, computed_again) == (1, 0)
    assert torch.equal(first.features, again.features)
    assert len(cached(tmp_path)) == 1
    assert not list((tmp_path / "features").glob(LEFTOVERS))


def test_features_are_those_of_the_backbone(prepared):
    data, sampler, backbone = prepared
    batch = load(*prepared)[0].load([3])
    episode = sampler[3]
    images = data.evaluation(torch.from_numpy(data.images.gather(np.array(episode.support))).permute(0, 3, 1, 2))
    with torch.no_grad():
        torch.testing.assert_close(batch.support[0], backbone.eval()(images), rtol=1e-4, atol=1e-5)
    assert batch.support_labels[0].tolist() == list(episode.support_labels)
    assert batch.query_labels[0].tolist() == list(episode.query_labels)


def test_other_weights_data_pipelines_and_images_have_features_of_their_own(prepared, tmp_path, small_data):
    data, sampler, backbone = prepared
    load(data, sampler, backbone)
    with torch.no_grad():
        next(backbone.parameters()).add_(1e-3)
    assert load(data, sampler, backbone)[1] == 1
    brighter = open_data(settings(small_data, "mtl", data__normalisation="none").data)
    assert load(type(data)(data.images, brighter.training, brighter.evaluation, tmp_path), sampler, backbone)[1] == 1
    other_split = episode_sampler(data, "val", settings(small_data, "mtl").episode, 0, "validation")
    assert load(data, other_split, backbone)[1] == 1
    same_classes = episode_sampler(data, "train", settings(small_data, "mtl").episode, 7, "training")
    assert load(data, same_classes, backbone)[1] == 0  # other episodes of the same images
    assert len(cached(tmp_path)) == 4


def test_the_key_is_of_everything_that_matters():
    positions = np.arange(5)
    keys = {
        feature_key("net", "images", "pipeline", positions),
        feature_key("net2", "images", "pipeline", positions),
        feature_key("net", "images2", "pipeline", positions),
        feature_key("net", "images", "pipeline2", positions),
        feature_key("net", "images", "pipeline", positions + 1),
    }
    assert len(keys) == 5
    assert feature_key("net", "images", "pipeline", positions.astype(np.int32)) in keys


@pytest.mark.parametrize("damage", ["emptied", "cut", "cut to the header", "flipped", "replaced", "a folder"])
def test_a_damaged_file_is_computed_again(prepared, tmp_path, damage):
    whole, _ = load(*prepared)
    (path,) = cached(tmp_path)
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    else:
        middle = len(content) // 2
        path.write_bytes(
            {
                "emptied": b"",
                "cut": content[:-100],
                "cut to the header": content[:100],
                "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
                "replaced": b"something else entirely" * 10,
            }[damage]
        )
    again, computed = load(*prepared)
    assert computed == 1
    assert torch.equal(again.features, whole.features)
    if damage != "a folder":
        assert load(*prepared)[1] == 0  # and kept again


def test_a_cache_that_cannot_be_written_costs_time_only(prepared, tmp_path):
    (tmp_path / "features").write_text("a file in its place")
    assert [load(*prepared)[1] for _ in range(2)] == [1, 1]


def test_a_full_disk_leaves_nothing_behind(prepared, tmp_path, monkeypatch):
    def fail(*words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("e3bm.storage.os.fsync", fail)
    assert load(*prepared)[1] == 1
    assert list((tmp_path / "features").iterdir()) == []


def test_leftovers_of_a_killed_writer_are_swept(tmp_path):
    cache = FeatureCache(tmp_path)
    (tmp_path / ".key.npy.12ab.partial").write_text("half")
    (tmp_path / ".other.npy.12ab.partial").write_text("half")
    with (tmp_path / ".live.npy.34cd.partial").open("wb") as file:
        held = lock(Path(file.name), wait=False)  # as a writer at work does
        cache.keep("key", np.ones((2, 3), np.float32))
        release(held)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".live.npy.34cd.partial", "key.npy"]
    assert np.array_equal(np.load(tmp_path / "key.npy"), np.ones((2, 3)))  # still a NumPy file


def test_nothing_is_kept_where_it_is_not_worth_it(prepared, tmp_path):
    assert load(*prepared, keep=False)[1] == 1
    assert not (tmp_path / "features").exists()


def test_features_that_are_not_finite_are_refused(prepared):
    data, _, _ = prepared
    with pytest.raises(DataError, match="not finite"):
        embed_images(data.images, np.arange(3), lambda pixels: torch.full((len(pixels), 2), torch.inf))


def test_uneven_shots_are_padded_and_masked(prepared, small_data):
    data, _, backbone = prepared
    uneven = settings(small_data, "mtl", episode__shots=(1, 4)).episode
    sampler = episode_sampler(data, "train", uneven, 0, "training")
    batch = load(data, sampler, backbone)[0].load(range(6))
    counts = [len(sampler[number].support) for number in range(6)]
    assert batch.support_mask.sum(1).tolist() == counts
    members = data.images.splits["train"]
    for task in range(6):
        classes, labels = sampler[task].classes, batch.support_labels[task].tolist()
        assert batch.support_classes[task].tolist() == [members.index(classes[label]) for label in labels]
        labels = batch.query_labels[task].tolist()
        assert batch.query_classes[task].tolist() == [members.index(classes[label]) for label in labels]
    assert len(set(counts)) > 1


def test_rows_and_positions_must_agree(prepared):
    _, sampler, _ = prepared
    with pytest.raises(DataError, match="features of 2 images, but 3"):
        FeatureTasks(np.zeros((2, 4), np.float32), np.arange(3), sampler, torch.float32)


def test_every_process_computes_its_share(prepared):
    """Two engines that hand each other their rows give what one gives."""
    whole, _ = load(*prepared)

    class Second(Engine):
        def any(self, flag):
            return flag

        def gather(self, mine, total, dim=0):
            shares.append(mine)
            return whole.features

    shares = []
    for rank in range(2):
        load_with = Second(rank, 2)
        feature_tasks(*prepared, Counted(), torch.float32, load_with, keep=False)
    restored = torch.stack(shares, 1).flatten(0, 1)
    torch.testing.assert_close(restored, whole.features, rtol=1e-5, atol=1e-6)
