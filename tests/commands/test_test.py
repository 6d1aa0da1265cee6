"""`e3bm test`: honest rows, any data set and episodes, and refusals only where the model cannot."""

import json

import pytest
import safetensors.torch

from e3bm.cli.main import main
from e3bm.runs.evaluation.metrics import BINS
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.run import read_run
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train import run_train
from small_runs import pretrain_settings, settings

KEYS = {
    "method", "dataset", "split", "accuracy", "ci", "nll", "ece", "episodes", "episodes_hash", "paired_with",
    "paired_difference", "paired_ci", "ways", "shots", "queries", "setting", "hyperprior", "batchnorm",
    "transductive_batchnorm", "order", "seed", "seeds", "commit", "seconds", "backbone", "epochs", "parameters",
    "epoch_accuracy", "reliability", "rates", "weights", "run", "checkpoint",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(small_data, tmp_path_factory):
    """One small run of each kind, trained once for all tests here."""
    folder = tmp_path_factory.mktemp("runs")
    few = {"optimiser__steps": 4, "validation__every": 2}
    for name, method, changes in (
        ("maml", "maml", {}),
        ("mtl", "mtl", {}),
        ("mtl-1", "mtl", {"seed": 1}),
        ("mtl+e3bm", "mtl+e3bm", {}),
        ("mtl+e3bm-1", "mtl+e3bm", {"seed": 1}),
        ("mtl any", "mtl+e3bm", {"method__start": "prototype"}),
        ("mtl flat", "mtl+e3bm", {"method__start": "prototype", "hyperprior__summary": "flat"}),
        ("mtl scaled", "mtl-scaled", {}),
        ("sib", "sib+e3bm", {"hyperprior__setting": "transductive"}),
        ("sib any", "sib", {"method__gradient_net": "equivariant"}),
    ):
        run_train(settings(small_data, method, **few, **changes), folder / name)
    grey = {"data__dataset": "small_grey", "data__recipe": "grey"}
    grey["backbone__pretrained"] = str(small_data / "backbone_grey.safetensors")
    run_train(settings(small_data, "mtl", method__start="prototype", **few, **grey), folder / "grey")
    run_pretrain(pretrain_settings(small_data, epochs=1), folder / "features")
    return folder


def rows_of(*paths, **changes):
    return run_test(list(paths), TestSettings(episodes=6).but(**changes))


def test_rows_carry_everything_that_makes_them_honest(runs, capsys):
    names = ["mtl", "mtl+e3bm", "maml", "sib", "mtl scaled", "features"]
    assert main(["test", *(str(runs / name) for name in names), "--episodes", "6", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 6
    for row, name in zip(rows, names, strict=True):
        assert row.keys() >= KEYS
        assert (row["run"], row["checkpoint"], row["split"]) == (name, "best", "test")
        assert (row["episodes"], row["ways"], row["shots"], row["queries"]) == (6, 3, 1, 2)
        assert 0 <= row["accuracy"] <= 100
        assert row["ci"] >= 0
        assert len(row["reliability"]["count"]) == BINS
        assert len(row["epoch_accuracy"]) == len(row["rates"]) == len(row["weights"]) == row["epochs"]
        assert row["parameters"] > 0
        assert read_run(runs / name).results[-1].as_json() == row
    assert len({row["episodes_hash"] for row in rows}) == 1
    by_name = dict(zip(names, rows, strict=True))
    assert by_name["mtl+e3bm"]["paired_with"] == "MTL (mtl)"
    assert by_name["mtl+e3bm"]["paired_difference"] == pytest.approx(
        by_name["mtl+e3bm"]["accuracy"] - by_name["mtl"]["accuracy"], abs=1e-9
    )
    assert by_name["mtl+e3bm"]["hyperprior"] == "lstm inductive"
    labels = lambda name: tuple(by_name[name][key] for key in ("setting", "batchnorm", "transductive_batchnorm"))
    assert labels("maml") == ("inductive", "batch", True)  # in a column of its own
    assert labels("sib") == ("transductive", "running", False)
    assert labels("mtl scaled") == labels("features") == ("inductive", "running", False)


def test_a_difference_is_stated_once_whatever_the_order(runs):
    e3bm, plain = rows_of(runs / "mtl+e3bm", runs / "mtl")
    assert (e3bm.paired_with, plain.paired_with) == ("MTL (mtl)", None)
    again, first = reversed(rows_of(runs / "mtl", runs / "mtl+e3bm"))
    assert (again.paired_difference, first.paired_with) == (e3bm.paired_difference, None)


def test_uneven_queries(runs, capsys):
    """The same tasks in another mixture of queries: a list of its own, and every query counts alike."""
    names = ["sib any", "features"]
    words = [*(str(runs / name) for name in names), "--ways", "3", "--shots", "1", "--queries", "2"]
    assert main(["test", *words, "--query-shares", "2", "--episodes", "30", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    even = rows_of(*(runs / name for name in names), episodes=30, ways=3, shots=1, queries=2)
    for row, name, known in zip(rows, names, even, strict=True):
        assert (row["query_shares"], row["queries"], known.query_shares) == (2, 2, None)
        assert row["episodes_hash"] != known.episodes_hash
        run = read_run(runs / name)
        kept = {result.episodes_hash: result for result in run.results}[row["episodes_hash"]]
        assert row["accuracy"] == pytest.approx(100 * sum(run.answers(kept)) / (30 * 3 * 2))
    assert rows[0]["episodes_hash"] == rows[1]["episodes_hash"]
    assert main(["test", *words, "--query-shares", "2", "--episodes", "6"]) == 0
    assert "3-way 1-shot, Dirichlet(2) queries, Q=2" in capsys.readouterr().out
    assert main(["test", *words[:-1], "4", "--query-shares", "2", "--episodes", "6"]) == 2
    assert "has 10 images, but 1 shots and 12 queries that may all be of one class need 13" in capsys.readouterr().err


def test_the_usual_number_of_episodes():
    assert (TestSettings().count, TestSettings(query_shares=2).count, TestSettings(episodes=7).count) == (600, 1000, 7)


def test_the_table_is_for_people(runs, capsys):
    assert main(["test", str(runs / "mtl"), str(runs / "mtl+e3bm"), "--episodes", "6"]) == 0
    told = capsys.readouterr().out
    assert "MTL+E3BM" in told
    assert "accuracy" in told.lower()


def test_opening_the_test_split_is_logged(runs):
    log = lambda: read_run(runs / "mtl scaled").test_log
    before = len(log())
    (row,) = rows_of(runs / "mtl scaled")
    rows_of(runs / "mtl scaled", split="val")  # no opening of the test split
    (line,) = log()[before:]
    assert (line["dataset"], line["episodes"], line["episodes_hash"]) == ("small", 6, row.episodes_hash)
    assert line["time"].endswith("Z")


def test_testing_again_gives_the_same(runs):
    clock = ("seconds",)
    first, second = ({k: v for k, v in rows_of(runs / "sib")[0].as_json().items() if k not in clock} for _ in range(2))
    assert first == second
    assert rows_of(runs / "sib", seed=99)[0].episodes_hash != first["episodes_hash"]


def test_seeds_are_taken_together(runs):
    rows = rows_of(*(runs / name for name in ("mtl", "mtl-1", "mtl+e3bm", "mtl+e3bm-1")))
    assert len(rows) == 6
    together = rows[5]
    assert (together.method, together.seeds, together.seed) == ("MTL+E3BM", (0, 1), "mean")
    assert together.accuracy == pytest.approx((rows[2].accuracy + rows[3].accuracy) / 2)
    assert together.paired_with == "MTL"
    assert together.paired_difference == pytest.approx(together.accuracy - rows[4].accuracy)
    assert rows[3].paired_with == "MTL (mtl-1)"  # its own seed
    assert together.as_json().keys() >= KEYS


@pytest.mark.parametrize("name", ["mtl any", "sib any", "features"])
@pytest.mark.parametrize("changes", [{"ways": 5}, {"ways": 2, "shots": 5, "queries": 3}, {"shots": (1, 4)}])
def test_models_that_can_take_any_episodes(runs, name, changes):
    (row,) = rows_of(runs / name, **changes)
    for key, value in changes.items():
        assert getattr(row, key) == value


@pytest.mark.parametrize("name", ["maml", "mtl", "sib", "mtl scaled"])
def test_other_shots_and_queries_are_no_problem_for_anyone(runs, name):
    (row,) = rows_of(runs / name, shots=3, queries=1)
    assert (row.shots, row.queries) == (3, 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("maml", "made for 3 ways because of its linear head, but the tasks have 5"),
        ("mtl", "made for 3 ways because of its learned initialiser, but the tasks have 5"),
        ("sib", "made for 3 ways because of its published synthetic-gradient net, but the tasks have 5"),
        ("mtl flat", "flat summary is made for 3 ways, but the tasks have 5"),
    ],
)
def test_models_that_cannot_say_why(runs, capsys, name, reason):
    assert main(["test", str(runs / name), "--episodes", "6", "--ways", "5"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert reason in told.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--ways", "9"], "9 ways need 9 classes, found 7"),
        (["--shots", "9"], "ask for fewer or add images"),
        (["--dataset", "nowhere"], "There is no data set 'nowhere'"),
        (["--episodes", "1"], "greater than or equal to 2"),
    ],
)
def test_episodes_that_cannot_be_made(runs, capsys, words, reason):
    assert main(["test", str(runs / "mtl any"), "--episodes", "6", *words]) == 2
    assert reason in capsys.readouterr().err


def test_another_data_set_with_other_channels(runs):
    """A model of colour pictures sees grey ones as three equal channels, a model of grey ones the mean of colours."""
    (row,) = rows_of(runs / "mtl any", dataset="small_grey")
    assert (row.dataset, row.trained_on, row.seen_classes) == ("small_grey", "small", 0)
    (row,) = rows_of(runs / "grey", dataset="small")
    assert (row.dataset, row.trained_on) == ("small", "small_grey")
    (row,) = rows_of(runs / "maml", dataset="small_grey")
    assert row.dataset == "small_grey"


def test_runs_that_are_not_there(runs, tmp_path, capsys):
    assert main(["test", str(tmp_path / "none")]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_damaged_best_checkpoint_is_named(small_data, tmp_path, capsys):
    run = run_train(settings(small_data, "mtl", optimiser__steps=2), tmp_path / "run")
    (path,) = run.path.glob("checkpoints/*/weights.safetensors")
    safetensors.torch.save_file({}, path)
    assert main(["test", str(run.path), "--episodes", "6"]) == 2
    assert f"{path} is damaged" in capsys.readouterr().err
