"""The head benchmark compares equals: the plain loop gives the package's scores and meta-gradients (float64, 1e-10)."""

import pytest
import torch
from benchmarks.heads import CASES, Case, learner, reference, reference_scores, sides, tasks_of_features
from torch.nn import functional

from e3bm.core.learner import meta_loss

FEATURES, EPOCHS = 12, 6


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize(("head", "kind"), [("cosine", "fc"), ("linear", "fc"), ("cosine", "lstm"), ("linear", "lstm")])
def test_the_plain_loop_does_the_same_work(head, kind, shots):
    batch = tasks_of_features(2, shots, features=FEATURES, queries=10, dtype=torch.float64)
    model = learner(head, kind, features=FEATURES, epochs=EPOCHS).double()
    plain = reference(model)
    leaves = [batch.support, batch.query, *model.parameters()]
    found = model(batch).scores
    expected = torch.stack([reference_scores(plain, batch, task, meta_gradient=True) for task in range(2)])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    evaluated = torch.stack([reference_scores(plain, batch, task, meta_gradient=False) for task in range(2)])
    torch.testing.assert_close(evaluated, expected, rtol=1e-10, atol=1e-10)
    ours = torch.autograd.grad(meta_loss(found, batch.query_labels), leaves, allow_unused=True)
    loss = functional.cross_entropy(expected.flatten(0, 1), batch.query_labels.flatten())
    theirs = torch.autograd.grad(loss, leaves, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_every_row_of_the_target_table_is_measured():
    assert len(CASES) == 16
    assert len({case.name for case in CASES}) == len(CASES)


def test_both_sides_of_a_step_run():
    slow, fast = sides(Case("cosine", "fc", "second order", 1, 2, 1.0))
    slow(), fast()
