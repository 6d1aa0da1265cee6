"""Random support sets with their queries: a pure function of table, ways, shots and number."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from classifier_measure.tables import Table

SEED = 20_26


@dataclass(frozen=True, eq=False)
class Episode:
    """Rows of a table; labels are 0..W-1. ``others`` are examples of classes that are not among them."""

    support: np.ndarray
    support_labels: np.ndarray
    query: np.ndarray
    query_labels: np.ndarray
    others: np.ndarray

    def with_wrong_label(self, number: int) -> tuple["Episode", int]:
        """The same with one support label changed to another class, and the place of that label."""
        random = np.random.default_rng([7, number])
        labels, ways = self.support_labels.copy(), int(self.support_labels.max()) + 1
        place = int(random.integers(len(labels)))
        labels[place] = (labels[place] + random.integers(1, ways)) % ways
        return replace(self, support_labels=labels), place


def episodes(table: Table, ways: int, shots: int, count: int) -> Iterator[Episode]:
    """Episodes 0..count-1; of every class ``queries`` examples are asked about, or what is left of it."""
    names = np.unique(table.labels)
    for number in range(count):
        random = np.random.default_rng([SEED, shots, ways, number])
        order = random.permutation(names)
        drawn = [random.permutation(np.flatnonzero(table.labels == name))[: shots + table.queries] for name in order]
        known, unknown = drawn[:ways], drawn[ways : 2 * ways]
        yield Episode(
            np.concatenate([rows[:shots] for rows in known]),
            np.repeat(np.arange(ways), shots),
            np.concatenate([rows[shots:] for rows in known]),
            np.repeat(np.arange(ways), [len(rows) - shots for rows in known]),
            np.concatenate([rows[shots:] for rows in unknown]) if unknown else np.empty(0, np.int64),
        )


def hash_of(table: Table, ways: int, shots: int, count: int) -> str:
    """A name for exactly these episodes."""
    digest = hashlib.sha256()
    for episode in episodes(table, ways, shots, count):
        for rows in (episode.support, episode.query):
            digest.update(rows.astype("<i8").tobytes())
    return digest.hexdigest()[:16]
