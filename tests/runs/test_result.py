"""A result is whole, comparable and the same after a round through JSON, or it is refused."""

import json

import pytest
import torch

import small_runs
from e3bm.errors import CheckpointError
from e3bm.report import tables
from e3bm.runs.evaluation.metrics import METRICS
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.run import read_run
from e3bm.runs.result import Bins, read_result
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.train import run_train
from result_records import result_of, result_values

WHOLE = result_values("run", "MAML")
LABELS = ("setting", "batchnorm", "order", "episodes", "episodes_hash", "queries", "seed", "commit")


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("gone", ["missing", "none", "empty"])
def test_a_result_without_its_labels_is_refused(label, gone):
    values = {key: value for key, value in WHOLE.items() if key != label or gone != "missing"}
    if gone != "missing":
        values[label] = None if gone == "none" else ""
    with pytest.raises(CheckpointError, match=f"results.json: the result of MAML is not whole: {label}"):
        read_result(values, "results.json")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"setting": "semi"}, "setting"),
        ({"accuracy": 101.0}, "accuracy"),
        ({"accuracy": float("nan")}, "accuracy"),
        ({"ci": -1.0}, "ci"),
        ({"ways": 1}, "ways"),
        ({"colour": "red"}, "colour"),
        ({"reliability": {"confidence": [0.5], "accuracy": [0.5, 0.6], "count": [1.0]}}, "reliability"),
    ],
)
def test_what_cannot_be_is_refused(change, place):
    with pytest.raises(CheckpointError, match=f"is not whole: {place} cannot be"):
        read_result(WHOLE | change, "here")


def test_another_format_is_named():
    with pytest.raises(CheckpointError, match="a result of format 7; this e3bm reads format 1"):
        read_result(WHOLE | {"format": 7}, "here")


def test_a_result_comes_back_from_json_as_it_was():
    result = result_of("run", "MTL", shots=[1, 5], paired_with="MTL (a)", paired_difference=-0.1, paired_ci=0.2)
    told = json.loads(json.dumps(result.as_json()))
    assert told["nll"] == 1.012  # metrics are keys like others
    assert read_result(told, "here") == result
    assert result.shots == (1, 5)


@pytest.mark.parametrize(
    ("kept", "today"), [("MAML+++E3BM", "MAML++ + E3BM"), ("CAN+T+E3BM", "CAN+T+E3BM"), ("MAML++", "MAML++")]
)
def test_kept_names_are_those_of_today(kept, today):
    assert result_of("r", kept).method == today


def test_nothing_in_a_result_can_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        result_of("run", "MTL").accuracy = 99.0


def test_only_an_interval_that_leaves_zero_out_excludes_it():
    for difference, interval, expected in (
        (-0.5, 0.4, True),
        (0.4, 0.4, False),
        (0.1, None, False),
        (None, None, False),
    ):
        assert result_of("a", "b", paired_difference=difference, paired_ci=interval).excludes_zero is expected


def test_bins_of_several_models_are_pooled():
    one = Bins(confidence=(0.2, 0.9), accuracy=(0.5, 1.0), count=(2.0, 1.0))
    other = Bins(confidence=(0.4, 0.0), accuracy=(0.0, 0.0), count=(6.0, 0.0))
    pooled = Bins.pooled([one, other])
    assert pooled.count == (8.0, 1.0)
    assert pooled.confidence == pytest.approx((0.35, 0.9))
    assert pooled.accuracy == pytest.approx((0.125, 1.0))


def test_a_new_metric_is_one_function_and_one_column(small_data, tmp_path, monkeypatch):
    """Squared error of the probabilities: measured, averaged over seeds, kept, read back and shown."""

    def brier(scores, labels):
        right = torch.nn.functional.one_hot(labels, scores.shape[-1])
        return (scores.double().softmax(-1) - right).square().sum(-1).mean(-1)

    monkeypatch.setitem(METRICS, "brier", brier)
    monkeypatch.setitem(tables.METRIC_COLUMNS, "Brier", ("brier", 4))
    few = {"optimiser__steps": 2, "validation__every": 2}
    runs = [
        run_train(small_runs.settings(small_data, "mtl", seed=seed, **few), tmp_path / f"s{seed}").path
        for seed in (0, 1)
    ]
    results = run_test(runs, TestSettings(episodes=5))
    assert all(0 < result.metrics["brier"] < 2 for result in results)
    assert results[2].metrics["brier"] == pytest.approx((results[0].metrics["brier"] + results[1].metrics["brier"]) / 2)
    assert read_run(runs[0]).results[0].as_json()["brier"] == results[0].metrics["brier"]
    shown = tables.results_table(results)
    place = shown.columns.index("Brier")
    assert [row[place].text for row in shown.rows] == [f"{result.metrics['brier']:.4f}" for result in results]
