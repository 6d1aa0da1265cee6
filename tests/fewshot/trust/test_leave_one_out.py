"""Leaving out is a refit without the example, to the last digits of double precision."""

import pytest
import torch

from e3bm.fewshot.prior.ensemble_head import fit_ensemble_head
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.prior.leave_one_out import FOLDS, LEAVE_ONE_OUT, fold_numbers, leave_one_out


def support_set(shots, features, seed=0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((count,), way) for way, count in enumerate(shots)])
    centres = torch.randn(len(shots), features, generator=random, dtype=torch.double)
    return centres[labels] + torch.randn(len(labels), features, generator=random, dtype=torch.double), labels


@pytest.mark.parametrize("unit_length", [True, False])
@pytest.mark.parametrize(("shots", "features"), [((3, 3, 3), 4), ((2, 5, 3, 1), 40), ((2, 2), 7)])
def test_it_is_the_same_as_a_slow_loop_of_refits(shots, features, unit_length):
    learner = load_prior().learner(torch.double)
    support, labels = support_set(shots, features)
    found = leave_one_out(learner, support, labels, len(shots), unit_length=unit_length)
    for row, position in enumerate(found.positions.tolist()):
        kept = torch.arange(len(labels)) != position
        head = fit_ensemble_head(learner, support[kept], labels[kept], len(shots), unit_length=unit_length)
        placed = head.space(support[position : position + 1])
        torch.testing.assert_close(found.scores[row], head.scores(placed)[0], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(found.distances[row], head.distances(placed)[0], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(found.facts[row], head.facts, rtol=1e-7, atol=1e-9)
    single = [way for way, count in enumerate(shots) if count == 1]
    assert not set(single) & set(found.labels.tolist())
    assert len(found) == sum(count for count in shots if count > 1)


def test_with_one_example_of_each_class_nothing_is_left_out():
    support, labels = support_set((1, 1, 1), 5)
    assert leave_one_out(load_prior().learner(torch.double), support, labels, 3, unit_length=True) is None


@pytest.mark.parametrize("shots", [(60, 2, 2, 60), (101, 2), (30, 30, 30, 30)])
def test_larger_sets_are_left_out_in_folds_that_leave_every_class_an_example(shots):
    labels = torch.cat([torch.full((count,), way) for way, count in enumerate(shots)])
    folds = fold_numbers(labels, len(shots))
    assert len(labels) > LEAVE_ONE_OUT
    assert int(folds.max()) + 1 == FOLDS
    for fold in range(FOLDS):
        left = torch.bincount(labels[folds != fold], minlength=len(shots))
        assert int(left.min()) >= 1
    assert int(folds.min()) == 0
