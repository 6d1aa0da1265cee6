"""Curves for the eye: exponential smoothing as in the paper's figures, and fewer points where there are many."""

from collections.abc import Sequence

FACTOR = 0.9
MOST_POINTS = 500


def smooth(values: Sequence[float], factor: float = FACTOR) -> list[float]:
    """Running average that forgets by ``factor``; divided by the weight seen so far, so it does not start at zero."""
    smoothed, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = factor * total + (1 - factor) * value, factor * weight + (1 - factor)
        smoothed.append(total / weight)
    return smoothed


def thin(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Evenly chosen points, the last among them."""
    every = -(-len(points) // most) if points else 1
    return list(points[::-1][::every][::-1])


def chosen_epochs(epochs: int) -> list[int]:
    """Epochs to show, counted from 1: the paper's 1, 25, 50, 75, 100 for M = 100, spread alike for other M."""
    if epochs <= 5:
        return list(range(1, epochs + 1))
    return sorted({1, *(round(epochs * quarter / 4) for quarter in (1, 2, 3, 4))})
