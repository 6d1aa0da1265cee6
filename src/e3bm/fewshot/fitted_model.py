"""FittedModel: everything a fit on photos leaves, with class names in place of class numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from e3bm.array_types import Float
from e3bm.data.read.photos import UnusedFile, unused_sentences
from e3bm.errors import DataError
from e3bm.fewshot.fitted_head import FitOptions, FittedHead, fit_head
from e3bm.fewshot.prediction import Prediction, prediction_records
from e3bm.fewshot.prior.head_arrays import HeadArrays
from e3bm.fewshot.support_set import Shots, SupportSet, feature_table
from e3bm.progress import Progress

if TYPE_CHECKING:
    from e3bm.fewshot.prior.file import FewShotPrior


MOST_ODDS = 100
"""Larger odds against a label are not shown as numbers: nobody has tested them."""


@dataclass(frozen=True)
class SuspiciousPhoto:
    """A labelled photo that the others contradict."""

    name: str
    label: str
    looks_like: str
    odds: float
    """How many times likelier the other class is."""

    def __str__(self) -> str:
        odds = f"more than {MOST_ODDS}" if self.odds > MOST_ODDS else f"{self.odds:.0f}"
        return f"{self.name} is in '{self.label}' and looks like '{self.looks_like}' ({odds} to 1)"


@dataclass(frozen=True)
class Influence:
    """How much one labelled photo counted for the predicted class, or against it."""

    name: str
    label: str
    number: int
    """The photo's place among those of its class, from 0."""
    amount: float
    """Its part of the predicted class's score, compared with the mean of all classes."""


@dataclass(frozen=True, eq=False)
class FittedModel:
    """All that a fit leaves: replaced as a whole, so that a prediction on another thread sees one fit or the other."""

    classes: tuple[str, ...]
    head: FittedHead
    support: SupportSet | None
    """The labelled features; None where they were dropped."""
    prior_digest: str
    own_prior: bool
    """Whether the prior is not the one that came with the package."""
    notes: tuple[str, ...] = ()
    unused: tuple[UnusedFile, ...] = ()
    """Files among the labelled photos that are no photos."""

    def predict(
        self, features: Float[np.ndarray, "N D"], coverage: float | None = None, recall: float | None = None
    ) -> list[Prediction]:
        """What is said of features; ``coverage`` asks for prediction sets too, ``recall`` is that of this question."""
        rows, head = feature_table(features, self.head.ensemble.feature_size), self.head.with_recall(recall)
        # Row by row: in a product of matrices the last bits of a row depend on how many rows there are.
        return [
            found for row in rows[:, None] for found in prediction_records(self.classes, head.predict(row, coverage))
        ]

    def predict_together(
        self, features: Float[np.ndarray, "N D"], prior: "FewShotPrior", recall: float | None = None
    ) -> list[Prediction]:
        """What is said of features that are used together: each prediction depends on the other rows."""
        rows = feature_table(features, self.head.ensemble.feature_size)
        return prediction_records(self.classes, self.head.with_recall(recall).predict_together(rows, prior))

    @property
    def pictures(self) -> tuple[bytes, ...]:
        """Small pictures of the labelled photos, in the order of the support; nothing where it holds none."""
        found = () if self.support is None else self.support.pictures
        return found if any(found) else ()

    def with_pictures(self, pictures: Sequence[bytes]) -> "FittedModel":
        """The same fit with other small pictures, or with none."""
        return self if self.support is None else replace(self, support=self.support.with_pictures(pictures))

    def renamed(self, names: Mapping[str, str]) -> "FittedModel":
        """The same fit with other names for some classes: it answers as before, and has classes in the new order.

        What it noted about its examples goes, because it was said in the former names.
        """
        called = [names.get(name, name) for name in self.classes]
        twice = next((name for name in called if called.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"The last fit knows another class as '{twice}'; fit again, or choose another name.")
        order = sorted(range(len(called)), key=called.__getitem__)
        return replace(
            self,
            classes=tuple(called[place] for place in order),
            head=self.head.reordered(order),
            support=None if self.support is None else self.support.renamed(names),
            notes=(),
        )

    def suspicions(self) -> tuple[SuspiciousPhoto, ...]:
        """Doubtful labels by name, the most doubtful first."""
        found = []
        for one in self.head.suspicions:
            label = self.classes[one.label]
            first = sum(self.head.counts[: one.label])
            name = f"{label} #{one.position - first + 1}" if self.support is None else self.support.names[one.position]
            found.append(SuspiciousPhoto(name, label, self.classes[one.looks_like], one.odds))
        return tuple(found)

    def influences(self, features: Float[np.ndarray, " D"]) -> tuple[Influence, ...]:
        """How much each labelled photo counts for the class predicted for one row of features, the largest first.

        The head is a sum of support features, so a score is a sum of one part per labelled photo: its coefficient
        times how alike it is to the new one. The parts and a constant of the class add up to the calibrated score.
        """
        support, ensemble = self._kept_support("say which photos mattered"), self.head.ensemble
        row = feature_table(np.asarray(features)[None], ensemble.feature_size)
        examples, query = support.features, ensemble.space(row)
        best = int(ensemble.scores(query).argmax())
        coefficients = _support_coefficients(ensemble, examples)
        against_mean = coefficients[best] - coefficients.mean(0)
        amounts = (against_mean * (ensemble.space(examples) @ query[0]) / self.head.temperature).tolist()
        photos = [
            (name, label, number) for label, shots in support.shots.items() for number, name in enumerate(shots.names)
        ]
        found = [Influence(*photo, amount) for photo, amount in zip(photos, amounts, strict=True)]
        return tuple(sorted(found, key=lambda one: -abs(one.amount)))

    def changeable_shots(self, prior_digest: str) -> Mapping[str, Shots]:
        """The labelled features by class, for a fit with other classes and the prior of that digest.

        DataError where there can be no such fit.
        """
        support = self._kept_support("change its classes")
        if self.own_prior and prior_digest != self.prior_digest:
            raise DataError(
                "This model was made with a different prior; to change its classes, load it with that prior: "
                "FewShotClassifier.load(path, prior=FILE)."
            )
        return support.shots

    def shots_without(self, name: str, prior_digest: str) -> Mapping[str, Shots]:
        """The same, where ``name`` is to become a new class."""
        shots = self.changeable_shots(prior_digest)
        if name in shots:
            raise DataError(f"There is a class '{name}' already; add_shots adds photos to it.")
        return shots

    def shots_with(self, name: str, prior_digest: str) -> Mapping[str, Shots]:
        """The same, where ``name`` is a class that is to be changed."""
        shots = self.changeable_shots(prior_digest)
        if name not in shots:
            raise DataError(f"There is no class '{name}'; there are {', '.join(self.classes)}.")
        return shots

    def _kept_support(self, purpose: str) -> SupportSet:
        if self.support is None:
            raise DataError(
                "This model was saved without the features of its labelled photos, "
                f"so it cannot {purpose}; fit it again from the photos."
            )
        return self.support


def fit_model(
    shots: Mapping[str, Shots],
    options: FitOptions,
    prior_path: Path | None = None,
    *,
    kinds: tuple[str, ...] = (),
    noun: str = "photo",
    notes: tuple[str, ...] = (),
    unused: tuple[UnusedFile, ...] = (),
    progress: Progress | None = None,
) -> FittedModel:
    """Fit the labelled features of every class; ``notes`` and ``unused`` tell of the photos they came from.

    ``kinds`` of features may have other numbers of trust than photos (see ``load_prior``); ``noun`` is what an example
    is called.
    """
    support = SupportSet.of(shots, noun)
    from e3bm.fewshot.prior.file import load_prior

    prior = load_prior(prior_path, *kinds)
    head = fit_head(prior, support.features, support.labels, len(support.classes), options, progress)
    said = (*notes, *unused_sentences(unused), *support.notes())
    return FittedModel(support.classes, head, support, prior.digest, prior_path is not None, said, unused)


def _support_coefficients(head: HeadArrays, support: Float[np.ndarray, "S D"]) -> Float[np.ndarray, "W S"]:
    """The head's weights as sums of support features; of all such sums the one with the smallest coefficients."""
    placed = head.space(support)
    rounding = max(placed.shape) * float(np.finfo(placed.dtype).eps)
    found: np.ndarray = head.weight @ np.linalg.pinv(placed, rcond=rounding)
    return found
