"""What makes a number honest, checked: nothing that fails here is ever reported."""

from collections.abc import Mapping, Sequence

from e3bm.core.episode import EpisodeIndex
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.store.image_set import ImageSet
from e3bm.errors import DataError, SettingsError, some_of

BLOCK = 256


def check_episode(episode: EpisodeIndex, number: int) -> None:
    """No image is both labelled and asked for."""
    shared = set(episode.support) & set(episode.query)
    if shared:
        raise DataError(f"Episode {number} has image {min(shared)} in its support and in its queries.")
    if len(set(episode.classes)) != len(episode.classes):
        raise DataError(f"Episode {number} has the same class twice: {episode.classes}.")


def check_episodes(sampler: EpisodeSampler, count: int) -> None:
    """All episodes of a list are in order."""
    for start in range(0, count, BLOCK):
        for number, episode in enumerate(sampler.batch(range(start, min(start + BLOCK, count))), start):
            check_episode(episode, number)


def check_splits(splits: Mapping[str, Sequence[int]]) -> None:
    """No class is in two splits."""
    owner: dict[int, str] = {}
    for split, classes in splits.items():
        for number in classes:
            if owner.setdefault(number, split) != split:
                raise DataError(
                    f"Class {number} is in the splits {owner[number]} and {split}; splits must not overlap."
                )


def seen_classes(trained: ImageSet, tested: ImageSet, split: str, allowed: bool) -> int:
    """How many classes of another data set's split were trained on, by name; refused unless that is allowed."""
    known = {trained.class_names[number] for number in trained.splits["train"]}
    seen = [name for number in tested.splits.get(split, ()) if (name := tested.class_names[number]) in known]
    if seen and not allowed:
        raise DataError(
            f"{len(seen)} classes of the {split} split of '{tested.name}' were trained on in '{trained.name}' "
            f"({some_of(seen)}); a test needs classes that are new. "
            "If only the names are the same, use --allow-seen."
        )
    return len(seen)


def check_selection(split: str) -> None:
    """Models and settings are chosen on validation classes, never on the test classes."""
    if split == "test":
        raise SettingsError("Selecting on the test classes is refused; set validation.split to val.")
