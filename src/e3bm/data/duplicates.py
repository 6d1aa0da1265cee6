"""Exact duplicates: images with the same pixels, inside a split and across splits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8


@dataclass(frozen=True)
class Duplicates:
    """Groups of places at which the same image lies."""

    groups: tuple[tuple[int, ...], ...]
    across_splits: tuple[tuple[int, ...], ...]
    """Those whose members are not all in one split."""


def find_duplicates(
    places: Int64[np.ndarray, " n"], digests: UInt8[np.ndarray, "n bytes"], splits: Sequence[str]
) -> Duplicates:
    """Groups of two or more places with the same digest; ``splits`` gives the split of every place."""
    keys = np.ascontiguousarray(digests).view(f"V{digests.shape[1]}").reshape(-1)
    order = np.argsort(keys, kind="stable")
    ends = np.flatnonzero(keys[order][1:] != keys[order][:-1]) + 1
    runs = [run for run in np.split(order, ends) if len(run) > 1] if len(order) else []
    groups = sorted(tuple(sorted(places[run].tolist())) for run in runs)
    across = tuple(group for group in groups if len({splits[place] for place in group}) > 1)
    return Duplicates(tuple(groups), across)
