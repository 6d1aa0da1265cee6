"""Models on the same episodes: who is paired with whom, and what several seeds say together."""

from dataclasses import replace

import pytest
import torch

from e3bm.errors import SettingsError
from e3bm.runs.evaluation.comparison import RULES, Measured, pair, seeds_together, together
from e3bm.runs.evaluation.metrics import mean_and_interval, paired_difference
from e3bm.runs.result import Result
from result_records import result_of


def measured(method, system, baseline, seed, accuracy, episodes="same", **changes):
    values = torch.tensor(accuracy, dtype=torch.double)
    result = result_of(
        f"{method}-{seed}", method, seed=seed, episodes_hash=episodes, accuracy=float(values.mean()), nll=1.0 + seed,
        ece=2.0 + seed, seconds=3.0 + seed, train_seconds=10.0 + seed, epochs=2, epoch_accuracy=[1.0 + seed, 3.0],
        rates=[0.1, 0.2], weights=[0.5, 0.5], system=system, baseline=baseline, settings_digest=f"digest {seed}",
        reliability={"confidence": [0.2, 0.8], "accuracy": [0.1 + seed, 0.5], "count": [1.0, 3.0]}, **changes,
    )  # fmt: skip
    return Measured(result, values)


PLAIN = [[50.0, 60.0, 70.0, 80.0], [52.0, 58.0, 74.0, 80.0]]
E3BM = [[55.0, 61.0, 72.0, 80.0], [53.0, 60.0, 74.0, 85.0]]


def both():
    plain = [measured("MTL", "p", "p", seed, PLAIN[seed]) for seed in (0, 1)]
    return plain, [measured("MTL+E3BM", "e", "p", seed, E3BM[seed]) for seed in (0, 1)]


def test_each_model_is_paired_with_its_own_plain_method_and_seed():
    plain, better = both()
    other = measured("SIB", "s", "s", 0, PLAIN[1])
    found = [each.result for each in pair([*plain, *better, other])]
    for seed in (0, 1):
        assert found[2 + seed].paired_with == f"MTL (MTL-{seed})"
        expected = paired_difference(better[seed].accuracy, plain[seed].accuracy)
        assert (found[2 + seed].paired_difference, found[2 + seed].paired_ci) == expected
    assert found[0].paired_with is None  # the first has nobody before it
    assert found[4].paired_with == "MTL (MTL-0)"  # no plain method of its own: the first model


def test_other_episodes_are_never_compared():
    one, other = measured("MTL", "p", "p", 0, PLAIN[0]), measured("MTL+E3BM", "e", "p", 0, E3BM[0], "other")
    assert [each.result.paired_with for each in pair([one, other])] == [None, None]
    assert seeds_together([one, other]) == []


def test_seeds_are_averaged_episode_by_episode():
    plain, better = both()
    rows = seeds_together([*plain, *better])
    assert [row.method for row in rows] == ["MTL", "MTL+E3BM"]
    mean = torch.tensor(E3BM, dtype=torch.double).mean(0)
    assert (rows[1].accuracy, rows[1].ci) == mean_and_interval(mean)
    expected = paired_difference(mean, torch.tensor(PLAIN, dtype=torch.double).mean(0))
    assert (rows[1].paired_difference, rows[1].paired_ci) == expected
    assert rows[1].paired_with == "MTL"
    assert rows[0].paired_with is None
    assert (rows[1].seed, rows[1].seeds) == ("mean", (0, 1))
    assert rows[1].nll == pytest.approx(1.5)
    assert rows[1].seed_std == pytest.approx(0.5**0.5)
    assert rows[1].epoch_accuracy == (1.5, 3.0)


def test_nothing_of_several_seeds_is_that_of_the_first():
    _, better = both()
    row = together(better)
    assert row.train_seconds == 10.5
    assert row.seconds == 3.5
    assert row.ece == 2.5
    assert row.run == "MTL+E3BM-0, MTL+E3BM-1"
    assert row.settings_digest == "digest 0, digest 1"
    assert row.reliability.count == (2.0, 6.0)
    assert row.reliability.accuracy == pytest.approx((0.6, 0.5))


def test_every_field_of_a_result_has_a_rule_for_several_seeds():
    computed = {"accuracy", "ci", "seed", "seeds", "seed_std", "paired_with", "paired_difference", "paired_ci"}
    assert RULES.keys() | computed == Result.model_fields.keys()
    assert not RULES.keys() & computed


def test_seeds_that_differ_in_what_they_must_share_are_refused():
    one, other = measured("MTL", "p", "p", 0, PLAIN[0]), measured("MTL", "p", "p", 1, PLAIN[1], parameters=7)
    with pytest.raises(SettingsError, match="differ in their parameters"):
        together([one, other])


def test_a_difference_is_over_the_seeds_that_both_have():
    plain, better = both()
    row = together(better, plain[1:])
    assert (row.paired_difference, row.paired_ci) == paired_difference(better[1].accuracy, plain[1].accuracy)
    assert row.seeds == (0, 1)


def test_without_answers_the_seeds_own_intervals_stand():
    _, better = both()
    row = together([replace(each, accuracy=None) for each in better])
    assert row.accuracy == pytest.approx((67.0 + 68.0) / 2)
    assert row.ci == pytest.approx(0.71)
    assert row.paired_difference is None


def test_one_seed_alone_makes_no_group():
    assert seeds_together([measured("MTL", "p", "p", 0, PLAIN[0])]) == []
