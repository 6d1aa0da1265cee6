"""Every reported number against its definition, or against torchmetrics."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from torchmetrics.classification import MulticlassCalibrationError

from e3bm.runs.evaluation.metrics import (
    BINS,
    Reliability,
    accuracies,
    mean_and_interval,
    negative_log_likelihoods,
    paired_difference,
)


@pytest.fixture
def predictions():
    draw = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(40, 25, 5, generator=draw, dtype=torch.double)
    return scores, torch.randint(0, 5, (40, 25), generator=draw)


def test_interval_is_of_the_population_standard_deviation():
    values = torch.tensor([40.0, 60.0, 50.0, 90.0], dtype=torch.double)
    mean, interval = mean_and_interval(values)
    assert mean == 60.0
    assert interval == pytest.approx(1.96 * np.std([40, 60, 50, 90]) / 2, rel=1e-12)
    assert mean_and_interval(torch.full((7,), 33.0)) == (33.0, 0.0)


def test_accuracy_is_in_percent(predictions):
    scores, labels = predictions
    expected = 100 * (scores.argmax(-1) == labels).double().mean(1)
    torch.testing.assert_close(accuracies(scores, labels), expected, rtol=0, atol=1e-12)
    # Every learner of an ensemble at once.
    spread = labels.unsqueeze(1).expand(-1, 2, -1)
    both = accuracies(torch.stack([scores, -scores], 1), spread)
    torch.testing.assert_close(both[:, 0], expected, rtol=0, atol=1e-12)


def test_nll_is_the_mean_cross_entropy_of_a_task(predictions):
    scores, labels = predictions
    expected = torch.stack([functional.cross_entropy(s, y) for s, y in zip(scores, labels, strict=True)])
    torch.testing.assert_close(negative_log_likelihoods(scores, labels), expected, rtol=1e-12, atol=1e-12)


def test_ece_is_that_of_torchmetrics(predictions):
    scores, labels = predictions
    ours = Reliability.of(scores, labels).expected_calibration_error()
    theirs = MulticlassCalibrationError(5, n_bins=15, norm="l1")  # as the literature has them, and as we say
    assert ours == pytest.approx(100 * float(theirs(scores.flatten(0, 1).softmax(-1), labels.flatten())), rel=1e-6)


def test_reliability_adds_up_and_is_readable(predictions):
    scores, labels = predictions
    whole = Reliability.of(scores, labels)
    parts = Reliability.empty()
    for start in range(0, 40, 7):
        parts += Reliability.of(scores[start : start + 7], labels[start : start + 7])
    torch.testing.assert_close(parts.sums(), whole.sums(), rtol=1e-12, atol=1e-12)
    told = whole.bins()
    assert {len(told.count), len(told.confidence), len(told.accuracy)} == {BINS} == {15}
    assert sum(told.count) == 1000
    assert all(0 <= value <= 1 for values in (told.confidence, told.accuracy) for value in values)


def test_full_confidence_belongs_to_the_last_bin():
    scores = torch.tensor([[[1000.0, 0.0]]], dtype=torch.double)
    assert Reliability.of(scores, torch.tensor([[0]])).count.tolist() == [0.0] * (BINS - 1) + [1.0]
    assert Reliability.of(scores, torch.tensor([[1]])).expected_calibration_error() == 100.0


def test_pairing_takes_out_what_episodes_have_in_common():
    draw = torch.Generator().manual_seed(1)
    difficulty = 20 * torch.randn(500, generator=draw, dtype=torch.double)
    one = 60 + difficulty + torch.randn(500, generator=draw, dtype=torch.double)
    other = 59 + difficulty + torch.randn(500, generator=draw, dtype=torch.double)
    difference, interval = paired_difference(one, other)
    assert difference == pytest.approx(float(one.mean() - other.mean()), rel=1e-9)
    assert interval == pytest.approx(1.96 * np.std((one - other).numpy()) / 500**0.5, rel=1e-12)
    assert interval < 0.1 * mean_and_interval(one)[1]
    assert paired_difference(one, one) == (0.0, 0.0)
