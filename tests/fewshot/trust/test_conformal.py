"""Prediction sets keep their promise on exchangeable examples."""

import numpy as np
import pytest

from e3bm.errors import SettingsError
from e3bm.fewshot.fitted_head import prediction_sets, set_threshold


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_the_right_class_is_inside_as_often_as_promised(coverage):
    random = np.random.default_rng(0)
    inside = []
    for _ in range(2000):
        misfits = random.random(24) ** 2
        inside.append(random.random() ** 2 <= set_threshold(misfits[:23], coverage))
    # Exactly ceil(24 c) / 24 on average.
    assert np.mean(inside) == pytest.approx(np.ceil(24 * coverage) / 24, abs=0.025)


def test_too_few_left_out_examples_make_sets_of_all_classes():
    probabilities = np.array([[0.98, 0.01, 0.01]])
    assert prediction_sets(probabilities, np.full(5, 0.1), 0.95).all()
    assert prediction_sets(probabilities, np.empty(0), 0.5).all()


def test_the_best_class_is_always_inside():
    sets = prediction_sets(np.array([[0.4, 0.3, 0.3]]), np.zeros(100), 0.9)
    assert sets.tolist() == [[True, False, False]]


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5])
def test_impossible_coverage_is_refused(coverage):
    with pytest.raises(SettingsError, match="between 0 and 1"):
        set_threshold(np.zeros(3), coverage)
