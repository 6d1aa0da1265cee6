"""A sum that is folded a few terms at a time is a sum."""

import pytest
import torch

from e3bm.methods.heads.collapsed import EPOCHS_A_FOLD, WeightedSum


@pytest.mark.parametrize("count", [0, 1, 2, EPOCHS_A_FOLD - 1, EPOCHS_A_FOLD, EPOCHS_A_FOLD + 1, 3 * EPOCHS_A_FOLD + 4])
def test_it_is_the_sum(count):
    draw = torch.Generator().manual_seed(count)
    terms = torch.randn(count, 3, 2, 4, generator=draw, dtype=torch.float64)
    weights = torch.randn(count, 3, generator=draw, dtype=torch.float64)
    found = WeightedSum.nothing(torch.empty(3, 2, 4, dtype=torch.float64))
    for term, weight in zip(terms, weights, strict=True):
        found = found.plus(term, weight)
        assert len(found.waiting) < EPOCHS_A_FOLD  # memory does not grow with the number of terms
    folded, total, waiting = found.settled()
    assert not waiting
    torch.testing.assert_close(folded, torch.einsum("mt,mtwn->twn", weights, terms), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(total, weights.sum(0), rtol=1e-12, atol=1e-12)


def test_a_sum_is_not_changed_by_adding_to_it():
    one = WeightedSum.nothing(torch.empty(1, 1, 1)).plus(torch.ones(1, 1, 1), torch.ones(1))
    two = one.plus(torch.ones(1, 1, 1), torch.ones(1))
    assert float(one.settled().folded) == 1.0
    assert float(two.settled().folded) == 2.0


@pytest.mark.parametrize("count", [1, 30, 100])
def test_one_term_of_weight_one_is_itself_bit_for_bit(count):
    """What the last epoch says is not touched by epochs that weigh nothing."""
    last = torch.randn(3, 2, 4)
    found = WeightedSum.nothing(last)
    for _ in range(count - 1):
        found = found.plus(torch.randn(3, 2, 4), torch.zeros(3))
    assert torch.equal(found.plus(last, torch.ones(3)).settled().folded, last)
