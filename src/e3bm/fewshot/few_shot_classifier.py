"""FewShotClassifier: a few photos of each class in, a classifier one can trust out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from e3bm.data.photo import Photo, as_photos
from e3bm.data.progress import ProgressCallback
from e3bm.errors import DataError
from e3bm.fewshot.backbone_choice import BackboneChoice, choose_backbone
from e3bm.fewshot.classifier import FitOptions, FittedClassifier, fit_classifier
from e3bm.fewshot.feature_extractor import FeatureExtractor
from e3bm.fewshot.prediction import Prediction, prediction_list
from e3bm.fewshot.prior_file import load_prior
from e3bm.fewshot.support_reading import Source, opened_source, photos_of, read_shots
from e3bm.fewshot.support_set import Shots, SupportSet, numbered


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
    skipped: tuple[str, ...] = ()


class FewShotClassifier:
    """Classifies photos after a few examples of each class, without training the backbone."""

    def __init__(
        self,
        backbone: BackboneChoice = None,
        *,
        pipeline: str | None = None,
        unit_length: bool = True,
        recall: float = 0.95,
        calibrate: bool = True,
        prior: str | Path | None = None,
    ) -> None:
        self.options = FitOptions(unit_length=unit_length, recall=recall, calibrated=calibrate)
        self.prior_path = None if prior is None else Path(prior)
        self.extractor: FeatureExtractor = choose_backbone(backbone, pipeline)
        self._fitted: FittedPhotos | None = None

    def fit(
        self,
        source: Source,
        labels: Sequence[object] | None = None,
        *,
        skip_unreadable: bool = False,
        progress: ProgressCallback | None = None,
    ) -> "FewShotClassifier":
        """Learn from a folder with a subfolder per class, a mapping from classes to photos, or photos and labels."""
        with opened_source(source, labels) as photos:
            read = read_shots(photos, self.extractor, skip_unreadable=skip_unreadable, progress=progress)
        return self._refit(SupportSet.of(read.shots), read.skipped)

    def fit_features(self, features: Mapping[str, Float[np.ndarray, "K D"]]) -> "FewShotClassifier":
        """Learn from features of photos, by class, as ``features`` gives them."""
        shots = {
            name: Shots(np.asarray(rows, dtype=np.float32), numbered(name, len(rows)))
            for name, rows in features.items()
        }
        return self._refit(SupportSet.of(shots))

    def add_class(self, name: str, photos: Photo | Iterable[Photo]) -> "FewShotClassifier":
        """One class more; equal to a fit from scratch with it."""
        support = self._support()
        if name in support.shots:
            raise DataError(f"There is a class '{name}' already; add_shots adds photos to it.")
        read = read_shots({name: photos_of(photos)}, self.extractor)
        return self._refit(SupportSet.of({**support.shots, **read.shots}))

    def add_shots(self, name: str, photos: Photo | Iterable[Photo]) -> "FewShotClassifier":
        """More photos of a class."""
        support = self._support()
        self._check_class(name, support)
        read = read_shots({name: photos_of(photos)}, self.extractor)
        return self._refit(SupportSet.of({**support.shots, name: support.shots[name].joined(read.shots[name])}))

    def forget_class(self, name: str) -> "FewShotClassifier":
        """One class less; nothing of its photos is kept."""
        support = self._support()
        self._check_class(name, support)
        return self._refit(SupportSet.of({other: shots for other, shots in support.shots.items() if other != name}))

    def features(self, photos: Photo | Iterable[Photo]) -> Float[np.ndarray, "N D"]:
        """The backbone's features: all that is ever kept of a photo."""
        return self.extractor(as_photos(photos)[0])

    def predict(self, photos: Any, *, coverage: float | None = None) -> Any:
        """A Prediction for one photo, a list of them for several; ``coverage`` asks for prediction sets as well."""
        rows, single = as_photos(photos)
        found = self.predict_features(self.extractor(rows), coverage=coverage) if rows else []
        return found[0] if single else found

    def predict_features(
        self, features: Float[np.ndarray, "N D"], *, coverage: float | None = None
    ) -> list[Prediction]:
        """Predictions from features."""
        fitted = self._after_fit()
        rows = np.asarray(features, dtype=np.float32)
        sets = None if coverage is None else fitted.classifier.sets(rows, coverage)
        return prediction_list(fitted.classes, fitted.classifier.predict(rows), sets)

    def predict_proba(self, photos: Photo | Iterable[Photo]) -> Float[np.ndarray, "N W"]:
        """Calibrated probabilities, a column for each of ``classes``."""
        return self._after_fit().classifier.probabilities(self.features(photos))

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in order."""
        return self._after_fit().classes

    @property
    def counts(self) -> dict[str, int]:
        """How many photos each class was learned from."""
        fitted = self._after_fit()
        return dict(zip(fitted.classes, fitted.classifier.counts, strict=True))

    @property
    def rates(self) -> Float[np.ndarray, " M"]:
        """alpha_m of every epoch."""
        return self._after_fit().classifier.head.rates.numpy()

    @property
    def votes(self) -> Float[np.ndarray, " M"]:
        """v_m of every epoch."""
        return self._after_fit().classifier.head.votes.numpy()

    @property
    def left_out_accuracy(self) -> float | None:
        """Share of the photos that were predicted right by a fit without them; None with one photo a class."""
        return self._after_fit().classifier.left_out_accuracy

    @property
    def suspicions(self) -> tuple[SuspiciousPhoto, ...]:
        """Labelled photos that the others contradict, the most doubtful first."""
        fitted = self._after_fit()
        names = () if fitted.support is None else fitted.support.names
        return tuple(
            SuspiciousPhoto(
                names[one.position] if names else f"photo {one.position + 1}",
                fitted.classes[one.label],
                fitted.classes[one.looks_like],
                one.odds,
            )
            for one in fitted.classifier.suspicions
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known of the photos that it was fitted on."""
        fitted = self._after_fit()
        return (*fitted.skipped, *(() if fitted.support is None else fitted.support.notes()))

    def _refit(self, support: SupportSet, skipped: tuple[str, ...] = ()) -> "FewShotClassifier":
        prior = load_prior(self.prior_path)
        found = fit_classifier(prior, support.features, support.labels, len(support.classes), self.options)
        self._fitted = FittedPhotos(support.classes, found, support, skipped)
        return self

    def _after_fit(self) -> FittedPhotos:
        if self._fitted is None:
            raise DataError("The classifier knows no class yet; call fit first.")
        return self._fitted

    def _support(self) -> SupportSet:
        support = self._after_fit().support
        if support is None:
            raise DataError(
                "The features of the photos were not kept in this model (keep_support=False), so that classes cannot "
                "be changed; fit it again from the photos."
            )
        return support

    @staticmethod
    def _check_class(name: str, support: SupportSet) -> None:
        if name not in support.shots:
            raise DataError(f"There is no class '{name}'; there are {', '.join(support.classes)}.")
