"""The numbers of trust: thresholds for unknown examples, and their way through JSON."""

import json

import numpy as np
import pytest

from e3bm.errors import CheckpointError
from e3bm.fewshot.fitted_head import LEVELS
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.trust import Curve, KnownFacts, TrustPrior, known_levels

ONE = KnownFacts(np.ones(1), np.zeros(0))


def test_levels_are_location_and_scale_times_quantiles_by_shots():
    curves = tuple(Curve((1.0, 4.0), (place, 3.0 * place)) for place in range(len(LEVELS)))
    trust = TrustPrior(known=(), location=(2.0, 0.0), log_scale=(0.0, 1.0), quantiles=curves)
    facts = KnownFacts(np.ones(1), np.array([np.log(2)]))
    places = np.arange(len(LEVELS))
    np.testing.assert_allclose(known_levels(facts, 5, 1, trust), 2 + 2 * places)
    np.testing.assert_allclose(known_levels(facts, 5, 4, trust), 2 + 6 * places)
    np.testing.assert_allclose(known_levels(facts, 5, 2, trust), 2 + 4 * places)


def test_levels_may_depend_on_ways_too():
    """Straight lines over log ways between the numbers that are given, and constant outside."""
    few, many = (tuple(Curve((1.0,), (up * place,)) for place in range(len(LEVELS))) for up in (1.0, 3.0))
    trust = TrustPrior(known=(), location=(0.0,), log_scale=(0.0,), quantiles=(*few, *many), ways=(2.0, 8.0))
    places = np.arange(len(LEVELS))
    for ways, up in {2: 1, 4: 2, 8: 3, 50: 3}.items():
        np.testing.assert_allclose(known_levels(ONE, ways, 1, trust), up * places)


def test_numbers_of_the_facts_by_shots_do_not_see_those_by_number():
    """They give the same levels whatever these are."""
    curves = tuple(Curve((1.0,), (float(place),)) for place in range(len(LEVELS)))
    trust = TrustPrior(known=(), location=(2.0,), log_scale=(0.5,), quantiles=curves)
    with_more = known_levels(KnownFacts(np.ones(1), np.array([7.0, -3.0])), 5, 1, trust)
    np.testing.assert_array_equal(with_more, known_levels(ONE, 5, 1, trust))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_weights_of_other_facts_are_refused(count):
    """Not some of the facts, not more than all."""
    facts = KnownFacts(np.ones(1), np.ones(2))
    trust = TrustPrior(known=(), location=(1.0,), log_scale=(1.0,) * count)
    with pytest.raises(CheckpointError, match=f"has {count} weights, expected 1 or 3; compute .*--start"):
        known_levels(facts, 5, 1, trust)


def test_levels_never_fall():
    curves = tuple(Curve((1.0,), (float(-place),)) for place in range(len(LEVELS)))
    trust = TrustPrior(known=(), location=(0.0,), log_scale=(0.0,), quantiles=curves)
    assert (np.diff(known_levels(ONE, 5, 1, trust)) >= 0).all()


def test_the_numbers_survive_json():
    shipped = load_prior().trust
    assert TrustPrior.from_json(json.loads(json.dumps(shipped.as_json()))) == shipped
    with pytest.raises(CheckpointError, match="cannot be read"):
        TrustPrior.from_json({"known": [1.0], "temperature": [], "quantiles": [{"shots": [1.0]}]})


def test_of_an_older_model_what_predictions_need_is_taken():
    older = TrustPrior.from_json({"known": [1.0, 2.0], "centre": [0.0], "trusted": 5.0})
    assert older.known == (1.0, 2.0)
    assert older.temperature == ()
