"""The fitted head: any ways and shots, order, unknown examples, doubtful labels."""

import numpy as np
import pytest

from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.fitted_head import FitOptions, fit_head
from e3bm.fewshot.prior.file import load_prior


def clusters(ways, each, features=24, apart=1.5, seed=0):
    random = np.random.default_rng(seed)
    counts = [each] * ways if isinstance(each, int) else each
    labels = np.repeat(np.arange(ways), counts)
    centres = apart * random.standard_normal((ways, features))
    return lambda: centres[labels] + random.standard_normal((len(labels), features)), labels


def fit(features, labels, **options):
    return fit_head(load_prior(), features, labels, int(labels.max()) + 1, FitOptions(**options))


@pytest.mark.parametrize("ways", [2, 3, 10, 50])
@pytest.mark.parametrize("shots", [1, 4])
def test_any_ways_and_shots(ways, shots):
    draw, labels = clusters(ways, shots, apart=2)
    model = fit(draw(), labels)
    found = model.predict(draw())
    assert found.probabilities.shape == (len(labels), ways)
    np.testing.assert_allclose(found.probabilities.sum(1), 1)
    assert (found.labels == labels).mean() > 0.7
    assert ((found.disagreement >= 0) & (found.disagreement <= 1)).all()


def test_uneven_shots_give_no_class_an_advantage():
    draw, labels = clusters(3, [1, 5, 40], apart=0.0)
    model = fit(draw(), labels)
    random = np.random.default_rng(9).standard_normal((3000, 24))
    chosen = np.bincount(model.predict(random).labels, minlength=3) / 3000
    # All classes look the same: forty examples must not take everything.
    assert chosen[2] < 0.9
    draw, labels = clusters(3, [1, 5, 40], apart=2)
    assert (fit(draw(), labels).predict(draw()).labels == labels).mean() > 0.9


def test_the_order_of_the_examples_does_not_matter_to_the_last_bit():
    draw, labels = clusters(4, 3)
    features, query = draw(), draw()
    order = np.random.default_rng(0).permutation(len(labels))
    one, two = fit(features, labels), fit(features[order], labels[order])
    np.testing.assert_array_equal(one.probabilities(query), two.probabilities(query))
    assert (one.temperature, one.threshold) == (two.temperature, two.threshold)


@pytest.mark.parametrize("shots", [1, 5])
def test_what_is_far_from_all_classes_looks_less_known(shots):
    draw, labels = clusters(5, shots, features=64, apart=2)
    model = fit(draw(), labels)
    known = model.predict(draw())
    assert known.unknown.mean() < 0.4
    others = 2 * np.random.default_rng(5).standard_normal((5, 64))
    strange = model.predict(others.repeat(20, 0) + np.random.default_rng(6).standard_normal((100, 64)))
    assert strange.known_scores.mean() < known.known_scores.mean()
    # With one shot the threshold is that of real features, which such clouds are not like.
    assert strange.unknown.mean() > (0.6 if shots > 1 else -1)


def test_a_higher_recall_calls_less_unknown():
    draw, labels = clusters(4, 5)
    features = draw()
    assert fit(features, labels, recall=0.99).threshold < fit(features, labels, recall=0.8).threshold


def test_planted_wrong_labels_are_pointed_out():
    draw, labels = clusters(4, 6, apart=2.5)
    features = draw()
    assert fit(features, labels).suspicions == ()
    wrong = labels.copy()
    wrong[8] = 3
    (found,) = fit(features, wrong).suspicions
    assert (found.position, found.label, found.looks_like) == (8, 3, 1)
    assert found.odds > 1


def test_classes_of_two_examples_are_not_judged():
    draw, labels = clusters(4, 2, apart=3)
    wrong = labels.copy()
    wrong[[1, 2]] = wrong[[2, 1]]
    assert fit(draw(), wrong).suspicions == ()


def test_one_shot_sets_hold_all_classes_and_say_why():
    draw, labels = clusters(4, 1)
    model = fit(draw(), labels)
    assert model.left_out_accuracy is None
    assert model.sets(draw(), 0.9).all()
    assert model.why_all_classes(0.9) == (
        "With one photo per class there is nothing to test predictions on, so a set of 90 % contains every class; at "
        "least 9 photos in classes of two or more are needed, or a lower coverage."
    )
    assert model.why_all_classes(0.95, "sentence").startswith("With one sentence per class there is nothing to test")
    draw, labels = clusters(4, 5)
    assert fit(draw(), labels).why_all_classes(0.9) is None
    assert "tested on only 20 photos, so a set of 96 %" in fit(draw(), labels).why_all_classes(0.96)
    assert "at least 24 photos" in fit(draw(), labels).why_all_classes(0.96)
    assert "fit with calibrate=True" in fit(draw(), labels, calibrated=False).why_all_classes(0.5)


def test_the_unknown_score_is_the_recall_at_which_an_example_would_still_be_called_unknown():
    draw, labels = clusters(4, 5)
    model, query = fit(draw(), labels), draw()
    found = model.predict(query)
    assert ((found.unknown_scores >= 0) & (found.unknown_scores <= 1)).all()
    np.testing.assert_array_equal(np.argsort(-found.known_scores), np.argsort(found.unknown_scores, kind="stable"))
    for recall in (0.6, 0.8, 0.95):
        asked = model.with_recall(recall).predict(query)
        np.testing.assert_array_equal(asked.unknown, found.unknown_scores > recall)
        np.testing.assert_array_equal(asked.unknown_scores, found.unknown_scores)
    assert model.with_recall(None) is model


def test_sets_cover_what_they_promise():
    draw, labels = clusters(6, 12, features=8, apart=0.9)
    model = fit(draw(), labels)
    query = np.concatenate([draw() for _ in range(10)])
    inside = model.sets(query, 0.9)[np.arange(len(query)), np.tile(labels, 10)]
    assert 0.82 < inside.mean() < 0.99
    assert model.sets(query, 0.8).sum() < model.sets(query, 0.95).sum()


def test_what_cannot_be_learned_from_is_refused():
    draw, labels = clusters(3, 2)
    features = draw()
    spoilt = features.copy()
    spoilt[0, 0] = np.nan
    for wrong, numbers, ways, sentence in (
        (features[:4], labels, 3, "a row for each"),
        (features, labels, 4, "has no example"),
        (features, np.zeros_like(labels), 1, "at least 2 classes"),
        (spoilt, labels, 3, "finite"),
    ):
        with pytest.raises(DataError, match=sentence):
            fit_head(load_prior(), wrong, numbers, ways, FitOptions())
    with pytest.raises(SettingsError, match="recall"):
        FitOptions(recall=1.0)


def test_the_same_photo_in_two_classes_and_examples_that_are_all_the_same_still_fit():
    same = np.ones((4, 5))
    found = fit(same, np.array([0, 0, 1, 1])).probabilities(same)
    np.testing.assert_allclose(found, 0.5, atol=1e-6)
