"""What is said of one photo."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from e3bm.fewshot.classifier import Predictions


@dataclass(frozen=True)
class Prediction:
    """The best class, how sure that is, and whether none of the classes fits."""

    label: str
    """The most probable class, always one of the model's."""
    probabilities: dict[str, float]
    """Of every class, calibrated; they sum to 1."""
    disagreement: float
    """How far the epochs of the ensemble are from saying the same, from 0 to 1."""
    unknown: bool
    """Whether the photo looks like none of the classes."""
    prediction_set: tuple[str, ...] | None = None
    """The classes that hold the right one at the asked coverage, the most probable first; None if not asked for."""

    @property
    def confidence(self) -> float:
        """The probability of the best class."""
        return self.probabilities[self.label]

    def as_json(self) -> dict[str, Any]:
        """Plain values; the set only where there is one."""
        found: dict[str, Any] = {
            "label": self.label,
            "probabilities": dict(self.probabilities),
            "unknown": self.unknown,
            "disagreement": self.disagreement,
        }
        return found if self.prediction_set is None else {**found, "prediction_set": list(self.prediction_set)}


def prediction_list(
    classes: tuple[str, ...], found: Predictions, sets: Bool[np.ndarray, "N W"] | None = None
) -> list[Prediction]:
    """A record for every row."""
    predictions = []
    for row in range(len(found.labels)):
        shares = found.probabilities[row]
        inside = None
        if sets is not None:
            inside = tuple(classes[number] for number in np.argsort(-shares, kind="stable") if sets[row, number])
        predictions.append(
            Prediction(
                label=classes[int(found.labels[row])],
                probabilities={name: float(share) for name, share in zip(classes, shares, strict=True)},
                disagreement=float(found.disagreement[row]),
                unknown=bool(found.unknown[row]),
                prediction_set=inside,
            )
        )
    return predictions
