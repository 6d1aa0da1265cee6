"""Turns drawn episodes into batches of tensors, in a background thread where that saves time."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from e3bm.core.episode import EpisodeIndex, TaskBatch
from e3bm.data.episodes.randomness import uniform_numbers
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.store.image_set import ImageSet
from e3bm.errors import DataError, SettingsError

Item = TypeVar("Item")

STOP_CHECK_SECONDS = 0.1


@dataclass(frozen=True)
class ImageTasks:
    """Tasks of images by their numbers: which images they hold and how these are augmented depends on nothing else."""

    images: ImageSet
    sampler: EpisodeSampler
    pipeline: Pipeline
    seed: int = 0
    dtype: torch.dtype = torch.float32
    prefetch: ClassVar[int] = 2
    """How many batches are worth making ahead."""

    def load(self, numbers: Sequence[int]) -> TaskBatch:
        """The tasks with these numbers, as one batch."""
        episodes = self.sampler.batch(numbers)
        return load_tasks(
            self.images,
            episodes,
            self.pipeline,
            seed=self.seed,
            numbers=numbers,
            split_classes=self.sampler.split_classes(episodes),
            dtype=self.dtype,
        )


def load_tasks(
    images: ImageSet,
    episodes: Sequence[EpisodeIndex],
    pipeline: Pipeline,
    *,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    split_classes: Int64[Tensor, "T W"] | None = None,
    dtype: torch.dtype = torch.float32,
) -> TaskBatch:
    """Stack episodes to a batch; where shots are uneven, support is padded with zeros and masked.

    A random pipeline needs the episodes' ``numbers``: what happens to an episode's images depends on (seed, number).
    ``split_classes`` (from ``EpisodeSampler.split_classes``) are handed on as the class numbers of the examples.
    """
    _check_alike(episodes)
    counts = [len(episode.support) for episode in episodes]
    support, query = (np.concatenate([getattr(e, part) for e in episodes]) for part in ("support", "query"))
    if pipeline.draws and (numbers is None or len(numbers) != len(episodes)):
        raise SettingsError(f"The pipeline '{pipeline}' is random; give it the number of each episode.")
    positions = np.concatenate([support, query]).astype(np.int64)
    pixels = torch.from_numpy(images.gather(positions)).permute(0, 3, 1, 2)
    draws = _draws(episodes, pipeline, seed, numbers) if pipeline.draws and numbers is not None else None
    values = pipeline(pixels, draws, dtype)
    tasks, shape = len(episodes), values.shape[1:]
    support_values, query_values = values[: len(support)], values[len(support) :]
    labels = torch.tensor(np.concatenate([episode.support_labels for episode in episodes]))
    mask = None
    if min(counts) == max(counts):
        support_values, labels = support_values.view(tasks, -1, *shape), labels.view(tasks, -1)
    else:
        mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        support_values, labels = _padded(support_values, mask), _padded(labels, mask)
    query_labels = torch.tensor([episode.query_labels for episode in episodes])
    query_values = query_values.view(tasks, -1, *shape)
    support_classes, query_classes = (
        None if split_classes is None else split_classes.gather(1, own) for own in (labels, query_labels)
    )
    return TaskBatch(
        support_values, labels, query_values, query_labels, episodes[0].ways, mask, support_classes, query_classes
    )


def _check_alike(episodes: Sequence[EpisodeIndex]) -> None:
    if not episodes:
        raise DataError("A batch needs at least one episode, found none.")
    for name, sizes in (
        ("ways", {episode.ways for episode in episodes}),
        ("queries", {len(episode.query) for episode in episodes}),
    ):
        if len(sizes) > 1:
            raise DataError(f"Episodes of one batch must have the same number of {name}; found {sorted(sizes)}.")


def _draws(
    episodes: Sequence[EpisodeIndex], pipeline: Pipeline, seed: int, numbers: Sequence[int]
) -> Float64[Tensor, "N draws"]:
    """Random numbers for all support images, then all query images; those of an episode lie at its own address."""
    widest = max(len(episode.support) + len(episode.query) for episode in episodes)
    rows = [
        torch.from_numpy(uniform_numbers(seed, f"augment/episode/{number}", range(widest), pipeline.draws))
        for number in numbers
    ]
    cuts = [(len(episode.support), len(episode.query)) for episode in episodes]
    support = [row[:shots] for row, (shots, _) in zip(rows, cuts, strict=True)]
    query = [row[shots : shots + queries] for row, (shots, queries) in zip(rows, cuts, strict=True)]
    return torch.cat([*support, *query])


def _padded(values: Tensor, mask: Tensor) -> Tensor:
    """Spread the values of all tasks over the True places of the mask; the rest is zero."""
    spread = values.new_zeros((*mask.shape, *values.shape[1:]))
    spread[mask] = values
    return spread


def prefetched(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """The same items in the same order, up to ``depth`` of them made ahead in a background thread.

    With depth 0 each is made when it is asked for. An error in making an item is raised here, after the items before
    it. Leaving the loop early stops the thread.
    """
    if depth < 1:
        yield from items
        return
    ready: Queue[tuple[bool, Item | BaseException | None]] = Queue(maxsize=depth)
    stopped = threading.Event()

    def put(entry: tuple[bool, Item | BaseException | None]) -> None:
        while not stopped.is_set():
            try:
                return ready.put(entry, timeout=STOP_CHECK_SECONDS)
            except Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put((True, item))
                if stopped.is_set():
                    return
            put((False, None))
        except BaseException as error:
            put((False, error))

    worker = threading.Thread(target=work, name="prefetch", daemon=True)
    worker.start()
    try:
        while True:
            more, entry = ready.get()
            if more:
                yield entry  # type: ignore[misc]
            elif isinstance(entry, BaseException):
                raise entry
            else:
                return
    finally:
        stopped.set()
        try:  # make room, so that a waiting worker sees the event at once
            while True:
                ready.get_nowait()
        except Empty:
            worker.join()
