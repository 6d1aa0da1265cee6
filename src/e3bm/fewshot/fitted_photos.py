"""What a fit of photos leaves."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from e3bm.errors import DataError
from e3bm.fewshot.classifier import FittedClassifier
from e3bm.fewshot.prediction import Prediction, prediction_list
from e3bm.fewshot.prior_file import FewShotPrior
from e3bm.fewshot.support_set import Shots, SupportSet, feature_table


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
