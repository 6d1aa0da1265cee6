"""Run folders: begun, continued, refused with the reason, and never losing a line."""

import json

import pytest

from e3bm.errors import CheckpointError
from e3bm.runs.folder.answers import keep_result
from e3bm.runs.folder.files import read_json, write_json
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.folder.upgrade import VERSION
from e3bm.runs.result import read_result
from e3bm.runs.settings import PretrainSettings, TrainSettings
from result_records import result_of

INPUTS = {"data set": "aaa", "pre-trained backbone": "bbb"}


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create("train", TrainSettings(), INPUTS)
    return folder


def test_a_run_says_what_it_is_and_where_it_happened(run):
    config = run.config()
    assert config["kind"] == "train"
    assert config["inputs"] == INPUTS
    assert TrainSettings.model_validate(config["settings"]) == TrainSettings()
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment.keys() >= {"python", "platform", "processor", "cores", "packages", "commit", "command"}
    assert environment["packages"]["torch"].startswith("2.")


def test_the_same_settings_continue(run):
    before = (run.path / "config.json").read_bytes()
    run.create("train", TrainSettings(), INPUTS)
    assert (run.path / "config.json").read_bytes() == before


def test_other_settings_are_refused_with_the_difference(run):
    changed = TrainSettings().but(method__epochs=7, optimiser__clip=None)
    with pytest.raises(CheckpointError) as refusal:
        run.create("train", changed, INPUTS)
    told = str(refusal.value)
    assert "method.epochs was 20, now 7; optimiser.clip was 10.0, now None" in told
    assert "another --run folder" in told


def test_another_method_is_named_instead_of_all_its_settings(run):
    other = TrainSettings.model_validate({"method": {"name": "sib"}})
    with pytest.raises(CheckpointError, match="holds a run of the method 'mtl', not 'sib'; give another --run folder"):
        run.create("train", other, INPUTS)


def test_a_run_of_another_kind_is_refused(run):
    with pytest.raises(CheckpointError, match="holds a train run, not a pretrain run"):
        run.create("pretrain", PretrainSettings(), INPUTS)


@pytest.mark.parametrize("name", INPUTS)
def test_other_data_or_weights_under_the_same_name_are_refused(run, name):
    with pytest.raises(CheckpointError, match=f"its {name} changed"):
        run.create("train", TrainSettings(), INPUTS | {name: "changed"})


def test_settings_that_came_later_have_their_default(run):
    config = run.config()
    del config["settings"]["optimiser"]["base_rate"]
    del config["inputs"]
    write_json(run.path / "config.json", config)
    run.create("train", TrainSettings(), INPUTS)
    with pytest.raises(CheckpointError, match=r"optimiser\.base_rate was 0\.001, now 0\.5"):
        run.create("train", TrainSettings().but(optimiser__base_rate=0.5), INPUTS)


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "train"}'])
def test_a_damaged_config_is_named(run, content):
    (run.path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
        run.create("train", TrainSettings(), INPUTS)


def test_a_foreign_folder_is_refused_and_untouched(tmp_path):
    (tmp_path / "holiday.jpg").write_text("mine")
    with pytest.raises(CheckpointError, match=r"not empty \(it has holiday\.jpg\) but does not hold a run"):
        RunFolder(tmp_path).create("train", TrainSettings(), INPUTS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_file_in_place_of_the_folder_is_a_sentence(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match="Cannot write in"):
        RunFolder(tmp_path / "run").create("train", TrainSettings(), INPUTS)


def test_a_run_killed_before_it_began_begins_again(tmp_path):
    (tmp_path / "environment.json").write_text("{}")
    (tmp_path / ".config.json.1a2b.partial").write_text("{")
    run = RunFolder(tmp_path)
    run.create("train", TrainSettings(), INPUTS)
    assert run.exists
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.json", "environment.json"]


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(CheckpointError, match="holds no run"):
        RunFolder(tmp_path).config()


def test_lines_are_read_back_and_shown_to_mirrors(tmp_path):
    seen = []
    run = RunFolder(tmp_path, [lambda name, record: seen.append((name, record["step"]))])
    for step in (1, 2):
        run.append("metrics", {"step": step, "loss": 1 / 3})
    assert list(run.lines("metrics")) == [{"step": 1, "loss": 1 / 3}, {"step": 2, "loss": 1 / 3}]
    assert seen == [("metrics", 1), ("metrics", 2)]
    assert list(run.lines("schedules")) == []


def test_a_line_cut_short_costs_only_itself(tmp_path):
    run = RunFolder(tmp_path)
    run.append("test_log", {"step": 1})
    with (tmp_path / "test_log.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    run.append("test_log", {"step": 3})
    run.append("test_log", {"step": 4})
    assert [line["step"] for line in run.lines("test_log")] == [1, 3, 4]


def test_rewinding_drops_what_is_taken_again(tmp_path):
    run = RunFolder(tmp_path)
    for step in (10, 20, 20, 21, 30):
        run.append("metrics", {"step": step, "loss": 0.1})
        run.append("test_log", {"step": step})
    run.rewind(20)
    assert [line["step"] for line in run.lines("metrics")] == [10, 20, 20]
    assert len(list(run.lines("test_log"))) == 5
    run.rewind(0)
    assert list(run.lines("metrics")) == []


def test_results_on_the_same_episodes_replace_one_another(tmp_path):
    run = RunFolder(tmp_path)
    first = result_of("run", "MTL", accuracy=1.0)
    for changed in (first, first.but(split="val"), first.but(accuracy=2.0)):
        keep_result(run.path, changed)
    kept = [read_result(row, "here") for row in read_json(tmp_path / "results.json")]
    assert [(each.split, each.accuracy) for each in kept] == [("val", 1.0), ("test", 2.0)]


def test_a_newer_version_is_refused(run):
    write_json(run.path / "config.json", run.config() | {"version": VERSION + 1})
    with pytest.raises(CheckpointError, match="this e3bm reads up to"):
        run.create("train", TrainSettings(), INPUTS)
