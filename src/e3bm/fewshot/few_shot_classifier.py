"""FewShotClassifier: a classifier of photos from a few examples of each class."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from e3bm.array_types import Float, Float32
from e3bm.data.read.photos import Photo, UnusedFile, as_photos, photo_name
from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.extractor import FeatureExtractor
from e3bm.fewshot.fitted_head import FitOptions
from e3bm.fewshot.fitted_model import FittedModel, Influence, SuspiciousPhoto, fit_model
from e3bm.fewshot.learning.label_files import frame_examples
from e3bm.fewshot.model_file import model_bytes, parse_fit, parse_origin, parse_views, read_model, save_model
from e3bm.fewshot.networks.choice import BackboneChoice, choose_backbone, restore_backbone
from e3bm.fewshot.prediction import Prediction, Predictions
from e3bm.fewshot.prior.shipped import prior_digest
from e3bm.fewshot.read_photos import LabelledPhotos, Source, list_photos, open_photos, read_features, read_shots
from e3bm.fewshot.support_set import Shots, feature_shots, is_only_in, moved_shots
from e3bm.progress import Progress

if TYPE_CHECKING:  # what a prediction does without
    from e3bm.fewshot.learning.evaluation import Evaluation
    from e3bm.fewshot.learning.suggest import Suggestion


class FewShotClassifier:
    """Classifies photos after a few examples of each class; the backbone is never trained.

    A photo is a path, bytes, a Pillow image, or an array or tensor of uint8 with channels last. Threads may share one:
    a new fit replaces the old one in a single step, and a prediction uses the fit that it began with.
    """

    def __init__(
        self,
        backbone: BackboneChoice = None,
        *,
        pipeline: str | None = None,
        unit_length: bool = True,
        recall: float = 0.95,
        calibrate: bool = True,
        prior: str | Path | None = None,
        views: int | None = None,
    ) -> None:
        """Without a backbone it is EfficientNet-Lite0.

        Others: ``lite2``, ``lite0+lite2`` (both, side by side), a run folder, ``transformers:NAME``, or any module.

        A module of one's own needs its ``pipeline``. With 2 ``views`` the features of a photo are the mean of its own
        and its mirror image's, in fits and predictions, which takes twice the time; None is 1, or what a
        FeatureExtractor says. The other settings are those of E3BMClassifier.
        """
        self.options = FitOptions(unit_length=unit_length, recall=recall, calibrated=calibrate)
        self.prior_path = None if prior is None else Path(prior)
        chosen = choose_backbone(backbone, pipeline)
        self.extractor: FeatureExtractor = chosen if views is None else chosen.with_views(views)
        self._fitted: FittedModel | None = None

    def fit(
        self,
        source: Source,
        labels: Sequence[object] | None = None,
        *,
        skip_unreadable: bool = False,
        small_pictures: bool = False,
        progress: Progress | None = None,
    ) -> "FewShotClassifier":
        """Learn from a folder with a subfolder per class, a CSV file (path, label), Label Studio's JSON, a mapping from
        classes to photos, photos and labels, or a pandas frame (path, label).

        With ``small_pictures`` the model holds a small picture of each photo for the page of `e3bm serve`; else it
        holds no pixels. Photos that are added later are treated alike.
        """
        if small_pictures and self.extractor.noun != "photo":
            raise SettingsError(f"There are no small pictures of {self.extractor.noun}s; leave small_pictures out.")
        with self._opened(source, labels, skip_missing=skip_unreadable) as photos:
            read = read_shots(
                photos.by_class,
                self.extractor,
                skip_unreadable=skip_unreadable,
                small_pictures=small_pictures,
                unused=photos.unused,
                progress=progress,
            )
        return self._refit(read.shots, notes=read.skipped, unused=photos.unused)

    def fit_features(self, features: Mapping[str, Float[np.ndarray, "K D"]]) -> "FewShotClassifier":
        """Learn from features of photos, by class, as ``features`` gives them."""
        return self._refit({name: feature_shots(name, rows) for name, rows in features.items()}, noun="row")

    def add_class(self, name: str, photos: Photo | Iterable[Photo]) -> "FewShotClassifier":
        """Add a class; the result equals a fit from scratch with it."""
        shots = self.fitted.shots_without(name, prior_digest(self.prior_path))
        return self._refit({**shots, name: self._more_shots(name, photos)})

    def add_shots(self, name: str, photos: Photo | Iterable[Photo]) -> "FewShotClassifier":
        """Add photos to a class; the result equals a fit from scratch with them."""
        shots = self.fitted.shots_with(name, prior_digest(self.prior_path))
        return self._refit({**shots, name: shots[name].joined(self._more_shots(name, photos))})

    def correct(self, photo: Photo, label: str, *, new_class: bool = False) -> "FewShotClassifier":
        """'No, it is ``label``': learn from one more photo, in milliseconds once its features are computed.

        A photo that another class has already moves from there; one that this class has changes nothing. A label that
        is no class is taken for a slip of the pen unless ``new_class`` says that it is meant.
        """
        shots = dict(self.fitted.changeable_shots(prior_digest(self.prior_path)))
        if label not in shots and not new_class:
            near = get_close_matches(label, self.classes, n=1)
            raise DataError(
                f"There is no class '{label}'; there are {', '.join(self.classes)}. "
                f"{f'Did you mean {near[0]}? ' if near else ''}For a new class: --new-class (new_class=True in Python)."
            )
        more = self._more_shots(label, photo)
        return self if is_only_in(shots, label, more) else self._refit(moved_shots(shots, label, more))

    def suggest(
        self,
        photos: Photo | Iterable[Photo],
        count: int = 10,
        *,
        skip_unreadable: bool = False,
        progress: Progress | None = None,
    ) -> "list[Suggestion]":
        """Which of these photos (or of a folder's) to label next, the most useful first, each with the reason."""
        from e3bm.fewshot.learning.suggest import check_count, suggest

        check_count(count)
        fitted, some = self.fitted, self._listed(photos)
        read = read_features(some, (), self.extractor, skip_unreadable=skip_unreadable, progress=progress)
        return suggest(fitted, read.features, _paths(some), read.places, count)

    def forget_class(self, name: str) -> "FewShotClassifier":
        """Remove a class; nothing of its photos is kept."""
        shots = self.fitted.shots_with(name, prior_digest(self.prior_path))
        return self._refit({other: some for other, some in shots.items() if other != name})

    def features(self, photos: Photo | Iterable[Photo]) -> Float32[np.ndarray, "N D"]:
        """The backbone's features: all that is ever kept of a photo."""
        return self.extractor(self._asked(photos)[0])

    @overload
    def predict(
        self, photos: str | Path | bytes, *, coverage: float | None = None, recall: float | None = None
    ) -> Prediction: ...
    @overload
    def predict(
        self, photos: list[Any] | tuple[Any, ...], *, coverage: float | None = None, recall: float | None = None
    ) -> Predictions: ...
    @overload
    def predict(self, photos: Any, *, coverage: float | None = None, recall: float | None = None) -> Any: ...
    def predict(self, photos: Any, *, coverage: float | None = None, recall: float | None = None) -> Any:
        """A Prediction for one photo, a list for several; ``coverage`` (such as 0.9) asks for prediction sets too.

        A ``recall`` replaces that of the fit: photos whose ``unknown_score`` is above it are called unknown. Where sets
        of this coverage hold every class, a warning says why.
        """
        fitted, (some, single) = self.fitted, self._asked(photos)
        reason = None if coverage is None else self.why_all_classes(coverage)
        if reason:
            warnings.warn(reason, stacklevel=2)
        found = fitted.predict(self.extractor(some), coverage, recall) if some else []
        return found[0] if single else Predictions(found, _paths(some), self.extractor.column)

    def predict_features(
        self, features: Float[np.ndarray, "N D"], *, coverage: float | None = None, recall: float | None = None
    ) -> Predictions:
        """Predictions of features, as ``features`` gives them."""
        return Predictions(self.fitted.predict(features, coverage, recall))

    def why_all_classes(self, coverage: float) -> str | None:
        """Why prediction sets of this coverage hold every class; None where they need not."""
        return self.fitted.head.why_all_classes(coverage, self.extractor.noun)

    def predict_batch(self, photos: Iterable[Photo], *, recall: float | None = None) -> Predictions:
        """Predictions of photos that are used together (SIB+E3BM): each one depends on the others."""
        some = self._asked(photos)[0]
        found = self.predict_batch_features(self.extractor(some), recall=recall) if some else []
        return Predictions(found, _paths(some), self.extractor.column)

    def predict_batch_features(self, features: Float[np.ndarray, "N D"], *, recall: float | None = None) -> Predictions:
        """Predictions of features that are used together."""
        from e3bm.fewshot.prior.file import load_prior

        return Predictions(self.fitted.predict_together(features, load_prior(self.prior_path), recall))

    def predict_proba(self, photos: Photo | Iterable[Photo]) -> Float[np.ndarray, "N W"]:
        """Calibrated probabilities, a column for each of ``classes``."""
        fitted, some = self.fitted, self._asked(photos)[0]
        found = fitted.predict(self.extractor(some)) if some else []
        return np.array([list(one.probabilities.values()) for one in found]).reshape(-1, len(fitted.classes))

    def evaluate(
        self,
        source: Source,
        labels: Sequence[object] | None = None,
        *,
        skip_unreadable: bool = False,
        progress: Progress | None = None,
    ) -> "Evaluation":
        """How well it does on labelled photos, in the forms that ``fit`` takes; other classes should be unknown."""
        from e3bm.fewshot.learning.evaluate_photos import evaluate_photos

        with self._opened(source, labels, skip_missing=skip_unreadable, one_class=True) as photos:
            return evaluate_photos(
                self.fitted,
                self.extractor,
                photos,
                skip_unreadable=skip_unreadable,
                noun=self.extractor.noun,
                progress=progress,
            )

    def influences(self, photo: Photo) -> tuple[Influence, ...]:
        """How much each labelled photo counts for the class that is predicted, or against it, the largest first."""
        return self.influences_of_features(self.features(photo)[0])

    def influences_of_features(self, features: Float[np.ndarray, " D"]) -> tuple[Influence, ...]:
        """The same for one row of ``features``."""
        return self.fitted.influences(features)

    def save(self, path: str | Path, *, keep_support: bool = True, small_pictures: bool | None = None) -> None:
        """Write one file; without the support features it is smaller and its classes cannot be changed any more.

        Small pictures that the model holds are written with the features; False leaves them out, and True refuses
        to write a file without.
        """
        save_model(Path(path), self.to_bytes(keep_support=keep_support, small_pictures=small_pictures))

    def to_bytes(self, *, keep_support: bool = True, small_pictures: bool | None = None) -> bytes:
        """The content of the file that ``save`` writes."""
        fitted = self.fitted if small_pictures is not False else self.fitted.with_pictures(())
        if small_pictures and not (keep_support and fitted.pictures):
            raise SettingsError(
                "There are no small pictures to save; ask for them when the photos are read, "
                "fit(photos, small_pictures=True), and keep the support."
            )
        return model_bytes(self.extractor, fitted, keep_support=keep_support)

    @classmethod
    def load(
        cls, path: str | Path, *, backbone: BackboneChoice = None, prior: str | Path | None = None
    ) -> "FewShotClassifier":
        """A classifier from a file; a network that no file can rebuild is given as ``backbone``."""
        return cls._loaded(Path(path), None, backbone, prior)

    @classmethod
    def from_bytes(
        cls,
        content: bytes,
        *,
        name: str = "The model",
        backbone: BackboneChoice = None,
        prior: str | Path | None = None,
    ) -> "FewShotClassifier":
        """A classifier from the content of a file, which errors call ``name``."""
        return cls._loaded(Path(name), content, backbone, prior)

    @classmethod
    def _loaded(
        cls, path: Path, content: bytes | None, backbone: BackboneChoice, prior: str | Path | None
    ) -> "FewShotClassifier":
        about, tensors = read_model(path, content)
        fitted = parse_fit(path, about, tensors)
        restored = restore_backbone(path, *parse_origin(path, about), tensors, backbone)
        return cls.of_fit(parse_views(path, about, restored), fitted, prior)

    @classmethod
    def of_fit(cls, extractor: FeatureExtractor, fitted: FittedModel, prior: str | Path | None) -> Self:
        """A classifier that has this fit, and the options that the fit was made with."""
        options = fitted.head.options
        model = cls(
            extractor,
            unit_length=options.unit_length,
            recall=options.recall,
            calibrate=options.calibrated,
            prior=prior,
        )
        model._fitted = fitted
        return model

    def with_fit(self, fitted: FittedModel | None) -> "FewShotClassifier":
        """Another classifier with the same backbone and options, and this fit or none."""
        options = self.options
        other = type(self)(
            self.extractor,
            unit_length=options.unit_length,
            recall=options.recall,
            calibrate=options.calibrated,
            prior=self.prior_path,
        )
        other._fitted = fitted
        return other

    def with_views(self, views: int) -> "FewShotClassifier":
        """Another classifier with the same backbone and options that sees photos in 1 or 2 views; it has no fit."""
        other = self.with_fit(None)
        other.extractor = other.extractor.with_views(views)
        return other

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in order."""
        return self.fitted.classes

    @property
    def counts(self) -> dict[str, int]:
        """How many photos each class was learned from."""
        fitted = self.fitted
        return dict(zip(fitted.classes, fitted.head.counts, strict=True))

    @property
    def rates(self) -> Float[np.ndarray, " M"]:
        """alpha_m of every epoch."""
        return self.fitted.head.ensemble.rates

    @property
    def votes(self) -> Float[np.ndarray, " M"]:
        """v_m of every epoch."""
        return self.fitted.head.ensemble.votes

    @property
    def left_out_accuracy(self) -> float | None:
        """Share of the photos that a fit without them predicts correctly; None where a class has one photo only.

        Such a fit has one photo of the class less than the whole one; ``expected_accuracy`` is corrected for that.
        """
        return self.fitted.head.left_out_accuracy

    @property
    def expected_accuracy(self) -> float | None:
        """The accuracy to expect on new photos like these; None where a class has one photo only."""
        return self.fitted.head.expected_accuracy

    @property
    def suspicions(self) -> tuple[SuspiciousPhoto, ...]:
        """Labelled photos that the others contradict, the most doubtful first."""
        return self.fitted.suspicions()

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known about the photos that it was fitted on."""
        return self.fitted.notes

    def __repr__(self) -> str:
        name = f"{type(self).__name__} with {self.extractor.origin.name}"
        if self._fitted is None:
            return f"<{name}, not fitted>"
        counts = self.counts
        return f"<{name}: {len(counts)} classes, {sum(counts.values())} {self.extractor.noun}s>"

    def _repr_html_(self) -> str:
        from e3bm.fewshot.learning.notebook import classifier_html

        return classifier_html(self)

    # What is particular to photos, so that TextClassifier can be the same for sentences.

    def _opened(
        self,
        source: Source,
        labels: Sequence[object] | None,
        *,
        skip_missing: bool = False,
        one_class: bool = False,
    ) -> AbstractContextManager[LabelledPhotos]:
        return open_photos(source, labels, skip_missing=skip_missing, one_class=one_class)

    def _listed(self, photos: Photo | Iterable[Photo]) -> list[Photo]:
        return list_photos(photos)

    def _more_shots(self, name: str, photos: Photo | Iterable[Photo]) -> Shots:
        """More examples of a class, with small pictures where the model holds those of the others."""
        drawn = bool(self.fitted.pictures)
        return read_shots({name: self._listed(photos)}, self.extractor, small_pictures=drawn).shots[name]

    def _asked(self, photos: Photo | Iterable[Photo]) -> tuple[list[Photo], bool]:
        """A list of photos, and whether a single one was given."""
        return as_photos(frame_examples(photos, self.extractor.noun))

    def _refit(
        self,
        shots: Mapping[str, Shots],
        *,
        noun: str | None = None,
        notes: tuple[str, ...] = (),
        unused: tuple[UnusedFile, ...] = (),
    ) -> "FewShotClassifier":
        self._fitted = fit_model(
            shots,
            self.options,
            self.prior_path,
            kinds=self.extractor.kinds,
            noun=noun or self.extractor.noun,
            notes=notes,
            unused=unused,
        )
        return self

    @property
    def unused(self) -> tuple[UnusedFile, ...]:
        """Files of the folder or archive it was fitted on that were not used as photos, and why."""
        return self.fitted.unused

    @property
    def is_fitted(self) -> bool:
        """Whether it knows any classes."""
        return self._fitted is not None

    @property
    def fitted(self) -> FittedModel:
        """Everything the fit left; DataError before the first fit."""
        if self._fitted is None:
            raise DataError("The classifier knows no class yet; call fit first.")
        return self._fitted


def _paths(photos: Sequence[Photo]) -> tuple[str, ...]:
    """What photos are called: their paths, or their numbers from 1."""
    return tuple(photo_name(photo, str(number)) for number, photo in enumerate(photos, 1))
