"""Which unlabelled examples to label next, and why: the unsure and the strange first, and no two alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from e3bm.array_types import Float
from e3bm.errors import SettingsError
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.support_set import feature_table


@dataclass(frozen=True)
class Suggestion:
    """An unlabelled example that is worth a label."""

    number: int
    """Its place among the examples that were given, from 0."""
    name: str
    looks_like: str
    confidence: float
    gain: float
    """How much is expected of its label, from 0 to 1; it orders the suggestions."""
    reason: str


def check_count(count: int) -> None:
    """Refuse to suggest nothing."""
    if count < 1:
        raise SettingsError(f"The number of photos to suggest (--count) is 1 or more, found {count}.")


def suggest(
    fitted: FittedModel, features: Float[np.ndarray, "N D"], names: Sequence[str], places: Sequence[int], count: int
) -> list[Suggestion]:
    """The examples whose labels would help most, the best first; ``places`` are those of the features among ``names``.

    The gain of an example is how unsure its answer is (the entropy over its largest value), 1 where it looks like none
    of the classes, times how far it is from the nearest that was suggested before it: ten pictures of one thing teach
    what one of them does.
    """
    rows = feature_table(features, fitted.head.ensemble.feature_size)
    if not len(rows):
        return []
    found = fitted.head.predict(rows)
    worth = np.where(found.unknown, 1.0, _unsureness(found.probabilities))
    placed = fitted.head.ensemble.space(rows)
    placed = placed / np.maximum(np.linalg.norm(placed, axis=1, keepdims=True), 1e-12)
    newness, left = np.ones(len(rows)), np.ones(len(rows), dtype=bool)
    chosen: list[Suggestion] = []
    for _ in range(min(count, len(rows))):
        gains = np.where(left, worth * newness, -1.0)
        best = int(gains.argmax())
        left[best] = False
        order = np.argsort(-found.probabilities[best], kind="stable")
        likely = [(fitted.classes[place], float(found.probabilities[best, place])) for place in order[:2]]
        chosen.append(
            Suggestion(
                places[best],
                names[places[best]],
                likely[0][0],
                likely[0][1],
                float(gains[best]),
                _reason(bool(found.unknown[best]), likely, first=not chosen),
            )
        )
        # 0 for the same direction, 1 for a right angle or more.
        newness = np.minimum(newness, np.clip(1 - placed @ placed[best], 0, 1))
    return chosen


def _unsureness(probabilities: Float[np.ndarray, "N W"]) -> Float[np.ndarray, " N"]:
    safe = np.clip(probabilities, 1e-12, 1)
    found: np.ndarray = -(safe * np.log(safe)).sum(1) / np.log(probabilities.shape[1])
    return found


def _reason(unknown: bool, likely: Sequence[tuple[str, float]], *, first: bool) -> str:
    (best, most), (other, second) = likely
    if unknown:
        return (
            f"it looks like none of the classes ({best} is the nearest): it may be a new class, "
            "or a new view of a known one"
        )
    if second > 0.15:
        return f"it could be {best} ({100 * most:.0f} %) or {other} ({100 * second:.0f} %)"
    why = "no other is less certain" if first else "it is unlike those suggested before it"
    return f"it is probably {best} ({100 * most:.0f} %); {why}"
