"""One state of the workspace: classes, the features of their photos, and the last fit.

Snapshots are immutable: a prediction takes the one it began with, whatever is changed meanwhile.
"""

from dataclasses import dataclass, replace

import numpy as np

from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.refusals import Refusal


@dataclass(frozen=True, eq=False)
class KeptPhoto:
    """All that is kept of a photo."""

    number: int
    features: np.ndarray


@dataclass(frozen=True, eq=False)
class KeptClass:
    """A class and its photos."""

    number: int
    name: str
    photos: tuple[KeptPhoto, ...] = ()


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted classifier and the photos it was fitted to, in the order of its support set."""

    classifier: FewShotClassifier
    photos: tuple[tuple[int, str], ...]
    """The number of every photo and its class."""
    version: int

    def numbers(self) -> dict[str, list[int]]:
        """The numbers of the photos by class."""
        found: dict[str, list[int]] = {}
        for number, name in self.photos:
            found.setdefault(name, []).append(number)
        return found


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One state of the workspace."""

    empty: FewShotClassifier
    """A classifier with the backbone that all features here come from."""
    classes: tuple[KeptClass, ...] = ()
    fit: Fit | None = None
    unchangeable: str | None = None
    """Why classes cannot be changed: a model may have been saved without the features of its photos."""
    version: int = 0
    """Counts the changes to the photos: a fit of another version is out of date."""

    def find(self, number: int) -> KeptClass:
        """The class of that number."""
        for one in self.classes:
            if one.number == number:
                return one
        raise Refusal(404, f"There is no class with the number {number}; it may have been forgotten meanwhile.")

    def changed(self, new: KeptClass) -> "Snapshot":
        """With one class replaced."""
        classes = tuple(new if one.number == new.number else one for one in self.classes)
        return replace(self, classes=classes, version=self.version + 1)

    def check_changeable(self) -> None:
        """Refuse changes to a model that can only be asked."""
        if self.unchangeable is not None:
            raise Refusal(409, self.unchangeable)

    @property
    def photo_count(self) -> int:
        return sum(len(one.photos) for one in self.classes)


def unfitted(classifier: FewShotClassifier) -> FewShotClassifier:
    """A classifier with the same backbone and options that knows nothing."""
    options = classifier.options
    return FewShotClassifier(
        classifier.extractor,
        unit_length=options.unit_length,
        recall=options.recall,
        calibrate=options.calibrated,
        prior=classifier.prior_path,
    )
