"""Tasks hold the images their episodes name, padded and masked where shots differ, whoever loads them."""

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3bm.core.episode import EpisodeIndex, EpisodeSpec, TaskBatch
from e3bm.data.episodes.loader import ImageTasks, load_tasks, prefetched
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.pixels.pipeline import NORMALISATIONS, Pipeline
from e3bm.data.store.image_set import RotatedClasses
from e3bm.data.store.packed import PackedImages, PackedWriter
from e3bm.errors import DataError, SettingsError

PLAIN = Pipeline.parse("normalise none")
RANDOM = Pipeline.parse("padded_crop 10 2, colour_jitter 0.4 0.4 0.4, flip, random_resized_crop 8, normalise mtl")


def same(one: TaskBatch, other: TaskBatch) -> bool:
    pairs = ((one.support, other.support), (one.query, other.query), (one.mask, other.mask))
    labels = torch.equal(one.support_labels, other.support_labels) and torch.equal(one.query_labels, other.query_labels)
    return labels and all(torch.equal(a, b) for a, b in pairs) and one.ways == other.ways


def test_a_task_holds_the_images_its_episode_names(tiny: PackedImages) -> None:
    sampler = EpisodeSampler.of_split(tiny, "train", EpisodeSpec(5, 2, 3), 0)
    episodes = sampler.batch(range(4))
    batch = load_tasks(tiny, episodes, PLAIN, dtype=torch.float64)
    assert batch.support.shape == (4, 10, 3, 12, 12)
    assert batch.query.shape == (4, 15, 3, 12, 12)
    assert batch.support.dtype == torch.float64
    assert batch.support_mask is None
    assert batch.ways == 5
    for task, episode in enumerate(episodes):
        assert batch.support_labels[task].tolist() == list(episode.support_labels)
        assert batch.query_labels is not None
        assert batch.query_labels[task].tolist() == list(episode.query_labels)
        for values, positions in ((batch.support, episode.support), (batch.query, episode.query)):
            expected = torch.from_numpy(tiny.images[list(positions)].transpose(0, 3, 1, 2) / 255.0)
            torch.testing.assert_close(values[task], expected, rtol=0, atol=1e-15)


@given(
    ways=st.integers(2, 7),
    low=st.integers(1, 3),
    more=st.integers(1, 4),
    tasks=st.integers(1, 4),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_uneven_shots_are_padded_and_masked(
    tiny: PackedImages, ways: int, low: int, more: int, tasks: int, seed: int
) -> None:
    sampler = EpisodeSampler.of_split(tiny, "train", EpisodeSpec(ways, (low, low + more), 2), seed)
    episodes = sampler.batch(range(tasks))
    together = load_tasks(tiny, episodes, RANDOM, seed=seed, numbers=range(tasks))
    assert together.support.shape[1] == max(len(episode.support) for episode in episodes)
    for task, episode in enumerate(episodes):
        real = together.mask[task]
        count = len(episode.support)
        assert real.tolist() == [n < count for n in range(len(real))]
        assert together.support_labels[task][real].tolist() == list(episode.support_labels)
        assert (together.support[task][~real] == 0).all()
        assert (together.support_labels[task][~real] == 0).all()
        alone = load_tasks(tiny, [episode], RANDOM, seed=seed, numbers=[task])
        assert alone.support_mask is None
        assert torch.equal(together.support[task][real], alone.support[0])
        assert torch.equal(together.query[task], alone.query[0])


def test_tasks_number_their_classes_within_the_split(tiny: PackedImages) -> None:
    """As the minibatches of pretraining do, so that a method can learn the training classes beside its tasks."""
    sampler = EpisodeSampler.of_split(tiny, "val", EpisodeSpec(2, (1, 3), 2), 0)
    batch = ImageTasks(tiny, sampler, PLAIN).load(range(5))
    assert batch.support_mask is not None
    assert batch.support_classes is not None
    assert batch.query_classes is not None
    own = tiny.splits["val"]
    assert own[0] != 0  # the data set's own numbers are others
    for task, episode in enumerate(sampler.batch(range(5))):
        for classes, labels in (
            (batch.support_classes, batch.support_labels),
            (batch.query_classes, batch.query_labels),
        ):
            assert labels is not None
            expected = [own.index(episode.classes[label]) for label in labels[task].tolist()]
            assert classes[task].tolist() == expected
    assert load_tasks(tiny, sampler.batch(range(2)), PLAIN).query_classes is None


def test_augmentation_belongs_to_the_episode(tiny: PackedImages) -> None:
    sampler = EpisodeSampler.of_split(tiny, "train", EpisodeSpec(5, 1, 2), 0)
    tasks = ImageTasks(tiny, sampler, RANDOM, seed=7)
    together = tasks.load(range(10, 14))
    for place, number in enumerate(range(10, 14)):
        assert same(together.tasks(place, place + 1), tasks.load([number]))
    backwards = tasks.load([13, 12, 11, 10])
    assert torch.equal(backwards.query.flip(0), together.query)
    other_seed = ImageTasks(tiny, sampler, RANDOM, seed=8).load(range(10, 14))
    assert not torch.equal(other_seed.query, together.query)
    repeated = load_tasks(tiny, [sampler[0], sampler[0]], RANDOM, seed=7, numbers=[0, 1])
    assert not torch.equal(repeated.query[0], repeated.query[1])


@pytest.mark.parametrize("pipeline", [PLAIN, RANDOM], ids=["plain", "random"])
def test_prefetching_changes_nothing(tiny: PackedImages, pipeline: Pipeline) -> None:
    sampler = EpisodeSampler.of_split(tiny, "train", EpisodeSpec(4, (1, 3), 2), 0)
    tasks = ImageTasks(tiny, sampler, pipeline)
    batches = [range(3 * step, 3 * step + 3) for step in range(5)]
    ahead, now = (list(prefetched(map(tasks.load, batches), depth)) for depth in (3, 0))
    assert len(ahead) == len(now) == 5
    assert all(same(one, other) for one, other in zip(ahead, now, strict=True))
    again = list(prefetched(map(tasks.load, batches), tasks.prefetch))
    assert all(same(one, other) for one, other in zip(again, now, strict=True))
    resumed = prefetched((tasks.load(range(3 * step, 3 * step + 3)) for step in itertools.count(3)), tasks.prefetch)
    for batch, expected in zip(resumed, now[3:], strict=False):
        assert same(batch, expected)


@pytest.mark.parametrize("processes", [2, 3, 6])
def test_the_shares_of_all_processes_make_up_the_meta_batch(tiny: PackedImages, processes: int) -> None:
    sampler = EpisodeSampler.of_split(tiny, "train", EpisodeSpec(4, 1, 2), 0)
    tasks, numbers = ImageTasks(tiny, sampler, RANDOM), range(12, 18)
    whole = tasks.load(numbers)
    for rank in range(processes):
        share = tasks.load(numbers[rank::processes])
        assert torch.equal(share.query, whole.query[rank::processes])


def test_an_error_while_loading_reaches_the_loop(tiny: PackedImages) -> None:
    sampler = EpisodeSampler.of_split(tiny, "train", EpisodeSpec(4, 1, 2), 0)
    batches = prefetched(map(ImageTasks(tiny, sampler, PLAIN).load, [[0], [-1]]), 2)
    assert len(next(batches)) == 1
    with pytest.raises(DataError, match="numbered from 0"):
        next(batches)


def test_another_process_loads_the_same_tasks(tiny: PackedImages, tmp_path: Path) -> None:
    with PackedWriter(tmp_path / "tiny", tiny.image_shape, "tiny") as writer:
        writer.append(tiny.images, tiny.labels)
        packed = writer.finish(tiny.class_names, tiny.splits)
    sampler = EpisodeSampler.of_split(packed, "train", EpisodeSpec(4, (1, 3), 2), 0)
    tasks = ImageTasks(packed, sampler, RANDOM)
    code = (
        "import pickle, sys, numpy as np; batch = pickle.load(sys.stdin.buffer).load(range(3))\n"
        "np.save(sys.stdout.buffer, np.concatenate([batch.support.numpy(), batch.query.numpy()], axis=1))"
    )
    answer = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(tasks), capture_output=True, check=True)
    here = tasks.load(range(3))
    (tmp_path / "answer.npy").write_bytes(answer.stdout)
    there = np.load(tmp_path / "answer.npy")
    np.testing.assert_array_equal(there, torch.cat([here.support, here.query], dim=1).numpy())


def test_turned_classes_are_loaded_turned(tiny: PackedImages) -> None:
    view = RotatedClasses(tiny)
    quarter = len(tiny)
    episode = EpisodeIndex((0, 12), (3, 3 + quarter), (0, 1), (3 + 2 * quarter, 3 + 3 * quarter), (0, 1))
    batch = load_tasks(view, [episode], PLAIN)
    upright = NORMALISATIONS["none"](torch.from_numpy(tiny.gather(np.array([3]))).permute(0, 3, 1, 2))[0]
    for values, turn in (
        (batch.support[0, 0], 0),
        (batch.support[0, 1], 1),
        (batch.query[0, 0], 2),
        (batch.query[0, 1], 3),
    ):
        assert torch.equal(values, upright.rot90(turn, (1, 2)))


def test_what_cannot_be_stacked_is_refused(tiny: PackedImages) -> None:
    two, three = (EpisodeSampler.of_split(tiny, "train", EpisodeSpec(ways, 1, 6 // ways), 0)[0] for ways in (2, 3))
    more = EpisodeSampler.of_split(tiny, "train", EpisodeSpec(2, 1, 4), 0)[0]
    with pytest.raises(DataError, match=r"same number of ways; found \[2, 3\]"):
        load_tasks(tiny, [two, three], PLAIN)
    with pytest.raises(DataError, match=r"same number of queries; found \[6, 8\]"):
        load_tasks(tiny, [two, more], PLAIN)
    with pytest.raises(DataError, match="at least one episode"):
        load_tasks(tiny, [], PLAIN)
    for numbers in (None, [1, 2]):
        with pytest.raises(SettingsError, match="is random; give it the number of each episode"):
            load_tasks(tiny, [two], RANDOM, numbers=numbers)
