"""What is said of one photo."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from e3bm.errors import DataError
from e3bm.fewshot.classifier import FittedClassifier, Predictions
from e3bm.fewshot.prior.file import FewShotPrior
from e3bm.fewshot.support_set import Shots, SupportSet, feature_table


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


# What a fit of photos leaves.


@dataclass(frozen=True)
class SuspiciousPhoto:
    """A labelled photo that the others contradict."""

    name: str
    label: str
    looks_like: str
    odds: float
    """How many times likelier the other class is."""


@dataclass(frozen=True, eq=False)
class FittedPhotos:
    """All that a fit leaves: replaced as a whole, so that a prediction on another thread sees one fit or the other."""

    classes: tuple[str, ...]
    classifier: FittedClassifier
    support: SupportSet | None
    """None where the features were dropped."""
    prior_digest: str
    own_prior: bool
    """Whether the prior is not the one that came with the package."""
    notes: tuple[str, ...] = ()

    def suspicions(self) -> tuple[SuspiciousPhoto, ...]:
        """Doubtful labels by name, the most doubtful first."""
        found = []
        for one in self.classifier.suspicions:
            label = self.classes[one.label]
            first = sum(self.classifier.counts[: one.label])
            name = f"{label} #{one.position - first + 1}" if self.support is None else self.support.names[one.position]
            found.append(SuspiciousPhoto(name, label, self.classes[one.looks_like], one.odds))
        return tuple(found)

    def kept_support(self, purpose: str) -> SupportSet:
        """The labelled features, or why there are none."""
        if self.support is None:
            raise DataError(
                "This model was saved without the features of its labelled photos, "
                f"so it cannot {purpose}; fit it again from the photos."
            )
        return self.support

    def changeable(self, name: str, prior: FewShotPrior, *, known: bool) -> Mapping[str, Shots]:
        """The examples by class, where a class of that name may be changed (if it is known) or added."""
        support = self.kept_support("change its classes")
        if self.own_prior and prior.digest != self.prior_digest:
            raise DataError(
                "This model was made with a prior of its own; to change its classes load it with that: "
                "FewShotClassifier.load(path, prior=FILE)."
            )
        if known and name not in support.shots:
            raise DataError(f"There is no class '{name}'; there are {', '.join(support.classes)}.")
        if not known and name in support.shots:
            raise DataError(f"There is a class '{name}' already; add_shots adds photos to it.")
        return support.shots


def predictions(
    fitted: FittedPhotos, features: Float[np.ndarray, "N D"], coverage: float | None = None
) -> list[Prediction]:
    """What a fit says of features; ``coverage`` asks for prediction sets too."""
    rows = feature_table(features, fitted.classifier.head.feature_size)
    found = []
    # Row by row: in a product of matrices the last bits of a row depend on how many rows there are.
    for row in rows[:, None]:
        sets = None if coverage is None else fitted.classifier.sets(row, coverage)
        found += prediction_list(fitted.classes, fitted.classifier.predict(row), sets)
    return found


def predictions_together(
    fitted: FittedPhotos, features: Float[np.ndarray, "N D"], prior: FewShotPrior
) -> list[Prediction]:
    """What a fit says of features that are used together."""
    rows = feature_table(features, fitted.classifier.head.feature_size)
    return prediction_list(fitted.classes, fitted.classifier.predict_together(rows, prior))
