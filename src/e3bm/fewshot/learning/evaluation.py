"""Evaluation: how well a classifier does on examples whose labels are known, in every number a decision needs.

Examples of classes that the classifier does not know are strangers: it cannot name them, it can only call them unknown.
Accuracy, the confusion of classes, reliability and prediction sets are about the others.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from e3bm.array_types import Bool, Float, Int64
from e3bm.data.read.photos import UnusedFile, unused_sentences
from e3bm.errors import DataError, some_of
from e3bm.fewshot.fitted_head import STRANGEST
from e3bm.fewshot.fitted_model import FittedModel, Influence
from e3bm.fewshot.support_set import feature_table

COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99)
RECALLS = (0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5)
BINS = 10
DRAWS = 400
"""Simulations of a perfectly calibrated model."""
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Share:
    """A number of cases out of several, with the 95 % interval of the share that it estimates (Wilson's)."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float] | None:
        if not self.of:
            return None
        share, square = self.count / self.of, NORMAL_95**2
        middle = (share + square / (2 * self.of)) / (1 + square / self.of)
        half = NORMAL_95 * np.sqrt(share * (1 - share) / self.of + square / (4 * self.of**2)) / (1 + square / self.of)
        return min(share, max(0.0, float(middle - half))), max(share, min(1.0, float(middle + half)))

    def as_json(self) -> dict[str, Any]:
        return {"value": self.value, "interval": self.interval, "count": self.count, "of": self.of}


@dataclass(frozen=True)
class ClassResult:
    """One class: how many of its examples were found, and how many that got its name were its own."""

    name: str
    recall: Share
    precision: Share
    flagged: int
    """How many of its examples were called unknown."""


@dataclass(frozen=True)
class ReliabilityBin:
    """Examples of about the same confidence, and how many of them were right."""

    low: float
    high: float
    confidence: float
    right: Share


def reliability_bins(confidence: Float[np.ndarray, " N"], right: Bool[np.ndarray, " N"]) -> tuple[ReliabilityBin, ...]:
    """Answers in ten steps of confidence; empty steps are left out."""
    places = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return tuple(
        ReliabilityBin(
            place / BINS,
            (place + 1) / BINS,
            float(confidence[places == place].mean()),
            Share(int(right[places == place].sum()), int((places == place).sum())),
        )
        for place in range(BINS)
        if (places == place).any()
    )


@dataclass(frozen=True)
class ExpectedError:
    """The calibration error (ECE) that chance alone gives a perfectly calibrated model on as many examples."""

    mean: float
    most: float
    """It is not larger than this in 95 of 100 cases."""


def error_if_calibrated(confidence: Float[np.ndarray, " N"]) -> ExpectedError:
    """Answers with these confidences that are right exactly as often as they say, drawn many times, always alike."""
    places = np.minimum((confidence * BINS).astype(int), BINS - 1)
    random, sums = np.random.default_rng(0), np.bincount(places, confidence, BINS)
    right = (random.random(len(confidence)) < confidence for _ in range(DRAWS))
    errors = [float(np.abs(sums - np.bincount(places[one], minlength=BINS)).sum()) / len(confidence) for one in right]
    return ExpectedError(float(np.mean(errors)), float(np.quantile(errors, 0.95)))


@dataclass(frozen=True)
class ThresholdRow:
    """What one setting of the recall would do: examples whose ``unknown_score`` exceeds it are called unknown."""

    recall: float
    kept: Share
    """Examples of the classes that would not be called unknown."""
    caught: Share
    """Strangers that would be called unknown."""
    right: Share
    """Right answers among examples of the classes that would be kept."""
    in_use: bool = False
    """Whether it is the setting that the model has."""


@dataclass(frozen=True)
class CoverageRow:
    """Prediction sets at one coverage that was asked for."""

    asked: float
    covered: Share
    size: float
    single: Share
    """Sets of one class."""


@dataclass(frozen=True)
class Mistake:
    """An example that got another class's name, with the labelled examples that counted most for it."""

    number: int
    name: str
    label: str
    answer: str
    confidence: float
    probability: float
    """What was left for the right class; 0 for a stranger."""
    unknown: bool
    influences: tuple[Influence, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All numbers of an evaluation; made by ``evaluate``."""

    classes: tuple[str, ...]
    strangers: tuple[str, ...]
    """Classes among the examples that the classifier does not know."""
    names: tuple[str, ...]
    labels: tuple[str, ...]
    probabilities: Float[np.ndarray, "N W"]
    unknown_scores: Float[np.ndarray, " N"]
    unknown: Bool[np.ndarray, " N"]
    recall: float
    """The setting in use: the share of known examples that the flag was meant to keep."""
    recalls: tuple[float, ...]
    """Settings of the recall that are compared, the one in use among them."""
    coverages: tuple[CoverageRow, ...]
    mistakes: tuple[Mistake, ...]
    """Wrong answers, the surest first; then strangers that were not called unknown."""
    notes: tuple[str, ...] = ()
    thumbnails: dict[int, bytes] = field(default_factory=dict)
    """Small JPEG pictures of mistakes, by the number of the example."""
    noun: str = "example"
    """What one example is called: photo, sentence, ..; its plural ends in s."""

    @property
    def truth(self) -> Int64[np.ndarray, " N"]:
        """The number of each example's class, -1 for strangers."""
        places = {name: place for place, name in enumerate(self.classes)}
        return np.array([places.get(label, -1) for label in self.labels], dtype=np.int64)

    @property
    def answers(self) -> Int64[np.ndarray, " N"]:
        found: np.ndarray = self.probabilities.argmax(1)
        return found

    @property
    def accuracy(self) -> Share:
        """Right answers among examples of the classes."""
        known = self.truth >= 0
        return Share(int((self.answers == self.truth)[known].sum()), int(known.sum()))

    @property
    def mean_confidence(self) -> float | None:
        known = self.truth >= 0
        return float(self.probabilities.max(1)[known].mean()) if known.any() else None

    @property
    def kept(self) -> Share:
        """Examples of the classes that were not called unknown."""
        known = self.truth >= 0
        return Share(int((~self.unknown)[known].sum()), int(known.sum()))

    @property
    def caught(self) -> Share:
        """Strangers that were called unknown."""
        strange = self.truth < 0
        return Share(int(self.unknown[strange].sum()), int(strange.sum()))

    @property
    def confusion(self) -> Int64[np.ndarray, "R W"]:
        """Examples by true class (the model's, then strangers) and by answer (the model's classes)."""
        rows = {name: place for place, name in enumerate((*self.classes, *self.strangers))}
        found = np.zeros((len(rows), len(self.classes)), dtype=np.int64)
        for label, answer in zip(self.labels, self.answers, strict=True):
            found[rows[label], answer] += 1
        return found

    @property
    def by_class(self) -> tuple[ClassResult, ...]:
        """Recall and precision of every class, without the strangers; of one class alone there is no precision."""
        table, truth = self.confusion[: len(self.classes)], self.truth
        several = self.only_class is None
        return tuple(
            ClassResult(
                name,
                Share(int(table[place, place]), int(table[place].sum())),
                Share(int(table[place, place]), int(table[:, place].sum())) if several else Share(0, 0),
                int(self.unknown[truth == place].sum()),
            )
            for place, name in enumerate(self.classes)
        )

    @property
    def only_class(self) -> str | None:
        """The class of all examples but strangers, where it is the only one."""
        return _only_class(self.classes, self.labels)

    @property
    def reliability(self) -> tuple[ReliabilityBin, ...]:
        """Ten steps of confidence; empty ones are left out."""
        known = self.truth >= 0
        return reliability_bins(self.probabilities.max(1)[known], (self.answers == self.truth)[known])

    @property
    def ece(self) -> float | None:
        """The mean distance between confidence and share of right answers, over the steps of confidence."""
        bins = self.reliability
        total = sum(one.right.of for one in bins)
        return sum(abs(one.confidence * one.right.of - one.right.count) for one in bins) / total if total else None

    @cached_property
    def ece_if_calibrated(self) -> ExpectedError | None:
        """What the ECE would be if the confidences were exactly right: on few examples it is far from 0."""
        known = self.truth >= 0
        return error_if_calibrated(self.probabilities.max(1)[known]) if known.any() else None

    @property
    def thresholds(self) -> tuple[ThresholdRow, ...]:
        """What settings of the recall would keep and catch, the one in use among them; the largest recall first."""
        return tuple(map(self._threshold_row, self.recalls))

    def _threshold_row(self, recall: float) -> ThresholdRow:
        kept, known = self.unknown_scores < min(recall, STRANGEST), self.truth >= 0
        both = kept & known
        return ThresholdRow(
            recall,
            Share(int(both.sum()), int(known.sum())),
            Share(int((~kept & ~known).sum()), int((~known).sum())),
            Share(int((self.answers == self.truth)[both].sum()), int(both.sum())),
            recall == self.recall,
        )

    def as_json(self) -> dict[str, Any]:
        """Every number as JSON values; shares lie between 0 and 1."""
        plain = lambda row: {
            name: value.as_json() if isinstance(value, Share) else value for name, value in vars(row).items()
        }
        return {
            f"{self.noun}s": len(self.labels),
            "accuracy": self.accuracy.as_json(),
            "mean_confidence": self.mean_confidence,
            "ece": self.ece,
            "ece_if_calibrated": None if self.ece_if_calibrated is None else asdict(self.ece_if_calibrated),
            "unknown": {"known_kept": self.kept.as_json(), "strangers_caught": self.caught.as_json()},
            "classes": [plain(one) for one in self.by_class],
            "strangers": list(self.strangers),
            "confusion": {
                "true": [*self.classes, *self.strangers],
                "answer": list(self.classes),
                "counts": self.confusion.tolist(),
            },
            "reliability": [plain(one) for one in self.reliability],
            "thresholds": [plain(one) for one in self.thresholds],
            "coverages": [plain(one) for one in self.coverages],
            "mistakes": [asdict(one) for one in self.mistakes],
            "notes": list(self.notes),
        }

    def to_html(self, title: str = "Evaluation") -> str:
        """One page that holds everything: no script, no file or address outside of it."""
        from e3bm.fewshot.learning.evaluation_page import evaluation_page

        return evaluation_page(self, title)

    def save(self, path: str | Path, title: str = "Evaluation") -> None:
        """Write the page to ``path`` (.html), and the numbers next to it (.json)."""
        from e3bm.fewshot.learning.evaluation_page import save_evaluation

        save_evaluation(self, Path(path), title)

    def __str__(self) -> str:
        from e3bm.fewshot.learning.evaluation_page import summary

        return "\n".join(summary(self))

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


MOST_INFLUENCES = 3
MOST_CLASSES = 12
"""Classes that an error names."""


def check_labels(classes: Sequence[str], labels: Sequence[str], noun: str) -> None:
    """Refuse labels of which none is a class of the model; quick, since no example is needed for that."""
    if not len(labels):
        raise DataError(f"There is nothing to evaluate on; give {noun}s with their labels.")
    if not set(labels) & set(classes):
        known, there = some_of(classes, MOST_CLASSES), some_of(sorted(set(labels)), MOST_CLASSES)
        raise DataError(
            f"No {noun} belongs to a class that the model knows ({known}); found {there}. "
            "Write the labels as in the model."
        )


def evaluate(
    fitted: FittedModel,
    features: Float[np.ndarray, "N D"],
    labels: Sequence[str],
    names: Sequence[str],
    *,
    unused: Sequence[UnusedFile] = (),
    notes: Sequence[str] = (),
    noun: str = "example",
) -> Evaluation:
    """Predict features whose labels are known and compare; ``noun`` is what one of the examples is called."""
    check_labels(fitted.classes, labels, noun)
    rows = feature_table(features, fitted.head.ensemble.feature_size)
    found, classes = fitted.head.predict(rows), fitted.classes
    places = {name: place for place, name in enumerate(classes)}
    truth = np.array([places.get(label, -1) for label in labels])
    known = truth >= 0
    wrong = np.flatnonzero((found.labels != truth) & (known | ~found.unknown))
    confidence = found.probabilities.max(1)
    mistakes = [
        Mistake(
            row,
            names[row],
            labels[row],
            classes[found.labels[row]],
            float(confidence[row]),
            float(found.probabilities[row, truth[row]]) if known[row] else 0.0,
            bool(found.unknown[row]),
            fitted.influences(rows[row])[:MOST_INFLUENCES] if fitted.support is not None else (),
        )
        for row in sorted(wrong.tolist(), key=lambda row: (not known[row], -confidence[row]))
    ]
    notes = (*notes, *unused_sentences(unused), *_one_class(classes, labels, noun))
    return Evaluation(
        classes,
        tuple(sorted(set(labels) - set(classes))),
        tuple(names),
        tuple(labels),
        found.probabilities,
        found.unknown_scores,
        found.unknown,
        fitted.head.options.recall,
        tuple(sorted({*RECALLS, fitted.head.options.recall}, reverse=True)),
        tuple(_coverage_row(fitted, rows[known], truth[known], asked) for asked in COVERAGES),
        tuple(mistakes),
        (*notes, *_seen_before(fitted, rows, names, noun)),
        noun=noun,
    )


def _coverage_row(
    fitted: FittedModel, rows: Float[np.ndarray, "N D"], truth: Int64[np.ndarray, " N"], asked: float
) -> CoverageRow:
    sets = fitted.head.sets(rows, asked)
    sizes = sets.sum(1)
    inside = sets[np.arange(len(truth)), truth]
    return CoverageRow(
        asked,
        Share(int(inside.sum()), len(truth)),
        float(sizes.mean()),
        Share(int((sizes == 1).sum()), len(truth)),
    )


def _only_class(classes: Sequence[str], labels: Sequence[str]) -> str | None:
    found = set(labels) & set(classes)
    return found.pop() if len(found) == 1 else None


def _one_class(classes: Sequence[str], labels: Sequence[str], noun: str) -> tuple[str, ...]:
    """What cannot be said where all examples are of one class."""
    only = _only_class(classes, labels)
    if only is None:
        return ()
    return (
        f"The model knows {len(classes)} classes, and these {noun}s are of one, '{only}': the accuracy is its recall, "
        "and its precision is not defined.",
    )


def _seen_before(
    fitted: FittedModel, rows: Float[np.ndarray, "N D"], names: Sequence[str], noun: str
) -> tuple[str, ...]:
    """A warning where examples of the evaluation are among those that the model was fitted on."""
    if fitted.support is None:
        return ()
    fitted_on = {row.tobytes() for row in fitted.support.features}
    seen = [name for row, name in zip(rows, names, strict=True) if row.tobytes() in fitted_on]
    if not seen:
        return ()
    return (
        f"The model was fitted on {len(seen)} of these {len(names)} {noun}s (such as {seen[0]}), so the numbers are "
        f"too good; evaluate on others.",
    )
