"""Temperatures: the prior alone at one shot, and as far as left-out examples are to be trusted after that."""

import json
import math
from dataclasses import replace

import pytest
import torch

from e3bm.errors import CheckpointError
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.prior.leave_one_out import HeldOut
from e3bm.fewshot.trust import Curve, TrustPrior, choose_temperature, left_out_log_temperature


def held_out(count, factor, ways=4, seed=0):
    """Examples whose scores are right in the mean when they are divided by ``factor``."""
    random = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(count, ways, generator=random, dtype=torch.double)
    labels = torch.multinomial(honest.softmax(-1), 1, generator=random).view(-1)
    zeros = torch.zeros(count, dtype=torch.double)
    return HeldOut(torch.arange(count), labels, honest * factor, zeros, torch.zeros(count, 4, dtype=torch.double))


@pytest.fixture
def trust():
    curves = {
        "temperature_offset": Curve((1.0, 10.0), (-0.3, 0.1)),
        "temperature_slope": Curve((1.0, 10.0), (0.0, 1.0)),
    }
    return replace(load_prior().trust, **curves)


def test_many_left_out_examples_find_their_temperature():
    assert left_out_log_temperature(*_of(held_out(4000, 3.0))) == pytest.approx(math.log(3), abs=0.1)
    assert left_out_log_temperature(*_of(held_out(4000, 0.5))) == pytest.approx(math.log(0.5), abs=0.1)


def test_few_left_out_examples_stay_near_the_prior():
    few = [abs(left_out_log_temperature(*_of(held_out(4, 5.0, seed=seed)))) for seed in range(30)]
    assert sum(few) / len(few) < 0.6 * math.log(5)


def test_at_one_shot_the_prior_decides_alone(trust):
    assert choose_temperature(None, 1, trust) == pytest.approx(math.exp(-0.3))
    assert choose_temperature(held_out(50, 4.0), 1, trust) == pytest.approx(math.exp(-0.3))
    told = choose_temperature(held_out(400, 4.0), 10, trust)
    assert told > 2 * choose_temperature(held_out(400, 1.0), 10, trust)


def test_a_curve_runs_straight_over_log_shots_and_stays_outside():
    curve = Curve((1.0, 4.0), (0.0, 2.0))
    assert [curve(shots) for shots in (0.5, 1, 2, 4, 100)] == pytest.approx([0, 0, 1, 2, 2])


def test_the_numbers_of_trust_survive_a_file_and_damaged_ones_are_refused():
    trust = load_prior().trust
    assert TrustPrior.from_json(json.loads(json.dumps(trust.as_json()))) == trust
    with pytest.raises(CheckpointError, match="not readable"):
        TrustPrior.from_json({"known": [1.0]})


def _of(left_out):
    return left_out.scores, left_out.labels
