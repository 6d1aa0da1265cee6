"""E3BMClassifier is a scikit-learn estimator like any other."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from e3bm import E3BMClassifier
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.prior.shipped import ANY, PHOTOS, PIXELS, SHIPPED
from e3bm.fewshot.trust import TrustPrior


@pytest.fixture(scope="module")
def digits():
    features, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    support = np.concatenate([random.permutation(np.flatnonzero(labels == digit))[:5] for digit in range(10)])
    rest = np.setdiff1d(np.arange(len(labels)), support)
    return features[support], labels[support], features[rest], labels[rest]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_all_of_scikit_learns_own_checks():
    outcome = check_estimator(E3BMClassifier(), on_fail=None)
    assert [check["check_name"] for check in outcome if check["status"] == "failed"] == []
    assert sum(check["status"] == "passed" for check in outcome) > 40


def test_five_examples_of_each_digit_tell_the_others(digits):
    support, labels, rest, truth = digits
    model = E3BMClassifier().fit(support, labels)
    probabilities = model.predict_proba(rest)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
    assert (model.predict(rest) == truth).mean() > 0.75
    assert -np.log(probabilities[np.arange(len(truth)), truth]).mean() < 1


def test_details_are_the_fields_of_a_prediction(digits):
    support, labels, rest, _ = digits
    model = E3BMClassifier().fit(support, labels)
    found = model.details(rest)
    assert set(found) == {"label", "confidence", "probabilities", "unknown", "unknown_score", "disagreement"}
    np.testing.assert_array_equal(found["confidence"], found["probabilities"].max(1))
    np.testing.assert_array_equal(found["label"], model.predict(rest))
    np.testing.assert_array_equal(found["unknown"], model.unknown(rest))
    np.testing.assert_array_equal(found["disagreement"], model.disagreement(rest))
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(rest), atol=1e-12)
    sets = model.details(rest, coverage=0.9)["prediction_set"]
    np.testing.assert_array_equal(sets[:, 0], found["probabilities"].argmax(1))
    np.testing.assert_array_equal((sets >= 0).sum(1), model.prediction_sets(rest, 0.9).sum(1))
    np.testing.assert_array_equal(model.unknown(rest, recall=0.6), model.details(rest, recall=0.6)["unknown"])
    assert model.unknown(rest, recall=0.6).sum() > model.unknown(rest, recall=0.99).sum()
    needed = f"tested on only {len(labels)} rows"
    assert needed in model.why_all_classes(0.9999)
    assert model.why_all_classes(0.5) is None


def test_kinds_of_rows_have_their_own_numbers_of_trust(digits):
    """Where nobody says what rows are, those with signs have what suits all kinds, and a prior of one's own its own."""
    rows, labels = digits[0][:40], digits[1][:40]
    trust = lambda model, rows=rows: TrustPrior.from_json(model.fit(rows, labels).head_.trust)
    assert trust(E3BMClassifier(kind=PIXELS)) == load_prior(None, PIXELS).trust != load_prior().trust
    assert trust(E3BMClassifier()) == trust(E3BMClassifier(kind=PHOTOS), -rows) == load_prior().trust
    assert trust(E3BMClassifier(), -rows) == trust(E3BMClassifier(kind=ANY)) == load_prior(None, ANY).trust
    assert load_prior(None, ANY).trust not in (load_prior().trust, load_prior(None, PIXELS).trust)
    assert trust(E3BMClassifier(prior=SHIPPED, kind=PIXELS)) == load_prior().trust
    with pytest.raises(
        ValueError, match=r"There is no kind 'pixel' of features; there are '.*', 'any', '.*', 'photos', 'pixels',"
    ):
        E3BMClassifier(kind="pixel").fit(rows, labels)


def test_it_is_cloned_pickled_piped_and_cross_validated(digits):
    support, labels, rest, _ = digits
    model = E3BMClassifier().fit(support, labels)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(rest), model.predict_proba(rest))
    assert clone(model).get_params() == model.get_params()
    piped = make_pipeline(StandardScaler(), E3BMClassifier())
    assert cross_val_score(piped, support, labels, cv=2).min() > 0.3
