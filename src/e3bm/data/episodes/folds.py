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
    classes, families = images.splits["train"], class_families(images)
    if not 2 <= count <= len(families):
        raise SettingsError(
            f"The training classes of '{images.name}' can be divided into 2 to {len(families)} parts, found {count}."
        )
    parts: list[list[int]] = [[] for _ in range(count)]
    for _, members in sorted(families.items(), key=lambda family: (-len(family[1]), family[0])):
        min(parts, key=len).extend(members)
    return tuple(tuple(sorted(part, key=classes.index)) for part in parts)


def class_families(images: ImageSet) -> dict[str, list[int]]:
    """The training classes of every family, as far as the data set is known to have any; others are alone."""
    sources, known = registered_sources(), registered_name(images.name.partition("+")[0])
    family_of: Mapping[str, str] = sources[known]().known_classes().family_of if known in sources else {}
    families: dict[str, list[int]] = {}
    for number in images.splits["train"]:
        name = images.class_names[number]
        families.setdefault(family_of.get(name, name), []).append(number)
    return families


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
    """Training episodes whose classes all come from one part; a part is drawn in proportion to its classes.

    A share of the episodes, ``related``, is of one family instead: the classes that are hardest to tell apart.
    """

    def __init__(
        self,
        images: ImageSet,
        folds: Sequence[Sequence[int]],
        spec: EpisodeSpec,
        seed: int,
        stream: str,
        *,
        related: float = 0.0,
    ) -> None:
        names = images.class_names

        def samplers(groups: Sequence[Sequence[int]], word: str) -> list[EpisodeSampler]:
            positions = [{number: images.indices_of(number) for number in group} for group in groups]
            return [
                EpisodeSampler(part, spec, seed, class_names=names, stream=f"{stream}/{word} {place}")
                for place, part in enumerate(positions, 1)
            ]

        members = {number for fold in folds for number in fold}
        in_order = {number: images.indices_of(number) for number in images.splits["train"] if number in members}
        super().__init__(in_order, spec, seed, class_names=names, stream=stream)
        families = [family for family in class_families(images).values() if members.issuperset(family)]
        families = [family for family in families if len(family) >= spec.ways] if related else []
        if related and not families:
            raise SettingsError(
                f"No family of training classes of '{images.name}' is known that has {spec.ways} classes for a task of "
                "related classes; set related to 0."
            )
        self.folds, self.families, self.related = samplers(folds, "fold"), samplers(families, "family"), related
        self._last_of_fold = np.cumsum([len(fold) for fold in folds])

    def batch(self, numbers: Sequence[int]) -> list[EpisodeIndex]:
        """The episodes with these numbers; those of one part are drawn together."""
        words = random_words(self.seed, f"{self.stream}/which fold", numbers, 1)[:, 0]
        chosen = np.searchsorted(self._last_of_fold, integers_below(words, int(self._last_of_fold[-1])), side="right")
        if self.related:
            words = random_words(self.seed, f"{self.stream}/which family", numbers, 2)
            family = len(self.folds) + integers_below(words[:, 0], len(self.families)).astype(np.int64)
            chosen = np.where(integers_below(words[:, 1], 1000) < round(1000 * self.related), family, chosen)
        found: dict[int, EpisodeIndex] = {}
        for place, group in enumerate([*self.folds, *self.families]):
            mine = [number for number, of in zip(numbers, chosen, strict=True) if of == place]
            found.update(zip(mine, group.batch(mine), strict=True))
        return [found[number] for number in numbers]
