"""E3BMClassifier: the few-shot classifier of features as a scikit-learn estimator."""

from pathlib import Path
from typing import Any, Self

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("E3BMClassifier needs scikit-learn; run: pip install 'e3bm[sklearn]'") from error

from e3bm.fewshot.fitted_head import FitOptions, FittedHead, fit_head
from e3bm.fewshot.prediction import column_arrays
from e3bm.fewshot.prior.file import load_prior


class E3BMClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn carries no types
    """A classifier for few labels: an ensemble of epochs whose rates and votes a meta-trained hyperprior sets.

    Any number of classes, any and uneven numbers of examples; classes count the same whatever their numbers. There is
    nothing random in it and nothing to tune. Threads may share one: a fit takes its place in one step, and a prediction
    uses the fit that it began with.

    Parameters
    ----------
    unit_length : bool, default=True
        Use only the direction of each row, as suits embeddings. Set it off where the size of features matters and
        standardise them instead.
    recall : float, default=0.95
        Share of examples of the classes that ``unknown`` should leave alone.
    calibrate : bool, default=True
        Leave the examples out one by one to find temperature, threshold and doubtful labels; else the prior alone
        decides.
    prior : str, path or None, default=None
        A prior of ``e3bm train-prior``; None is the one that comes with the package.

    Attributes
    ----------
    classes_ : array of the class labels
    n_features_in_ : number of columns seen in fit
    temperature_ : what scores are divided by before they are called probabilities
    rates_, votes_ : alpha_m and v_m of every epoch
    suspicious_ : positions of training rows whose labels the others contradict, the most doubtful first
    """

    def __init__(
        self,
        *,
        unit_length: bool = True,
        recall: float = 0.95,
        calibrate: bool = True,
        prior: str | Path | None = None,
    ) -> None:
        self.unit_length = unit_length
        self.recall = recall
        self.calibrate = calibrate
        self.prior = prior

    def fit(self, X: Any, y: Any) -> "E3BMClassifier":
        """Adapt the prior to labelled rows."""
        # Built aside and swapped in one step: another thread may be predicting.
        fresh = self._sharing(dict(self.__dict__))
        fresh._fit(X, y)
        self.__dict__ = fresh.__dict__
        return self

    def _fit(self, X: Any, y: Any) -> None:
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"E3BMClassifier needs at least 2 classes, found 1 class: {self.classes_[0]!r}.")
        options = FitOptions(unit_length=self.unit_length, recall=self.recall, calibrated=self.calibrate)
        prior = load_prior(None if self.prior is None else Path(self.prior))
        fitted = fit_head(prior, X, labels.astype(np.int64), len(self.classes_), options)
        self.head_: FittedHead = fitted
        self.temperature_ = fitted.temperature
        self.rates_, self.votes_ = fitted.ensemble.rates, fitted.ensemble.votes
        self.suspicious_ = np.array([one.position for one in fitted.suspicions], dtype=np.int64)

    def decision_function(self, X: Any) -> np.ndarray:
        """Calibrated scores; for two classes their difference, as scikit-learn has it."""
        now, rows = self._now(X)
        scores = now.head_.scores(rows)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, a column for each of ``classes_``."""
        now, rows = self._now(X)
        return now.head_.probabilities(rows)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row."""
        now, rows = self._now(X)
        chosen: np.ndarray = now.classes_[now.head_.scores(rows).argmax(1)]
        return chosen

    def details(self, X: Any, coverage: float | None = None) -> dict[str, np.ndarray]:
        """Everything that is said of rows, an array for each field of ``e3bm.Prediction``.

        With a ``coverage`` there is also ``prediction_set``: the classes in each row's set by number, the most probable
        first, then -1.
        """
        now, rows = self._now(X)
        found = column_arrays(now.head_.predict(rows, coverage))
        return {**found, "label": now.classes_[found["label"]]}

    def unknown(self, X: Any) -> np.ndarray:
        """True where a row looks like none of the classes."""
        return self.details(X)["unknown"]

    def disagreement(self, X: Any) -> np.ndarray:
        """How far the epochs are from saying the same, from 0 to 1."""
        return self.details(X)["disagreement"]

    def prediction_sets(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Which classes (columns) each row's set holds, so that the right one is inside in this share of cases."""
        now, rows = self._now(X)
        return now.head_.sets(rows, coverage)

    def _now(self, X: Any) -> tuple[Self, np.ndarray]:
        """The estimator as it is at this moment, whatever is fitted meanwhile, and the rows as it takes them."""
        now = self._sharing(self.__dict__)
        check_is_fitted(now)
        rows: np.ndarray = validate_data(now, X, dtype=np.float64, reset=False)
        return now, rows

    def _sharing(self, attributes: dict[str, Any]) -> Self:
        """An estimator of this kind with these attributes, which it does not copy."""
        other = object.__new__(type(self))
        other.__dict__ = attributes
        return other
