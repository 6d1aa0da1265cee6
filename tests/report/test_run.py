"""Runs are read in one place: strictly for work, with a sentence for each thing that is missing for reports."""

import json
from pathlib import Path

import pytest

from e3bm.errors import CheckpointError, E3BMError, SettingsError
from e3bm.runs.folder.run import find_run_folders, read_run, read_what_is_there
from result_records import result_values


def test_a_whole_run_is_read(make_run):
    run = read_what_is_there(make_run("whole", e3bm=True))
    assert (run.name, run.kind, run.title, run.family, run.alone) == ("whole", "train", "MTL+E3BM", "mtl", False)
    assert run.missing == ()
    assert run.progress == (200, 200)
    assert run.best is not None
    assert run.best["step"] == 160
    assert len(run.curve("val", "accuracy")) == 10
    assert len(run.schedules) == 20
    assert run.setting("hyperprior.rate") == "generated"
    assert run.setting("hyperprior.no_such", "x") == "x"
    assert run.seconds == pytest.approx(200 * 0.1 + 10)


def test_each_missing_or_damaged_file_becomes_a_sentence(make_run):
    path = make_run("partial")
    (path / "results.json").unlink()
    (path / "schedules.jsonl").unlink()
    (path / "environment.json").write_text("{")
    run = read_what_is_there(path)
    assert run.missing == (
        "environment.json is empty or damaged",
        "schedules.jsonl is missing",
        "results.json is missing",
    )
    assert run.results == run.schedules == ()
    assert run.metrics


def test_odd_content_is_passed_over(make_run):
    path = make_run("odd")
    lines = [
        "5",
        '{"step": 1, "split": "val", "accuracy": NaN}',
        '{"step": true, "split": "val", "accuracy": 1}',
        "[1]",
    ]
    (path / "metrics.jsonl").write_text(
        "\n".join(lines) + '\n{"step": 3, "split": "val", "accuracy": 50}\n{"step": 4, "spl'
    )
    rows = ["x", {"method": "MTL"}, result_values("odd", "MTL")]
    (path / "results.json").write_text(json.dumps(rows))
    (path / "schedules.jsonl").write_bytes(b"\xff\xfe\x00")
    (path / "config.json").write_text('{"kind": "train", "settings": {"method": "odd", "no_such": 1}}')
    run = read_what_is_there(path)
    assert run.curve("val", "accuracy") == [(3, 50)]
    assert run.best == {"step": 3, "split": "val", "accuracy": 50}
    assert [result.run for result in run.results] == ["odd"]
    assert run.title == "odd"  # settings of another version: the folder's name will do
    assert run.setting("method.name") is None
    assert run.missing[0] == "schedules.jsonl is empty or damaged"
    assert run.missing[1].startswith("Setting method: it must be a valid dictionary")
    assert "the result of MTL is not whole: setting is missing. Test that run again" in run.missing[2]


def test_pretraining_counts_whole_epochs(pretrained: Path):
    run = read_what_is_there(pretrained)
    assert run.progress == (3, 3)
    assert run.missing == ()  # such runs have neither schedules nor test results
    lines = (pretrained / "metrics.jsonl").read_text().splitlines()
    (pretrained / "metrics.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    assert read_what_is_there(pretrained).progress == (2, 3)


def test_a_folder_of_runs_stands_for_all_of_them(make_run, tmp_path: Path):
    first, second = make_run("group/a"), make_run("group/deeper/b")
    (first / "inside").mkdir()
    (first / "inside" / "config.json").write_text("{}")
    assert find_run_folders([tmp_path / "group"]) == [first, second]
    assert find_run_folders([second, tmp_path / "group"]) == [second, first]


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="at least one run folder"):
        find_run_folders([])
    with pytest.raises(CheckpointError, match="There is no run folder"):
        find_run_folders([tmp_path / "nowhere"])
    with pytest.raises(CheckpointError, match="holds no run"):
        find_run_folders([tmp_path])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"kind": "odd", "settings": {}}', "of a run of the unknown kind 'odd'"),
        ('{"kind": "train", "settings": {"no_such": 1}}', "Setting no_such: there is no such setting"),
        ('{"kind": "train", "settings": {}, "version": 99}', "a run of version 99"),
        ("{", "is damaged"),
    ],
)
def test_work_is_refused_where_a_report_goes_on(make_run, content, sentence):
    path = make_run("wrong")
    (path / "config.json").write_text(content)
    with pytest.raises(E3BMError, match=sentence):
        read_run(path)
    assert read_what_is_there(path).missing


def test_a_result_knows_its_system_and_baseline(make_run):
    plain, better = (read_run(make_run(name, e3bm=e3bm)) for name, e3bm in (("plain", False), ("better", True)))
    assert plain.results[0].system == plain.results[0].baseline == better.results[0].baseline == plain.system
    assert better.results[0].system == better.system != plain.system
    again = read_run(make_run("seed", seed=5))
    assert again.system == plain.system
