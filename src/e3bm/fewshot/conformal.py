"""Prediction sets: as many classes as it takes to hold the right one in a wanted share of cases."""

import math

import numpy as np
from jaxtyping import Bool, Float

from e3bm.errors import SettingsError


def set_threshold(misfits: Float[np.ndarray, " N"], coverage: float) -> float:
    """The largest misfit (1 - probability) a class may have; without enough left-out examples every class may.

    With n exchangeable examples the rank ceil((n + 1) coverage) keeps the promise. Left-out examples are predicted by
    fits that miss them, which should make the sets a little larger than needed.
    """
    if not 0 < coverage < 1:
        raise SettingsError(f"The coverage of prediction sets lies between 0 and 1, found {coverage}.")
    rank = math.ceil((len(misfits) + 1) * coverage)
    return float(np.sort(misfits)[rank - 1]) if 1 <= rank <= len(misfits) else 1.0


def prediction_sets(
    probabilities: Float[np.ndarray, "N W"], misfits: Float[np.ndarray, " L"], coverage: float
) -> Bool[np.ndarray, "N W"]:
    """Which classes are in the set of each example; the most probable one always is."""
    inside = 1 - probabilities <= set_threshold(misfits, coverage)
    inside[np.arange(len(inside)), probabilities.argmax(1)] = True
    return inside
