"""The plain MAML that the benchmarks time is the same computation as the package's."""

import pytest
import torch
from benchmarks.maml import (
    RATE,
    learner,
    our_name,
    our_step,
    reference,
    reference_step,
    tasks_of_images,
)
from benchmarks.memory import peak_megabytes


@pytest.mark.parametrize("shots", [1, 2])
def test_meta_gradients_are_equal(shots):
    batch = tasks_of_images(16, shots, dtype=torch.float64)
    ours = learner(16).double()
    ours.hyperprior.rate.value.fill_(RATE)  # all digits: it was rounded to single precision
    plain = reference(ours, 16)
    found = dict(zip((name for name, _ in ours.named_parameters()), our_step(ours, batch)(), strict=True))
    expected = dict(zip((name for name, _ in plain.named_parameters()), reference_step(plain, batch)(), strict=True))
    assert len(found) == len(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[our_name(name)], gradient, rtol=1e-12, atol=1e-12)
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-2


def test_recomputing_needs_less_memory():
    batch = tasks_of_images(16, 5)
    kept, recomputed = (
        peak_megabytes(our_step(learner(16, checkpointed=checkpointed), batch)) for checkpointed in (False, True)
    )
    assert recomputed < 0.6 * kept
