"""Temperatures: what a support set shows by itself at one shot, and what leaving out shows after that."""

import json
import math

import numpy as np
import pytest
import torch

from e3bm.errors import CheckpointError
from e3bm.fewshot.prior.ensemble_head import fit_ensemble_head
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.prior.leave_one_out import HeldOut
from e3bm.fewshot.trust import (
    Curve,
    TrustPrior,
    choose_temperature,
    left_out_log_temperature,
    likeness,
    temperature_facts,
)


def held_out(count, factor, ways=4, seed=0):
    """Examples whose scores are right in the mean when they are divided by ``factor``."""
    random = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(count, ways, generator=random, dtype=torch.double)
    labels = torch.multinomial(honest.softmax(-1), 1, generator=random).view(-1)
    zeros = torch.zeros(count, dtype=torch.double)
    return HeldOut(torch.arange(count), labels, honest * factor, zeros, torch.zeros(count, 4, dtype=torch.double))


def fitted(shots, ways=4, apart=2.0, scale=1.0, *, unit_length=True):
    """A head of made-up examples."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(ways).repeat_interleave(shots)
    centres = apart * torch.randn(ways, 12, generator=random, dtype=torch.double)
    support = 1 + centres[labels] + torch.randn(len(labels), 12, generator=random, dtype=torch.double)
    learner = load_prior().learner(torch.double)
    return fit_ensemble_head(learner, scale * support, labels, ways, unit_length=unit_length)


def test_many_left_out_examples_find_their_temperature():
    assert left_out_log_temperature(*_of(held_out(4000, 3.0))) == pytest.approx(math.log(3), abs=0.1)
    assert left_out_log_temperature(*_of(held_out(4000, 0.5))) == pytest.approx(math.log(0.5), abs=0.1)


def test_few_left_out_examples_stay_near_the_prior():
    few = [abs(left_out_log_temperature(*_of(held_out(4, 5.0, seed=seed)))) for seed in range(30)]
    assert sum(few) / len(few) < 0.6 * math.log(5)


def test_at_one_shot_left_out_examples_are_not_asked_and_with_more_they_are():
    head, trust = fitted(1), load_prior().trust
    said = lambda counts, factor: choose_temperature(
        temperature_facts(head, 5.0, np.array(counts), held_out(400, factor)), trust
    )
    assert said([1] * 4, 4.0) == said([1] * 4, 1.0)
    assert said([10] * 4, 4.0) > said([10] * 4, 1.0)


def test_temperatures_know_ways_shots_and_how_far_examples_are_spread():
    trust = load_prior().trust
    at_one_shot = lambda head: choose_temperature(temperature_facts(head, 5.0, np.ones(head.ways), None), trust)
    found = {at_one_shot(fitted(1, ways)) for ways in (2, 9)} | {at_one_shot(fitted(1, 2, apart)) for apart in (1, 9)}
    assert len(found) == 4
    assert all(0.05 < temperature < 13 for temperature in found)


def test_features_of_another_scale_have_the_same_temperature():
    heads = [fitted(3, 4, 1.0, scale, unit_length=False) for scale in (1, 50)]
    found = [temperature_facts(head, 5.0, np.full(4, 3), None) for head in heads]
    np.testing.assert_allclose(*found, atol=1e-6)


def test_a_prior_of_an_older_version_says_what_to_do():
    with pytest.raises(CheckpointError, match="--start"):
        choose_temperature(np.zeros(14), TrustPrior(known=(0.0,) * 15))
    with pytest.raises(CheckpointError, match="--start"):
        choose_temperature(np.zeros(14), TrustPrior(known=(0.0,) * 15, temperature=(0.0,) * 13))


def test_likeness_is_the_cosine_to_the_nearest_class_mean():
    near, far = (likeness(fitted(5, 6, apart, unit_length=False)) for apart in (0.1, 9.0))
    assert -1 <= far < near <= 1
    head = fitted(1, 2)
    first, second = (head.means / head.factor + head.centre).numpy()
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert likeness(head) == pytest.approx(cosine)


def test_a_curve_runs_straight_over_log_shots_and_stays_outside():
    curve = Curve((1.0, 4.0), (0.0, 2.0))
    assert [curve(shots) for shots in (0.5, 1, 2, 4, 100)] == pytest.approx([0, 0, 1, 2, 2])


def test_the_numbers_of_trust_survive_a_file_and_damaged_ones_are_refused():
    trust = load_prior().trust
    assert TrustPrior.from_json(json.loads(json.dumps(trust.as_json()))) == trust
    with pytest.raises(CheckpointError, match="cannot be read"):
        TrustPrior.from_json({"temperature": [1.0]})


def _of(left_out):
    return left_out.scores, left_out.labels
