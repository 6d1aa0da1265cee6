"""Doubtful labels: the cosines of an example with the mean of its own class, without it, and with those of others."""

import numpy as np
import pytest
import torch

from e3bm.fewshot.trust import FEWEST_SHOTS, STEEPNESS, TrustPrior, log_odds_against, suspicious_labels


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def slow_log_odds(placed: np.ndarray, labels: np.ndarray, ways: int, weights: np.ndarray) -> tuple[list, list]:
    """Example by example, from the definition."""
    centred = placed - np.average(placed, axis=0, weights=weights)
    rows = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    against, looks_like = [], []
    for place, own in enumerate(labels):
        left = np.arange(len(labels)) != place
        means = [(rows * weights[:, None])[left & (labels == way)].sum(0) for way in range(ways)]
        found = [cosine(rows[place], mean) for mean in means]
        others = [value if way != own else -2 for way, value in enumerate(found)]
        looks_like.append(int(np.argmax(others)))
        against.append(STEEPNESS * (max(others) - found[own]))
    return against, looks_like


@pytest.mark.parametrize("weighted", [False, True])
def test_log_odds_are_what_their_definition_says(weighted):
    random = np.random.default_rng(3)
    placed, labels = random.normal(size=(13, 6)), np.array([0, 1, 2] * 4 + [2])
    weights = random.integers(1, 4, 13).astype(float) if weighted else np.ones(13)
    against, looks_like = log_odds_against(
        torch.from_numpy(placed), torch.from_numpy(labels), 3, torch.from_numpy(weights) if weighted else None
    )
    expected, classes = slow_log_odds(placed, labels, 3, weights)
    np.testing.assert_allclose(against.numpy(), expected, atol=1e-10)
    assert looks_like.tolist() == classes


def test_scale_and_origin_of_features_do_not_matter():
    random = np.random.default_rng(4)
    placed, labels = torch.from_numpy(random.normal(size=(8, 5))), torch.arange(2).repeat(4)
    torch.testing.assert_close(log_odds_against(3 * placed + 7, labels, 2), log_odds_against(placed, labels, 2))


def test_the_most_doubtful_label_comes_first_and_small_classes_are_not_judged():
    east, north = torch.tensor([1.0, 0.1]), torch.tensor([0.1, 1.0])
    placed = torch.stack([east] * 4 + [north] * 4 + [east, (east + 2 * north) / 2, -east]).double()
    labels = torch.tensor([0] * 4 + [1] * 4 + [1, 0, 2])
    found = suspicious_labels(placed, labels, 3, TrustPrior(known=(), suspicion=0.0))
    assert [(one.position, one.label, one.looks_like) for one in found] == [(8, 1, 0), (9, 0, 1)]
    assert found[0].odds > found[1].odds > 1
    few = suspicious_labels(placed[[0, 1, 8]], torch.tensor([0, 1, 1]), 2, TrustPrior(known=(), suspicion=0.0))
    assert FEWEST_SHOTS == 3
    assert few == []
