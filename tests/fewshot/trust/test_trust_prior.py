"""The numbers of trust: what a fit without left-out examples takes its threshold from, and their way through JSON."""

import json
from dataclasses import replace

import pytest
import torch

from e3bm.errors import CheckpointError
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.trust import Curve, TrustPrior, known_threshold


def test_without_left_out_examples_the_threshold_follows_the_shots():
    shipped = load_prior().trust
    curves = tuple(Curve((1.0, 4.0), (10.0 * level, level)) for level in shipped.spread_levels)
    trust, facts = replace(shipped, alone=curves), torch.zeros(4, dtype=torch.double)
    centre = float(trust.known_centre(facts[None])[0])
    found = [known_threshold(None, 1.0, facts, shots, trust, recall=0.95) - centre for shots in (1, 2, 4, 9)]
    assert found == pytest.approx([0.5, 0.275, 0.05, 0.05])
    older = replace(shipped, alone=())
    assert known_threshold(None, 1.0, facts, 1, older, recall=0.95) - centre == pytest.approx(older.spread(0.05))


def test_one_shot_scores_lie_closer_together_in_the_shipped_prior():
    shipped = load_prior().trust
    assert shipped.spread_alone(0.05, 1) > shipped.spread(0.05)


def test_the_numbers_survive_json():
    shipped = load_prior().trust
    assert TrustPrior.from_json(json.loads(json.dumps(shipped.as_json()))) == shipped
    with pytest.raises(CheckpointError, match="not readable"):
        TrustPrior.from_json({"alone": [{"shots": [1.0]}]})
