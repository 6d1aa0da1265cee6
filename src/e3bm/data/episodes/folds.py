"""Training classes in parts: a backbone that has not seen a part gives its images features as new classes have them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64, UInt8

from e3bm.core.episode import EpisodeIndex, EpisodeSpec
from e3bm.data.episodes.randomness import integers_below, random_words
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.source import registered_name, registered_sources
from e3bm.data.store.image_set import ImageSet
from e3bm.errors import SettingsError


def class_folds(images: ImageSet, count: int) -> tuple[tuple[int, ...], ...]:
    """The training classes in ``count`` parts of about one size; families (FC100: super-classes) stay together."""
    classes = images.splits["train"]
    family_of = _families(images)
    families: dict[str, list[int]] = {}
    for number in classes:
        name = images.class_names[number]
        families.setdefault(family_of.get(name, name), []).append(number)
    if not 2 <= count <= len(families):
        raise SettingsError(
            f"The training classes of '{images.name}' can be divided into 2 to {len(families)} parts, found {count}."
        )
    parts: list[list[int]] = [[] for _ in range(count)]
    for _, members in sorted(families.items(), key=lambda family: (-len(family[1]), family[0])):
        min(parts, key=len).extend(members)
    return tuple(tuple(sorted(part, key=classes.index)) for part in parts)


def _families(images: ImageSet) -> Mapping[str, str]:
    """Which family each class name belongs to, as far as the data set is known to have any."""
    sources, name = registered_sources(), registered_name(images.name.partition("+")[0])
    return sources[name]().known_classes().family_of if name in sources else {}


@dataclass(frozen=True, eq=False)
class SomeTrainingClasses:
    """A data set of whose training classes only some are used; everything else is as in the whole."""

    base: ImageSet
    training: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.base.class_names

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.base.image_shape

    @property
    def digest(self) -> str:
        return self.base.digest

    @cached_property
    def splits(self) -> dict[str, tuple[int, ...]]:
        return {**self.base.splits, "train": self.training}

    def __len__(self) -> int:
        return len(self.base)

    def indices_of(self, class_number: int) -> Int64[np.ndarray, " n"]:
        """The positions of all images of one class."""
        return self.base.indices_of(class_number)

    def gather(self, positions: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W C"]:
        """The images at these positions."""
        return self.base.gather(positions)


class FoldSampler(EpisodeSampler):
    """Training episodes whose classes all come from one part; a part is drawn in proportion to its classes."""

    def __init__(self, images: ImageSet, folds: Sequence[Sequence[int]], spec: EpisodeSpec, seed: int, stream: str):
        positions = [{number: images.indices_of(number) for number in fold} for fold in folds]
        names = images.class_names
        self.folds = [
            EpisodeSampler(part, spec, seed, class_names=names, stream=f"{stream}/fold {place}")
            for place, part in enumerate(positions, 1)
        ]
        members = {number: place for part in positions for number, place in part.items()}
        in_order = {number: members[number] for number in images.splits["train"] if number in members}
        super().__init__(in_order, spec, seed, class_names=names, stream=stream)
        self._last_of_fold = np.cumsum([len(fold) for fold in folds])

    def batch(self, numbers: Sequence[int]) -> list[EpisodeIndex]:
        """The episodes with these numbers; those of one part are drawn together."""
        words = random_words(self.seed, f"{self.stream}/which fold", numbers, 1)[:, 0]
        chosen = np.searchsorted(self._last_of_fold, integers_below(words, int(self._last_of_fold[-1])), side="right")
        found: dict[int, EpisodeIndex] = {}
        for place, fold in enumerate(self.folds):
            mine = [number for number, of in zip(numbers, chosen, strict=True) if of == place]
            found.update(zip(mine, fold.batch(mine), strict=True))
        return [found[number] for number in numbers]
