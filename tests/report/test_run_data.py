from pathlib import Path

import pytest

from e3bm.errors import CheckpointError, SettingsError
from e3bm.report.run_data import find_runs, read_run


def test_a_whole_run_is_read(make_run):
    run = read_run(make_run("whole", e3bm=True))
    assert (run.name, run.kind, run.title, run.family, run.plain) == ("whole", "train", "MTL+E3BM", "mtl", False)
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
    run = read_run(path)
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
    (path / "results.json").write_text('["x", {"method": "MTL"}]')
    (path / "schedules.jsonl").write_bytes(b"\xff\xfe\x00")
    (path / "config.json").write_text('{"kind": "train", "settings": {"method": "odd", "no_such": 1}}')
    run = read_run(path)
    assert run.curve("val", "accuracy") == [(3, 50)]
    assert run.best == {"step": 3, "split": "val", "accuracy": 50}
    assert run.results == ({"method": "MTL"},)
    assert run.title == "odd"  # settings of another version: the folder's name will do
    assert run.setting("method.name") is None
    assert run.missing == ("schedules.jsonl is empty or damaged",)


def test_pretraining_counts_whole_epochs(pretrained: Path):
    run = read_run(pretrained)
    assert run.progress == (3, 3)
    assert run.missing == ()  # such runs have neither schedules nor test results
    lines = (pretrained / "metrics.jsonl").read_text().splitlines()
    (pretrained / "metrics.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    assert read_run(pretrained).progress == (2, 3)


def test_a_folder_of_runs_stands_for_all_of_them(make_run, tmp_path: Path):
    first, second = make_run("group/a"), make_run("group/deeper/b")
    (first / "inside").mkdir()
    (first / "inside" / "config.json").write_text("{}")
    assert find_runs([tmp_path / "group"]) == [first, second]
    assert find_runs([second, tmp_path / "group"]) == [second, first]


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="at least one run folder"):
        find_runs([])
    with pytest.raises(CheckpointError, match="There is no run folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(CheckpointError, match="holds no run"):
        find_runs([tmp_path])
