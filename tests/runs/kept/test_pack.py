"""Runs that are kept: small, complete, still testable, and their numbers recomputed from what is kept."""

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import small_runs
from e3bm.cli.main import main
from e3bm.data.episodes.class_index import ClassIndex
from e3bm.errors import CheckpointError
from e3bm.report.page import report
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.files import write_json
from e3bm.runs.folder.run import read_run
from e3bm.runs.kept import pack
from e3bm.runs.kept.entries import baseline_entry, entries, recomputed
from e3bm.runs.kept.group_files import difference, restored
from e3bm.runs.kept.pack import add_runs, as_folder, unpack
from e3bm.runs.kept.store import KeptResults, open_run
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.pretrain import run_folds, run_pretrain
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
    add_runs(runs, tmp_path / "results")
    return tmp_path / "results"


def test_everything_that_must_last_is_there_in_few_files(results):
    names = {str(path.relative_to(results)) for path in results.rglob("*") if path.is_file()}
    assert names == {
        "small/runs.jsonl.xz", "small/logs.jsonl.xz", "small/answers.npz", "small/weights.safetensors",
        "environments.json", "data_sets.jsonl", "manifest.json",
    }  # fmt: skip
    assert KeptResults(results).damages() == []
    assert [run.name for run in KeptResults(results).runs()] == [
        "backbone", "mtl+e3bm-s0", "mtl+e3bm-s1", "mtl-s0", "mtl-s1",
    ]  # fmt: skip


def test_a_kept_run_reads_as_its_folder_does(results, runs):
    for path in runs:
        folder, kept = read_run(path), open_run(results / "small" / path.name)
        assert (kept.kind, kept.settings, kept.settings_digest) == (
            folder.kind,
            folder.settings,
            folder.settings_digest,
        )
        assert kept.environment == folder.environment
        assert kept.results == folder.results
        assert [kept.answers(each) for each in kept.results] == [folder.answers(each) for each in folder.results]
        assert kept.test_log == folder.test_log
        assert kept.input_shape == folder.input_shape == (3, small_runs.SIZE)
        assert [line["step"] for line in kept.metrics] == [line["step"] for line in folder.metrics]


def test_a_run_comes_out_as_a_folder_that_is_the_same(results, runs, tmp_path):
    folders = unpack("small/mtl+e3bm-s1", results, tmp_path / "out")
    assert [folder.name for folder in folders] == ["mtl+e3bm-s1", "backbone"]  # with what it needs
    names = {str(path.relative_to(folders[0])) for path in folders[0].rglob("*") if path.is_file()}
    assert names == {
        "config.json", "environment.json", "metrics.jsonl", "schedules.jsonl", "results.json",
        "test_log.jsonl", "log.txt", "checkpoints/best.json", "checkpoints/best/weights.safetensors",
    }  # fmt: skip
    original = next(path for path in runs if path.name == "mtl+e3bm-s1")
    for name in ("environment.json", "results.json"):
        assert json.loads((folders[0] / name).read_text()) == json.loads((original / name).read_text())
    exact = Checkpoints(original).weights("best")
    small_runs.assert_equal(Checkpoints(folders[0]).weights("best"), exact)
    log = (folders[0] / "log.txt").read_text()
    assert "MTL+E3BM: mtl+e3bm-s1" in log
    assert "12 of 12 steps" in log
    assert "weights kept exactly" in log
    # What was unpacked goes in again without a change.
    again = tmp_path / "again"
    add_runs(folders, again)
    kept = KeptResults(results).group("small").record("mtl+e3bm-s1")
    twice = KeptResults(again).group("small").record("mtl+e3bm-s1")
    assert (twice.results, twice.metrics, twice.schedules) == (kept.results, kept.metrics, kept.schedules)


def test_a_finished_run_that_was_unpacked_is_not_trained_again(results, runs, small_data, tmp_path):
    run, backbone = unpack("small/mtl-s0", results, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    wanted = small_runs.pretrain_settings(small_data)
    run_pretrain(wanted, backbone)
    run_train(small_runs.settings(small_data, "mtl", seed=0, backbone__pretrained=runs[0]), run)
    assert {path: path.read_bytes() for path in before} == before
    assert not Checkpoints(backbone).has("last")
    (fold, _) = run_folds(wanted, backbone, 2)  # which it can have like any other
    assert read_run(fold.path).finished


def test_a_run_that_was_stopped_and_unpacked_begins_again(runs, small_data, tmp_path):
    """Its weights alone, without the optimiser's state, are no place to go on from."""
    longer = small_runs.settings(small_data, "mtl", seed=0, backbone__pretrained=runs[0], optimiser__steps=24)
    stopped = shutil.copytree(runs[1], tmp_path / "stopped")
    config = json.loads((stopped / "config.json").read_text())
    config["settings"]["optimiser"]["steps"] = 24
    config.pop("content_sha256")
    (stopped / "config.json").write_text(json.dumps(config))
    add_runs([runs[0], stopped], tmp_path / "results")
    run, _ = unpack("small/stopped", tmp_path / "results", tmp_path / "out")
    assert not read_run(run).finished
    run_train(longer, run)
    fresh = run_train(longer, tmp_path / "fresh").path
    small_runs.assert_equal(Checkpoints(run).weights("last"), Checkpoints(fresh).weights("last"))


def test_settings_and_episodes_can_be_verified(results):
    (index,) = map(ClassIndex.from_json, KeptResults(results).indexes())
    kept = KeptResults(results).runs()
    assert len(kept) == 5
    for run in kept:
        assert recomputed(run) == []
        for result in run.results:
            assert result.settings_digest == run.settings_digest
            assert index.digest == result.data_digest
            assert index.hash_of(result) == result.episodes_hash


def test_seeds_and_differences_come_out_as_in_the_test_itself(results, rows):
    found = entries(KeptResults(results).runs())
    entry = next(each for each in found if each.first.method == "MTL+E3BM")
    expected = next(row for row in rows if row.seeds and row.method == "MTL+E3BM")
    baseline = baseline_entry(entry, found)
    assert baseline is not None
    assert baseline.first.method == "MTL"
    assert baseline_entry(baseline, found) is None
    together = entry.together(baseline)
    assert together.seeds == (0, 1)
    assert together.paired_with == "mtl-s0, mtl-s1"
    for name in ("accuracy", "ci", "seed_std", "paired_difference", "paired_ci", "ece", "nll", "train_seconds"):
        assert getattr(together, name) == pytest.approx(getattr(expected, name), abs=1e-9)


def test_seeds_that_are_added_later_are_pooled_in_tables(runs, rows, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # no terminal: full words
    """Compactly, in a group of another name, a seed at a time: one row a system, the mean of its seeds."""
    kept = ["--results", str(tmp_path / "results"), "--group", "fc100"]
    for seed in range(2):
        chosen = [str(run) for run in runs if run.name.endswith(f"-s{seed}") or (seed == 0 and run.name == "backbone")]
        assert main(["results", "add", *chosen, "--compact", *kept]) == 0
        capsys.readouterr()
        shape = [f"--{name}={getattr(rows[0], name)}" for name in ("dataset", "ways", "shots")]
        assert main(["compare", *shape, *kept[:2], "--json"]) == 0
        found = {row["method"]: row for row in json.loads(capsys.readouterr().out)}
        assert len(found) == 3
        for name in ("MTL", "MTL+E3BM"):
            members = [row for row in rows if row.method == name and not row.seeds][: seed + 1]
            assert found[name]["accuracy"] == pytest.approx(sum(row.accuracy for row in members) / len(members))
            assert found[name]["seeds"] == ([0, 1] if seed else None)
    (pooled,) = [row for row in rows if row.seeds and row.method == "MTL+E3BM"]
    assert (found["MTL+E3BM"]["ci"], found["MTL+E3BM"]["seed_std"]) == pytest.approx((pooled.ci, pooled.seed_std))
    assert main(["compare", *shape, *kept[:2]]) == 0
    text = capsys.readouterr().out
    assert f"2 (std {pooled.seed_std:.2f})" in text
    assert "averaged over seeds episode by episode" in text


def test_kept_weights_answer_again_from_anywhere(results, rows, tmp_path, monkeypatch):
    shutil.copytree(results, tmp_path / "elsewhere" / "results")
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder = as_folder(Path("results/small/mtl-s0"))
    assert folder == Path("runs/small/mtl-s0")
    (again,) = run_test([folder], TEST)
    assert again.accuracy == next(row for row in rows if row.run == "mtl-s0").accuracy


def test_a_run_without_weights_cannot_be_tested(runs, rows, tmp_path):
    add_runs(runs[1:2], tmp_path / "results", compact=True)
    with pytest.raises(CheckpointError, match="kept without its weights and cannot be tested again"):
        as_folder(tmp_path / "results" / "small" / "mtl-s0")
    assert as_folder(tmp_path / "nowhere") == tmp_path / "nowhere"  # whoever opens it says so


def test_a_backbone_is_found_by_its_digest(results, runs, rows, tmp_path):
    """Not by the path that was typed when the run began: neither that folder nor its name are there any more."""
    shutil.copytree(runs[1], tmp_path / "moved" / "mtl-s0")
    hidden = runs[0].with_name("hidden")
    runs[0].rename(hidden)
    expected = next(row for row in rows if row.run == "mtl-s0").accuracy
    try:
        with pytest.raises(CheckpointError, match="neither there nor next to the run; name the folder that holds it"):
            run_test([tmp_path / "moved" / "mtl-s0"], TEST)
        for place in (hidden, hidden.parent, results, results / "small"):
            (again,) = run_test([tmp_path / "moved" / "mtl-s0"], TEST, places=[place])
            assert again.accuracy == expected
        shutil.copytree(hidden, tmp_path / "moved" / "another name")
        (again,) = run_test([tmp_path / "moved" / "mtl-s0"], TEST)
        assert again.accuracy == expected
    finally:
        hidden.rename(runs[0])


def test_rounded_weights_are_half_the_size_and_still_accepted(runs, rows, monkeypatch, tmp_path):
    monkeypatch.setattr(pack, "EXACT_ELEMENTS", 100)
    add_runs(runs[:2], tmp_path / "results")
    run, backbone = unpack("small/mtl-s0", tmp_path / "results", tmp_path / "out")
    kept, exact = Checkpoints(backbone).weights("best"), Checkpoints(runs[0]).weights("best")
    large = [name for name, value in exact.items() if value.is_floating_point() and value.numel() > 100]
    assert large
    assert all(kept[name].dtype == torch.half for name in large)
    assert all(torch.equal(kept[name], exact[name]) for name in exact if name not in large)
    # The training run names the exact backbone; with that one gone, the rounded one beside it is used.
    hidden = runs[0].with_name("hidden")
    runs[0].rename(hidden)
    try:
        (again,) = run_test([run], TEST)
    finally:
        hidden.rename(runs[0])
    assert again.accuracy == pytest.approx(next(row for row in rows if row.run == "mtl-s0").accuracy, abs=2.0)


def test_equal_tensors_are_stored_once(results, runs, tmp_path):
    size = (results / "small" / "weights.safetensors").stat().st_size
    copied = Path(shutil.copytree(runs[0], tmp_path / "copy"))
    add_runs([copied], results)
    assert (results / "small" / "weights.safetensors").stat().st_size < size + 5000  # names, no numbers
    group = KeptResults(results).group("small")
    one, other = group.record("backbone").weights, group.record("copy").weights
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_weights_that_are_too_large_stay_behind(runs, rows, tmp_path):
    add_runs(runs[:1], tmp_path, most_bytes=1000)
    (folder,) = unpack("small/backbone", tmp_path, tmp_path / "out")
    assert not (folder / "checkpoints").exists()
    assert "weights not kept" in (folder / "log.txt").read_text()


def test_long_logs_are_thinned_and_keep_every_validation(small_data, tmp_path, monkeypatch):
    run = run_train(small_runs.settings(small_data, "mtl", optimiser__steps=60), tmp_path / "long").path
    run_test([run], TEST)
    monkeypatch.setattr(pack, "KEPT_LINES", {"metrics": 3, "schedules": 3})
    add_runs([run], tmp_path / "results")
    before, after = read_run(run), open_run(tmp_path / "results" / "small" / "long")
    steps = lambda run, split: [line["step"] for line in run.metrics if line["split"] == split]
    assert steps(after, "val") == steps(before, "val")
    assert steps(after, "train") == [20, 40, 60]
    assert [line["step"] for line in after.schedules] == [20, 40, 60]


def test_an_untested_run_is_refused(small_data, tmp_path):
    run = run_train(small_runs.settings(small_data, "mtl", optimiser__steps=1), tmp_path / "run").path
    with pytest.raises(CheckpointError, match="has no results yet"):
        add_runs([run], tmp_path / "results")


def test_a_folder_that_is_in_the_way_is_not_touched(results, runs, tmp_path):
    shutil.copytree(runs[2], tmp_path / "out" / "mtl-s0")
    with pytest.raises(CheckpointError, match="holds another run of that name"):
        unpack("small/mtl-s0", results, tmp_path / "out")
    (tmp_path / "full" / "mtl-s0").mkdir(parents=True)
    (tmp_path / "full" / "mtl-s0" / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is not empty but does not hold a run"):
        unpack("small/mtl-s0", results, tmp_path / "full")


@pytest.mark.parametrize("file", ["runs.jsonl.xz", "logs.jsonl.xz", "answers.npz", "weights.safetensors"])
def test_damage_is_found_and_named(results, file, tmp_path):
    path = results / "small" / file
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert KeptResults(results).damages() == [f"small/{file} is not what was written"]
    with pytest.raises(CheckpointError, match=file):
        unpack("small/mtl-s0", results, tmp_path / "out")
    path.unlink()
    assert KeptResults(results).damages()[0].startswith("small/")


def test_what_is_not_kept_is_one_sentence(results, tmp_path):
    with pytest.raises(CheckpointError, match="keeps no run 'sib-s0'; `e3bm results list` names"):
        unpack("small/sib-s0", results, tmp_path / "out")
    with pytest.raises(CheckpointError, match="keeps no group 'large'; there are small"):
        unpack("large/mtl-s0", results, tmp_path / "out")


def test_a_report_can_be_made_of_kept_runs(results, tmp_path):
    page = report([results / "small"], tmp_path / "page").read_text(encoding="utf-8")
    assert "5 runs, 5 test results" in page
    assert "1 run, 1 test result" in report([results / "small" / "mtl-s0"], tmp_path / "one").read_text("utf-8")


def test_the_command_lists_adds_unpacks_and_checks(results, runs, tmp_path, capsys, monkeypatch):
    told = lambda *words: (main(["results", *words, "--results", str(results)]), capsys.readouterr())
    code, out = told("list", "small")
    assert (code, len(out.out.splitlines())) == (0, 5)
    assert told("check")[1].out == "5 runs: every file and every accuracy is what it was.\n"
    code, out = told("add", str(runs[1]), "--group", "study/tried", "--compact", "--json")
    assert json.loads(out.out) == ["study/tried/mtl-s0"]
    assert json.loads(told("list", "study/tried", "--json")[1].out) == ["study/tried/mtl-s0"]
    code, out = told("unpack", "study/tried/mtl-s0", "--out", str(tmp_path / "out"), "--json")
    assert json.loads(out.out) == [str(tmp_path / "out" / "mtl-s0")]
    monkeypatch.chdir(tmp_path)
    assert told("unpack", str(results / "small" / "mtl-s1"))[0] == 0
    assert read_run(Path("runs/small/mtl-s1")).results
    assert told("unpack")[0] == 2
    path = results / "small" / "runs.jsonl.xz"
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()).replace(b'"ci":', b'"ci":1', 1)))
    code, out = told("check")
    assert code == 1
    assert "small/runs.jsonl.xz is not what was written" in out.out
    with pytest.raises(CheckpointError, match=r"runs\.jsonl\.xz is not what was written: its sha256"):
        _ = KeptResults(results).runs()
    write_json(results / "manifest.json", {"format": 1, "sha256": KeptResults(results).digests()})
    assert "the answers give" in told("check")[1].out


@pytest.mark.parametrize(
    ("value", "base"),
    [
        ({"a": 1, "b": {"c": 2, "d": [1]}}, {"a": 1, "b": {"c": 3, "d": [1]}, "e": None}),
        ({}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": 1}),
        ({"a": 1.0, "b": True}, {"a": 1, "b": 1}),
    ],
)
def test_a_difference_gives_the_record_back(value, base):
    back = restored(json.loads(json.dumps(difference(value, base))), base)
    assert json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True)
