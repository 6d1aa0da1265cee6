"""Models on the same episodes: who is paired with whom, and what several seeds say together."""

import pytest
import torch

from e3bm.runs.evaluation import comparison
from e3bm.runs.evaluation.comparison import NOT_PAIRED, aggregate, pair
from e3bm.runs.evaluation.metrics import mean_and_interval, paired_difference


def result_of(method, group, baseline, seed, accuracy, episodes="same"):
    values = torch.tensor(accuracy, dtype=torch.double)
    row = {
        "method": method, "run": f"{method}-{seed}", "seed": seed, "episodes_hash": episodes, "accuracy": values.mean(),
        "nll": 1.0 + seed, "ece": 2.0 + seed, "seconds": 3.0, "epoch_accuracy": [1.0 + seed, 3.0], "rates": [0.1, 0.2],
        "weights": [0.5, 0.5], **NOT_PAIRED,
    }  # fmt: skip
    return comparison.Tested(row, values, group, baseline)


PLAIN = [[50.0, 60.0, 70.0, 80.0], [52.0, 58.0, 74.0, 80.0]]
E3BM = [[55.0, 61.0, 72.0, 80.0], [53.0, 60.0, 74.0, 85.0]]


def test_each_model_is_paired_with_its_own_plain_method_and_seed():
    plain = [result_of("MTL", "p", "p", seed, PLAIN[seed]) for seed in (0, 1)]
    better = [result_of("MTL+E3BM", "e", "p", seed, E3BM[seed]) for seed in (0, 1)]
    other = result_of("SIB", "s", "s", 0, PLAIN[1])
    pair([*plain, *better, other])
    for seed in (0, 1):
        assert better[seed].row["paired_with"] == f"MTL (MTL-{seed})"
        expected = paired_difference(better[seed].accuracy, plain[seed].accuracy)
        assert (better[seed].row["paired_difference"], better[seed].row["paired_ci"]) == expected
    assert plain[0].row["paired_with"] is None  # the first has nobody before it
    assert other.row["paired_with"] == "MTL (MTL-0)"  # no plain method of its own: the first model


def test_other_episodes_are_never_compared():
    one, other = result_of("MTL", "p", "p", 0, PLAIN[0]), result_of("MTL+E3BM", "e", "p", 0, E3BM[0], "other")
    pair([one, other])
    assert other.row["paired_with"] is None
    assert aggregate([one, other]) == []


def test_seeds_are_averaged_episode_by_episode():
    plain = [result_of("MTL", "p", "p", seed, PLAIN[seed]) for seed in (0, 1)]
    better = [result_of("MTL+E3BM", "e", "p", seed, E3BM[seed]) for seed in (0, 1)]
    rows = aggregate([*plain, *better])
    assert [row["method"] for row in rows] == ["MTL", "MTL+E3BM"]
    mean = torch.tensor(E3BM, dtype=torch.double).mean(0)
    assert (rows[1]["accuracy"], rows[1]["ci"]) == mean_and_interval(mean)
    expected = paired_difference(mean, torch.tensor(PLAIN, dtype=torch.double).mean(0))
    assert (rows[1]["paired_difference"], rows[1]["paired_ci"]) == expected
    assert rows[1]["paired_with"] == "MTL"
    assert rows[0]["paired_with"] is None
    assert rows[1]["seeds"] == [0, 1]
    assert rows[1]["nll"] == pytest.approx(1.5)
    assert rows[1]["seed_std"] == pytest.approx(float(torch.tensor([67.0, 68.0]).std()))
    assert rows[1]["epoch_accuracy"] == [1.5, 3.0]


def test_one_seed_alone_makes_no_group():
    assert aggregate([result_of("MTL", "p", "p", 0, PLAIN[0])]) == []
