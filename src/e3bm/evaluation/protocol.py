"""What makes a number honest, checked: nothing that fails here is ever reported."""

from collections.abc import Mapping, Sequence
from typing import Any

from e3bm.episode import EpisodeIndex
from e3bm.errors import DataError, SettingsError

LABELS = ("setting", "batchnorm", "order", "episodes", "episodes_hash", "queries", "seed", "commit")


def check_episode(episode: EpisodeIndex, number: int) -> None:
    """No image is both labelled and asked for."""
    shared = set(episode.support) & set(episode.query)
    if shared:
        raise DataError(f"Episode {number} has image {min(shared)} in its support and in its queries.")
    if len(set(episode.classes)) != len(episode.classes):
        raise DataError(f"Episode {number} has the same class twice: {episode.classes}.")


def check_splits(splits: Mapping[str, Sequence[int]]) -> None:
    """No class is in two splits."""
    owner: dict[int, str] = {}
    for split, classes in splits.items():
        for number in classes:
            if owner.setdefault(number, split) != split:
                raise DataError(
                    f"Class {number} is in the splits {owner[number]} and {split}; splits must not overlap."
                )


def check_selection(split: str) -> None:
    """Models and settings are chosen on validation classes, never on the test classes."""
    if split == "test":
        raise SettingsError("Selecting on the test classes is refused; use the val split.")


def check_row(row: Mapping[str, Any]) -> None:
    """A result without its labels is not a result."""
    missing = [label for label in LABELS if row.get(label) in (None, "")]
    if missing:
        raise SettingsError(f"The result of {row.get('method', 'a run')} lacks {', '.join(missing)}.")
    if row["setting"] not in ("inductive", "transductive"):
        raise SettingsError(f"A result is inductive or transductive; found '{row['setting']}'.")
