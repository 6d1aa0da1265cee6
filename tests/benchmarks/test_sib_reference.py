"""The plain SIB that the benchmarks time is the same computation as the package's."""

import pytest
import torch
from benchmarks.heads import WAYS, tasks_of_features
from benchmarks.sib import detached, learner, reference, sides
from torch.nn import functional

from e3bm.core.learner import meta_loss

FEATURES = 12


@pytest.mark.parametrize("shots", [1, 5])
def test_scores_and_meta_gradients_are_equal(shots):
    batch = detached(tasks_of_features(3, shots, features=FEATURES, queries=10, dtype=torch.float64))
    ours = learner(FEATURES).double()
    with torch.no_grad():
        ours.hyperprior.rate.value.fill_(1e-3)  # all digits: it was rounded to single precision
        ours.method.initial_weight.normal_()
        ours.method.bias.fill_(0.3)
    plain, parameters = reference(ours), list(ours.parameters())
    found = ours(batch).scores
    expected = torch.stack(
        [
            plain.scores(batch.support[task], batch.support_labels[task], batch.query[task], WAYS)
            for task in range(len(batch))
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    mine = torch.autograd.grad(meta_loss(found, batch.query_labels), parameters)
    theirs = torch.autograd.grad(
        functional.cross_entropy(expected.flatten(0, 1), batch.query_labels.flatten()), parameters
    )
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert max(gradient.abs().max() for gradient in theirs) > 1e-3


def test_both_sides_run():
    slow, fast = sides(1, 2)
    slow(), fast()
