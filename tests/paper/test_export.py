"""Runs that are kept: small, complete, still testable, and their numbers recomputed from what is kept."""

import json
import shutil

import pytest
import torch

import small_runs
from e3bm.data.episodes.class_index import ClassIndex
from e3bm.errors import CheckpointError
from e3bm.interruption import Interrupted, time_limit
from e3bm.paper import export
from e3bm.paper.collect import baseline_of, collect_runs, entries
from e3bm.paper.export import export_run
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train import run_train

TEST = TestSettings(episodes=40)


@pytest.fixture(scope="module")
def runs(small_data, tmp_path_factory):
    """Two seeds of MTL and MTL+E3BM on a backbone of their own, tested together."""
    folder = tmp_path_factory.mktemp("runs")
    backbone = run_pretrain(small_runs.pretrain_settings(small_data), folder / "backbone").path
    found = [backbone]
    for seed in range(2):
        for method in ("mtl", "mtl+e3bm"):
            settings = small_runs.settings(small_data, method, seed=seed, backbone__pretrained=backbone)
            found.append(run_train(settings, folder / f"{method}-s{seed}").path)
    return found


@pytest.fixture(scope="module")
def rows(runs):
    return run_test(runs, TEST)


@pytest.fixture
def results(runs, rows, tmp_path):
    for path in runs:
        export_run(path, tmp_path / "results")
    return tmp_path / "results"


def test_everything_that_must_last_is_there(results):
    kept = results / "small" / "mtl+e3bm-s1"
    names = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    assert names == {
        "config.json", "environment.json", "metrics.jsonl", "schedules.jsonl", "results.json", "answers.json",
        "test_log.jsonl", "log.txt", "checkpoints/best.json", "checkpoints/best/weights.safetensors",
    }  # fmt: skip
    log = (kept / "log.txt").read_text()
    assert "MTL+E3BM: mtl+e3bm-s1" in log
    assert "12 of 12 steps" in log
    assert "weights kept exactly" in log


def test_settings_and_episodes_can_be_verified(results):
    (index_path,) = (results / "data_sets").iterdir()
    index = ClassIndex.from_json(json.loads(index_path.read_text()))
    kept = collect_runs(results)
    assert len(kept) == 5
    for run in kept:
        for row in run.rows:
            assert row["settings_digest"] == RunFolder(run.path).settings_digest()
            assert index.digest == row["data_digest"]
            assert index.hash_of(row) == row["episodes_hash"]


def test_seeds_and_differences_come_out_as_in_the_test_itself(results, rows):
    found = entries(collect_runs(results))
    together = next(entry for entry in found if entry.rows[0]["method"] == "MTL+E3BM")
    expected = next(row for row in rows if row["seeds"] and row["method"] == "MTL+E3BM")
    numbers = together.numbers()
    assert numbers["seeds"] == [0, 1]
    for key in ("accuracy", "ci", "seed_std"):
        assert numbers[key] == pytest.approx(expected[key], abs=1e-4)
    baseline = baseline_of(together, found)
    assert baseline is not None
    assert baseline.rows[0]["method"] == "MTL"
    paired = together.paired(baseline)
    assert paired["paired_with"] == "mtl-s0, mtl-s1"
    for key in ("paired_difference", "paired_ci"):
        assert paired[key] == pytest.approx(expected[key], abs=1e-9)
    assert baseline_of(baseline, found) is None


def test_a_difference_is_over_the_seeds_that_both_have(results):
    shutil.rmtree(results / "small" / "mtl-s1")
    found = entries(collect_runs(results))
    together = next(entry for entry in found if entry.rows[0]["method"] == "MTL+E3BM")
    single = next(row for row in together.rows if row["seed"] == 0)
    paired = together.paired(baseline_of(together, found))
    assert paired["paired_difference"] == pytest.approx(single["paired_difference"], abs=1e-9)


def test_kept_weights_answer_again(results, rows, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(results, moved)
    (again,) = run_test([moved / "small" / "mtl-s0"], TEST)
    assert again["accuracy"] == next(row for row in rows if row["run"] == "mtl-s0")["accuracy"]


def test_rounded_weights_are_half_the_size_and_still_accepted(runs, rows, monkeypatch, tmp_path):
    monkeypatch.setattr(export, "EXACT_ELEMENTS", 100)
    for path in runs[:2]:
        export_run(path, tmp_path)
    kept = Checkpoints(tmp_path / "small" / "backbone").weights("best")
    exact = Checkpoints(runs[0]).weights("best")
    large = [name for name, value in exact.items() if value.is_floating_point() and value.numel() > 100]
    assert large
    assert all(kept[name].dtype == torch.half for name in large)
    assert all(torch.equal(kept[name], exact[name]) for name in exact if name not in large)
    # The training run names the exact backbone; with that one gone, the rounded one beside it is used.
    hidden = runs[0].with_name("hidden")
    runs[0].rename(hidden)
    try:
        (again,) = run_test([tmp_path / "small" / "mtl-s0"], TEST)
    finally:
        hidden.rename(runs[0])
    assert again["accuracy"] == pytest.approx(next(row for row in rows if row["run"] == "mtl-s0")["accuracy"], abs=2.0)


def test_weights_that_are_too_large_stay_behind(runs, rows, tmp_path):
    kept = export_run(runs[0], tmp_path, most_bytes=1000)
    assert not (kept / "checkpoints").exists()
    assert "weights not kept" in (kept / "log.txt").read_text()


def test_long_logs_are_thinned_and_keep_every_validation(small_data, tmp_path, monkeypatch):
    run = run_train(small_runs.settings(small_data, "mtl", optimiser__steps=60), tmp_path / "long").path
    run_test([run], TEST)
    monkeypatch.setattr(export, "KEPT_LINES", {"metrics": 3, "schedules": 3})
    kept = RunFolder(export_run(run, tmp_path / "results"))
    before, after = list(RunFolder(run).lines("metrics")), list(kept.lines("metrics"))
    steps = lambda lines, split: [line["step"] for line in lines if line["split"] == split]
    assert steps(after, "val") == steps(before, "val")
    assert steps(after, "train") == [20, 40, 60]
    assert [line["step"] for line in kept.lines("schedules")] == [20, 40, 60]


def test_an_unfinished_run_can_be_continued_from_what_was_kept(small_data, tmp_path):
    settings = small_runs.settings(small_data, "mtl+e3bm", optimiser__steps=8)
    whole = run_train(settings, tmp_path / "whole").path
    stopped = tmp_path / "stopped"
    with time_limit(0.0), pytest.raises(Interrupted):
        run_train(settings.but(validation__every=1), stopped)
    run_test([stopped], TEST)
    kept = export_run(stopped, tmp_path / "results")
    assert "1 of 8 steps" in (kept / "log.txt").read_text()
    run_train(settings.but(validation__every=1), kept)
    small_runs.assert_equal(Checkpoints(kept).weights("last"), Checkpoints(whole).weights("last"))


def test_an_untested_run_is_refused(small_data, tmp_path):
    run = run_train(small_runs.settings(small_data, "mtl", optimiser__steps=1), tmp_path / "run").path
    with pytest.raises(CheckpointError, match="has no results yet"):
        export_run(run, tmp_path / "results")
