"""Which positions of a data set belong to which class: all that is needed to draw its episodes again."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from e3bm.core.episode import EpisodeSpec
from e3bm.data.episodes.sampler import EpisodeSampler, episodes_hash
from e3bm.data.store.image_set import ImageSet
from e3bm.errors import DataError


class EpisodeList(Protocol):
    """What of a result says which episodes it is about."""

    @property
    def ways(self) -> int: ...
    @property
    def shots(self) -> int | tuple[int, int]: ...
    @property
    def queries(self) -> int: ...
    @property
    def query_shares(self) -> int | None: ...
    @property
    def split(self) -> str: ...
    @property
    def episodes(self) -> int: ...
    @property
    def episodes_seed(self) -> int: ...


@dataclass(frozen=True)
class ClassIndex:
    """A data set's splits, and its labels as runs of equal ones: enough to draw its episodes without its images."""

    name: str
    digest: str
    """Of pixels and labels, as the data set itself states it."""
    splits: dict[str, tuple[int, ...]]
    label_runs: tuple[tuple[int, int], ...]
    """(class, how many images of it follow one another), in the order of positions."""

    @classmethod
    def of(cls, images: ImageSet) -> "ClassIndex":
        """The index of an opened data set."""
        classes = [number for members in images.splits.values() for number in members]
        labels = np.full(len(images), -1, np.int64)
        for number in classes:
            labels[images.indices_of(number)] = number
        runs = tuple((int(label), len(list(run))) for label, run in groupby(labels.tolist()))
        splits = {split: tuple(int(number) for number in members) for split, members in images.splits.items()}
        return cls(images.name, images.digest, splits, runs)

    def as_json(self) -> dict[str, Any]:
        splits = {split: _ranges(members) for split, members in self.splits.items()}
        runs = " ".join(f"{label}x{count}" for label, count in self.label_runs)
        return {"name": self.name, "digest": self.digest, "splits": splits, "labels": runs}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ClassIndex":
        try:
            splits = {split: _numbers(words) for split, words in values["splits"].items()}
            pairs = (pair.split("x") for pair in values["labels"].split())
            runs = tuple((int(label), int(count)) for label, count in pairs)
            return cls(values["name"], values["digest"], splits, runs)
        except (AttributeError, KeyError, ValueError, TypeError) as error:
            raise DataError(f"This is not a class index of a data set: {error!r}.") from None

    def sampler(self, split: str, spec: EpisodeSpec, seed: int, stream: str) -> EpisodeSampler:
        """The same episodes as from the data set itself."""
        labels = np.repeat([label for label, _ in self.label_runs], [count for _, count in self.label_runs])
        positions = {number: np.flatnonzero(labels == number) for number in self.splits[split]}
        return EpisodeSampler(positions, spec, seed, stream=f"{stream}/{split}")

    def hash_of(self, result: EpisodeList) -> str:
        """The hash of the episodes that a result states, drawn anew."""
        spec = EpisodeSpec(result.ways, result.shots, result.queries, result.query_shares)
        return episodes_hash(self.sampler(result.split, spec, result.episodes_seed, "test"), result.episodes)


def _ranges(numbers: tuple[int, ...]) -> str:
    """Numbers as text such as ``0-59 62``: consecutive ones are joined, the order is kept."""
    words: list[list[int]] = []
    for number in numbers:
        if words and number == words[-1][1] + 1:
            words[-1][1] = number
        else:
            words.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in words)


def _numbers(words: str) -> tuple[int, ...]:
    found: list[int] = []
    for word in words.split():
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
