"""Which class belongs to which split: the standard lists, or a division by seed."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from e3bm.data.packed_format import SPLIT_NAMES
from e3bm.errors import DataError, SettingsError

DEFAULT_FRACTIONS = (0.64, 0.16, 0.20)
FEWEST_CLASSES_IN_A_SPLIT = 2


@cache
def class_list(name: str) -> Mapping[str, Any]:
    """A standard class list of the package: for each split its class names, some of them grouped."""
    return dict(json.loads(files("e3bm.data").joinpath("class_splits", f"{name}.json").read_text("utf-8")))


def split_of_each(classes_of: Mapping[str, str | Mapping[str, str]]) -> dict[str, str]:
    """Class to split, from split to class names written with spaces between, or to groups of them."""
    found: dict[str, str] = {}
    for split, names in classes_of.items():
        groups = [names] if isinstance(names, str) else list(names.values())
        found.update({name: split for group in groups for name in group.split()})
    return found


def divide_by_seed(
    class_names: Sequence[str], seed: int, fractions: Sequence[float] = DEFAULT_FRACTIONS
) -> dict[str, str]:
    """Every class in train, val or test, by chance and the same for the same names and seed."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise SettingsError(f"The fractions for train, val and test must add up to 1, found {fractions}.")
    wanted = [fraction > 0 for fraction in fractions]
    fewest = FEWEST_CLASSES_IN_A_SPLIT * sum(wanted)
    if len(class_names) < fewest:
        raise DataError(
            f"{len(class_names)} classes cannot be divided into {sum(wanted)} splits of at least "
            f"{FEWEST_CLASSES_IN_A_SPLIT}; expected {fewest} or more, or folders named train, val and test."
        )
    sizes = [max(round(f * len(class_names)), FEWEST_CLASSES_IN_A_SPLIT) if f else 0 for f in fractions]
    # Rounding is settled with the largest part.
    sizes[sizes.index(max(sizes))] += len(class_names) - sum(sizes)
    order = np.random.default_rng(seed).permutation(len(class_names))
    names = [sorted(class_names)[place] for place in order]
    ends = np.cumsum(sizes)
    return {name: SPLIT_NAMES[int(np.searchsorted(ends, place, side="right"))] for place, name in enumerate(names)}
