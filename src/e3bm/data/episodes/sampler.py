"""Episodes by number: ``sampler[i]`` is a pure function of (seed, i), whoever asks, in whatever order."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import compress

import numpy as np
import torch
from jaxtyping import Int64, UInt64
from torch import Tensor

from e3bm.core.episode import EpisodeIndex, EpisodeSpec
from e3bm.data.episodes.randomness import HALF, integers_below, random_words, shuffled
from e3bm.data.store.image_set import ImageSet
from e3bm.errors import DataError


class EpisodeSampler:
    """Draws episodes from the classes of one split.

    Classes, their order (hence the labels 0..W-1), images and the order of the queries are random; the support is
    listed way by way. Every class offers its largest number of shots plus its queries, so support and query never meet.
    Where classes share the queries unevenly, an episode has the support of the even one with its number, and as many
    of its queries as the shares leave.
    """

    def __init__(
        self,
        positions: Mapping[int, Sequence[int] | np.ndarray],
        spec: EpisodeSpec,
        seed: int,
        *,
        class_names: Sequence[str] | None = None,
        stream: str = "episodes",
    ) -> None:
        """``positions`` gives for every class number of the split the positions of its images in the data set."""
        self.spec, self.seed, self.stream = spec, seed, stream
        self.classes = tuple(positions)
        self._place_of = {number: place for place, number in enumerate(self.classes)}
        self._per_class = spec.shot_range[1] + spec.queries
        if spec.ways > len(self.classes):
            raise DataError(
                f"Episodes of {spec.ways} ways need {spec.ways} classes, found {len(self.classes)}; "
                "ask for fewer ways or add classes."
            )
        for number, members in positions.items():
            needed = spec.shot_range[1] + spec.most_queries
            if len(members) < needed:
                label = number if class_names is None else f"'{class_names[number]}'"
                uneven = "" if spec.query_shares is None else " that may all be of one class"
                raise DataError(
                    f"Class {label} has {len(members)} images, but {spec.shot_range[1]} shots and {spec.most_queries} "
                    f"queries{uneven} need {needed}; ask for fewer or add images."
                )
        lists = [np.asarray(members, dtype=np.int64) for members in positions.values()]
        self._class_numbers = np.array(self.classes, dtype=np.int64)
        self._counts = np.array([len(members) for members in lists], dtype=np.int64)
        self._starts = np.cumsum(self._counts) - self._counts
        self._positions = np.concatenate(lists)

    @classmethod
    def of_split(
        cls, images: ImageSet, split: str, spec: EpisodeSpec, seed: int, *, stream: str = "episodes"
    ) -> "EpisodeSampler":
        """Episodes from one split of a data set; other splits are never touched."""
        if split not in images.splits:
            raise DataError(f"There is no split '{split}'; the splits are {', '.join(images.splits)}.")
        if not images.splits[split]:
            raise DataError(f"The {split} split of '{images.name}' has no classes; choose another split or data set.")
        positions = {number: images.indices_of(number) for number in images.splits[split]}
        return cls(positions, spec, seed, class_names=images.class_names, stream=f"{stream}/{split}")

    def __getitem__(self, number: int) -> EpisodeIndex:
        return self.batch((number,))[0]

    def batch(self, numbers: Sequence[int]) -> list[EpisodeIndex]:
        """The episodes with these numbers: the same as one by one, and much faster."""
        spec, count = self.spec, len(numbers)
        ways, queries, (low, high) = spec.ways, spec.queries, spec.shot_range
        if count == 0:
            return []
        if min(numbers) < 0:
            raise DataError(f"Episodes are numbered from 0, found {min(numbers)}.")
        widths = [ways, ways, ways, ways * self._per_class, ways * self._per_class, ways * queries]
        words = random_words(self.seed, self.stream, numbers, sum(widths))
        parts = np.split(words, np.cumsum(widths)[:-1], axis=1)
        pick, order, shots_drawn, pick_images, order_images, order_queries = parts
        chosen = _without_replacement(pick, order, np.full(count, len(self.classes)))
        rows = chosen.astype(np.int64).reshape(-1)  # one row per way of every episode
        shots = low + integers_below(shots_drawn, high - low + 1).astype(np.int64)
        shape = (count * ways, self._per_class)
        local = _without_replacement(pick_images.reshape(shape), order_images.reshape(shape), self._counts[rows])
        if spec.query_shares is not None:
            local = np.concatenate([local, self._more_queries(numbers, local, self._counts[rows])], axis=1)
        images = self._positions[self._starts[rows][:, None] + local.astype(np.int64)].reshape(count, ways, -1)
        slots = np.broadcast_to(np.arange(ways * queries, dtype=np.uint64), order_queries.shape)
        query_slots = shuffled(slots, order_queries).astype(np.int64)
        asked = np.arange(images.shape[2] - high) < self._queries_of_each(numbers)[:, :, None]
        of_all = lambda values: np.take_along_axis(values[asked].reshape(count, -1), query_slots, axis=1)
        query = of_all(images[:, :, high:])
        query_labels = of_all(np.broadcast_to(np.arange(ways)[:, None], asked.shape))
        classes = self._class_numbers[rows].reshape(count, ways)
        support = images[:, :, :high].reshape(count, -1)
        labels = tuple(np.repeat(np.arange(ways), high).tolist())
        columns = [classes.tolist(), support.tolist(), [labels] * count, query.tolist(), query_labels.tolist()]
        if low < high:
            real = (np.arange(high) < shots[:, :, None]).reshape(count, -1).tolist()
            columns[1:3] = [list(map(tuple, map(compress, column, real))) for column in columns[1:3]]
        return [EpisodeIndex(*map(tuple, record)) for record in zip(*columns, strict=True)]

    def _queries_of_each(self, numbers: Sequence[int]) -> Int64[np.ndarray, "R W"]:
        """How many queries each class of each episode has."""
        spec = self.spec
        if spec.query_shares is None:
            return np.full((len(numbers), spec.ways), spec.queries)
        # The gaps between uniform numbers in order are Dirichlet(1), and a gaps together are Dirichlet(a). In whole
        # numbers, so that every machine rounds alike.
        places = spec.ways * spec.query_shares - 1
        words = np.sort(random_words(self.seed, f"{self.stream}/query shares", numbers, places), axis=1)
        ends = words[:, spec.query_shares - 1 :: spec.query_shares] >> HALF
        total = np.uint64(spec.ways * spec.queries)
        rounded = (ends * total + (np.uint64(1) << HALF - np.uint64(1))) >> HALF
        return np.diff(rounded.astype(np.int64), prepend=0, append=int(total), axis=1)

    def _more_queries(
        self, numbers: Sequence[int], taken: UInt64[np.ndarray, "R m"], counts: np.ndarray
    ) -> UInt64[np.ndarray, "R n"]:
        """Further images of every class, none of them taken, up to all queries of an episode."""
        more = self.spec.most_queries - self.spec.queries
        words = random_words(self.seed, f"{self.stream}/more queries", numbers, 2 * self.spec.ways * more)
        pick, order = (part.reshape(-1, more) for part in np.split(words, 2, axis=1))
        rest = _without_replacement(pick, order, counts - taken.shape[1])
        # The r-th image of those that are left lies behind every taken one that has at most r free ones before it.
        free_before = np.sort(taken, axis=1) - np.arange(taken.shape[1], dtype=np.uint64)
        passed = (free_before[:, None, :] <= rest[:, :, None]).sum(2, dtype=np.uint64)
        further: UInt64[np.ndarray, "R n"] = rest + passed
        return further

    def split_classes(self, episodes: Sequence[EpisodeIndex]) -> Int64[Tensor, "T W"]:
        """For every way of every episode, the place of its class among all classes of the split, 0..C-1."""
        return torch.tensor([[self._place_of[number] for number in episode.classes] for episode in episodes])


def episodes_hash(sampler: EpisodeSampler, count: int, block: int = 256) -> str:
    """The sha256 of the first ``count`` episodes as integers: equal hashes mean equal tests, on any machine."""
    digest = hashlib.sha256()
    for start in range(0, count, block):
        for episode in sampler.batch(range(start, min(start + block, count))):
            for numbers in (
                episode.classes,
                episode.support,
                episode.support_labels,
                episode.query,
                episode.query_labels,
            ):
                digest.update(np.array([len(numbers), *numbers], dtype="<i8").tobytes())
    return digest.hexdigest()


def _without_replacement(
    pick: UInt64[np.ndarray, "R m"], order: UInt64[np.ndarray, "R m"], counts: np.ndarray
) -> UInt64[np.ndarray, "R m"]:
    """For every row an ordered sample of m of the numbers 0..count-1, all equally likely."""
    size = pick.shape[1]
    # Floyd's algorithm: the k-th draw is from 0..top, and top itself steps in where the draw was taken before;
    # this needs m draws whatever the count. Its set is uniform, its order is not: hence the shuffle.
    top = (counts - size + np.arange(size)[:, None]).astype(np.uint32)
    drawn = integers_below(pick.T, top + np.uint64(1)).astype(np.uint32)
    for k in range(1, size):
        taken = np.logical_or.reduce(drawn[:k] == drawn[k])
        np.copyto(drawn[k], top[k], where=taken)
    return shuffled(drawn.T, order)
