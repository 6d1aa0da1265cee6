"""The one workspace of a server: classes, the features of their photos, and the last fit.

Its states are immutable snapshots, so that a prediction uses the one it began with, whatever changes meanwhile; every
change makes the next snapshot under a lock, and is written to the journal, where there is one, before it counts.
"""

import secrets
import threading
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from e3bm.errors import DataError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.fitted_head import FitOptions
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.prior.shipped import prior_digest
from e3bm.fewshot.support_set import check_class_name, check_number_of_classes
from e3bm.serving.exchange import RequestError, Upload
from e3bm.serving.settings import ServeSettings
from e3bm.serving.work.photos import MOST_EXPLAINED, Asked, with_redrawn_pictures


@dataclass(frozen=True, eq=False)
class KeptPhoto:
    """All that is kept of a photo."""

    number: int
    features: np.ndarray
    picture: bytes = b""
    """A small JPEG file, where the settings allow it."""


@dataclass(frozen=True, eq=False)
class KeptClass:
    """A class and its photos."""

    number: int
    name: str
    photos: tuple[KeptPhoto, ...] = ()

    def photo(self, number: int) -> KeptPhoto:
        """The photo of that number."""
        for one in self.photos:
            if one.number == number:
                return one
        raise RequestError(404, f"The class '{self.name}' has no photo with the number {number}.")


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted classifier and the photos it was fitted to, in the order of its support set."""

    classifier: FewShotClassifier
    photos: tuple[tuple[int, str], ...]
    """The number of every photo and its class."""
    version: int

    @cached_property
    def asked(self) -> Asked:
        """What a work process needs to answer for this fit."""
        fitted = self.classifier.fitted
        if len(self.photos) > MOST_EXPLAINED:
            fitted = replace(fitted, support=None)  # which nobody will ask for
        return Asked(fitted, self.photos, self.classifier.prior_path)

    def renamed(self, names: Mapping[str, str]) -> "Fit":
        """The same fit with other names for some classes."""
        photos = sorted(((number, names.get(name, name)) for number, name in self.photos), key=itemgetter(1))
        return replace(
            self, classifier=self.classifier.with_fit(self.classifier.fitted.renamed(names)), photos=tuple(photos)
        )


@dataclass(frozen=True, eq=False)
class FitPlan:
    """A fit to be made, and the state of the workspace that it is made of."""

    before: "Snapshot"
    features: dict[str, np.ndarray]
    photos: tuple[tuple[int, str], ...]
    options: FitOptions
    prior_path: Path | None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One state of the workspace."""

    unfitted: FewShotClassifier
    """A classifier without classes, with the backbone that all features here come from."""
    classes: tuple[KeptClass, ...] = ()
    fit: Fit | None = None
    unchangeable: str | None = None
    """Why classes cannot be changed: a model may have been saved without the features of its photos."""
    version: int = 0
    """Counts the changes to the photos: a fit of another version is out of date."""
    opened: Upload | None = None
    """The file of the model that was opened, where its backbone is not the server's own and the state is kept."""

    def find(self, number: int) -> KeptClass:
        """The class of that number."""
        for one in self.classes:
            if one.number == number:
                return one
        raise RequestError(404, f"There is no class with the number {number}; it may have been forgotten meanwhile.")

    def photo(self, number: int) -> KeptPhoto:
        """The photo of that number, in whatever class it is."""
        for one in self.classes:
            for photo in one.photos:
                if photo.number == number:
                    return photo
        raise RequestError(404, f"There is no photo with the number {number}; it may have been forgotten meanwhile.")

    def with_class(self, new: KeptClass) -> "Snapshot":
        """The same with one class replaced."""
        classes = tuple(new if one.number == new.number else one for one in self.classes)
        return replace(self, classes=classes, version=self.version + 1)

    def check_changeable(self) -> None:
        """Refuse changes to a model that can only predict."""
        if self.unchangeable is not None:
            raise RequestError(409, self.unchangeable)

    @property
    def photo_count(self) -> int:
        return sum(len(one.photos) for one in self.classes)


class Recorder(Protocol):
    """Keeps every change before it counts."""

    def class_made(self, made: KeptClass) -> None:
        """A class was created."""

    def photos_added(self, number: int, photos: Sequence[KeptPhoto]) -> None:
        """Photos were added to the class of that number."""

    def fit_made(self, fit: Fit) -> None:
        """A fit was made."""

    def replaced(self, now: Snapshot, token: str, last_number: int) -> None:
        """Something was forgotten or everything is new: nothing of what was there before may be left."""


class NoRecorder:
    """Keeps nothing: the workspace lives in memory only."""

    def class_made(self, made: KeptClass) -> None: ...

    def photos_added(self, number: int, photos: Sequence[KeptPhoto]) -> None: ...

    def fit_made(self, fit: Fit) -> None: ...

    def replaced(self, now: Snapshot, token: str, last_number: int) -> None: ...


Result = TypeVar("Result")


class Workspace:
    """Holds the present snapshot and makes the next."""

    def __init__(self, classifier: FewShotClassifier, settings: ServeSettings) -> None:
        self.settings = settings
        self.token = secrets.token_hex(8)
        """Another one where the numbers that a page has mean nothing any more, as after a start with an empty state."""
        self._lock = threading.Lock()
        self._last_number = 0
        self.initial = classifier.with_fit(None)
        if classifier.is_fitted:
            classifier = classifier.with_fit(with_redrawn_pictures(classifier.fitted))
        self.snapshot = self._snapshot_of(classifier)
        self._recorder: Recorder = NoRecorder()

    def record_with(self, recorder: Recorder) -> None:
        """From now on every change is kept; it begins with the state as it is."""
        recorder.replaced(self.snapshot, self.token, self._last_number)
        self._recorder = recorder

    def restore(self, snapshot: Snapshot, token: str, last_number: int, recorder: Recorder) -> None:
        """Go on with a state that was kept, and with keeping it."""
        self.snapshot, self.token, self._last_number, self._recorder = snapshot, token, last_number, recorder

    def create_class(self, name: str) -> KeptClass:
        """A class without photos."""
        name = _tidy(name)

        def change(now: Snapshot) -> tuple[Snapshot, KeptClass]:
            now.check_changeable()
            if len(now.classes) >= self.settings.most_classes:
                raise RequestError(
                    409, f"There are {self.settings.most_classes} classes already, which is the maximum."
                )
            _refuse_taken(name, now.classes)
            made = KeptClass(self._next_number(), name)
            self._recorder.class_made(made)
            return replace(now, classes=(*now.classes, made)), made

        return self._change(change)

    def rename_class(self, number: int, name: str) -> KeptClass:
        """Call a class otherwise, in the fit too: no answer changes but for the name."""
        name = _tidy(name)

        def change(now: Snapshot) -> tuple[Snapshot, KeptClass]:
            now.check_changeable()
            one = now.find(number)
            _refuse_taken(name, [other for other in now.classes if other is not one])
            made = replace(one, name=name)
            fit = None if now.fit is None else now.fit.renamed({one.name: name})
            return self._recorded(replace(now.with_class(made), fit=fit, version=now.version)), made

        return self._change(change)

    def move_photo(self, number: int, photo: int, to: int) -> KeptClass:
        """Put a photo under another class; the fit has it under the former one until the next one."""

        def change(now: Snapshot) -> tuple[Snapshot, KeptClass]:
            one, other = now.find(number), now.find(to)
            moved = one.photo(photo)
            if one is other:
                return now, one
            left = tuple(kept for kept in one.photos if kept is not moved)
            made = replace(other, photos=(*other.photos, moved))
            return self._recorded(now.with_class(replace(one, photos=left)).with_class(made)), made

        return self._change(change)

    def add_photos(
        self, number: int, features: Sequence[np.ndarray], seen_by: Snapshot, pictures: Sequence[bytes] = ()
    ) -> tuple[int, ...]:
        """Keep the features of photos, which were computed with the backbone of ``seen_by``, and small pictures."""
        shown = pictures or [b""] * len(features)

        def change(now: Snapshot) -> tuple[Snapshot, tuple[int, ...]]:
            one = now.find(number)
            if now.unfitted.extractor is not seen_by.unfitted.extractor:
                raise RequestError(409, "Another model was opened meanwhile; add the photos again.")
            if now.photo_count + len(features) > self.settings.most_photos:
                raise RequestError(409, f"All classes together may have at most {self.settings.most_photos} photos.")
            made = tuple(
                KeptPhoto(self._next_number(), row, picture) for row, picture in zip(features, shown, strict=True)
            )
            self._recorder.photos_added(number, made)
            changed = now.with_class(replace(one, photos=(*one.photos, *made)))
            return changed, tuple(photo.number for photo in made)

        return self._change(change)

    def remove_photo(self, number: int, photo: int) -> None:
        """Forget one photo, and the fit with it."""

        def change(now: Snapshot) -> tuple[Snapshot, None]:
            one = now.find(number)
            gone = one.photo(photo)
            left = tuple(kept for kept in one.photos if kept is not gone)
            return self._recorded(replace(now.with_class(replace(one, photos=left)), fit=None)), None

        self._change(change)

    def forget_class(self, number: int) -> None:
        """Forget a class and its photos, and the fit with them."""

        def change(now: Snapshot) -> tuple[Snapshot, None]:
            gone = now.find(number)
            left = tuple(one for one in now.classes if one is not gone)
            fit = now.fit if not gone.photos else None
            after = replace(now, classes=left, fit=fit, version=now.version + bool(gone.photos))
            return self._recorded(after), None

        self._change(change)

    def plan_fit(self) -> FitPlan:
        """A fit to the photos as they are now; photos that are added meanwhile make it out of date."""
        before = self.snapshot
        before.check_changeable()
        # The order that a support set has: classes by name.
        filled = sorted((one for one in before.classes if one.photos), key=lambda one: one.name)
        check_number_of_classes([one.name for one in filled])  # said at once, before a process is started for it
        features = {one.name: np.stack([photo.features for photo in one.photos]) for one in filled}
        photos = tuple((photo.number, one.name) for one in filled for photo in one.photos)
        return FitPlan(before, features, photos, before.unfitted.options, before.unfitted.prior_path)

    def accept_fit(self, plan: FitPlan, fitted: FittedModel) -> Fit:
        """Put a fit that was made into its place, with the names that its classes have now."""

        def change(now: Snapshot) -> tuple[Snapshot, Fit]:
            if {number for number, _ in plan.photos} - {photo.number for one in now.classes for photo in one.photos}:
                raise RequestError(409, "Photos were removed while the classifier was fitted; fit again.")
            names = {one.number: one.name for one in now.classes}
            made = Fit(plan.before.unfitted.with_fit(fitted), plan.photos, plan.before.version).renamed(
                {one.name: names.get(one.number, one.name) for one in plan.before.classes}
            )
            self._recorder.fit_made(made)
            return replace(now, fit=made), made

        return self._change(change)

    def open(self, classifier: FewShotClassifier, upload: Upload) -> None:
        """Replace everything by a model, which came in that file."""

        def change(now: Snapshot) -> tuple[Snapshot, None]:
            own = classifier.extractor is self.initial.extractor
            opened = None
            if self.settings.keep is not None and not own:
                # For its backbone alone: features and pictures that are forgotten must not live on in it.
                opened = Upload(upload.name, classifier.to_bytes(keep_support=False))
            return self._recorded(replace(self._snapshot_of(classifier, now.version + 1), opened=opened)), None

        self._change(change)

    def choose_views(self, views: int) -> None:
        """See photos in 1 or 2 views from now on: before the first one, since their features stay as they are."""

        def change(now: Snapshot) -> tuple[Snapshot, None]:
            if views == now.unfitted.extractor.views:
                return now, None
            if now.photo_count or now.fit is not None:
                raise RequestError(
                    409,
                    "Views are chosen before the first photo, because features are kept and photos are not; forget "
                    "everything first (DELETE /workspace).",
                )
            return self._recorded(replace(now, unfitted=now.unfitted.with_views(views))), None

        self._change(change)

    def clear(self) -> None:
        """Forget everything; the backbone is again the one the server was started with."""
        self._change(lambda now: (self._recorded(Snapshot(self.initial, version=now.version + 1)), None))

    def _recorded(self, after: Snapshot) -> Snapshot:
        self._recorder.replaced(after, self.token, self._last_number)
        return after

    def _snapshot_of(self, classifier: FewShotClassifier, version: int = 0) -> Snapshot:
        unfitted = classifier.with_fit(None)
        if not classifier.is_fitted:
            return Snapshot(unfitted, version=version)
        drawn = self.settings.pictures != "tab"
        bare = classifier.with_fit(classifier.fitted.with_pictures(()))
        try:
            shots = classifier.fitted.changeable_shots(prior_digest(classifier.prior_path))
        except DataError as reason:
            fit = Fit(classifier if drawn else bare, (), version)
            return Snapshot(unfitted, fit=fit, unchangeable=str(reason), version=version)
        # Copies: the features of a forgotten photo must not live on in an array that others share.
        classes = []
        for name, some in shots.items():
            photos = tuple(
                KeptPhoto(self._next_number(), row.copy(), picture if drawn else b"")
                for row, picture in zip(some.features, some.pictures, strict=True)
            )
            classes.append(KeptClass(self._next_number(), name, photos))
        numbers = tuple((photo.number, one.name) for one in classes for photo in one.photos)
        return Snapshot(unfitted, tuple(classes), Fit(bare, numbers, version), version=version)

    def _change(self, change: Callable[[Snapshot], tuple[Snapshot, Result]]) -> Result:
        with self._lock:
            self.snapshot, result = change(self.snapshot)
            return result

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number


def _tidy(name: str) -> str:
    """A name as it is kept; DataError for one that cannot be shown."""
    name = " ".join(name.split()) if name.isprintable() else name
    check_class_name(name)
    return name


def _refuse_taken(name: str, classes: Sequence[KeptClass]) -> None:
    taken = next((one.name for one in classes if _comparable(name) == _comparable(one.name)), None)
    if taken is not None:
        alike = "" if taken == name else f", and '{name}' cannot be told from it"
        raise RequestError(
            409, f"There is a class '{taken}' already{alike}; add the photos to it or choose another name."
        )


def _comparable(name: str) -> str:
    """Equal for names that a person cannot tell apart."""
    return unicodedata.normalize("NFC", name).casefold()
