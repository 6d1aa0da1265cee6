"""Runs and results as former versions wrote them are read in the form of today; their digest stays that of the file."""

import pytest

from e3bm.errors import SettingsError
from e3bm.runs.folder.answers import keep_result
from e3bm.runs.folder.files import read_json, write_json
from e3bm.runs.folder.run import read_run
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.folder.upgrade import VERSION, upgraded, upgraded_backbone
from e3bm.runs.settings import PretrainSettings, TrainSettings
from e3bm.settings import digest_of, read_settings
from result_records import result_values

FORMER = {
    "method": {
        "name": "sib", "epochs": 3, "rate": 0.001, "order": "second", "test_epochs": None, "head": "linear",
        "start": "learned", "temperature": 8.0, "feature_length": None, "gradient_net": "equivariant",
        "loss_scale": "ways", "checkpointed": False,
    },
    "backbone": {"name": "resnet12", "width": 0.5, "levelled": True, "pretrained": "runs/old", "adapt": "frozen"},
    "optimiser": {"theta": 0.01, "gradient_net": 0.25},
}  # fmt: skip


def test_a_training_of_version_1():
    config = {"kind": "train", "settings": FORMER, "inputs": {"data set": "abc"}}
    found = upgraded(config)
    assert found["version"] == VERSION
    settings = read_settings(TrainSettings, found["settings"])
    assert settings.backbone.whitened
    assert settings.backbone.title == "resnet12 x0.5 whitened"
    assert (settings.method.gradient_net, settings.method.learning_rates()) == ("equivariant", {"gradient_net": 0.25})
    assert "levelled" in config["settings"]["backbone"]  # what was given is not changed
    assert upgraded(found) == found


@pytest.mark.parametrize(("method", "own"), [("mtl", "feature_length"), ("maml", "loss_scale")])
def test_foreign_options_of_the_former_common_list_go(method, own):
    adapt = {"adapt": "full"} if method == "maml" else {}
    settings = FORMER | {"method": FORMER["method"] | {"name": method}, "backbone": FORMER["backbone"] | adapt}
    found = read_settings(TrainSettings, upgraded({"kind": "train", "settings": settings})["settings"])
    assert found.method.name == method
    assert own in found.method.model_dump()
    assert "gradient_net" not in found.method.model_dump()


@pytest.mark.parametrize("part", ["method", "optimiser"])
@pytest.mark.parametrize("value", ["mtl", 3, None, ["mtl"]])
def test_settings_that_are_not_ours_are_refused_by_whoever_reads_them(part, value):
    found = upgraded({"kind": "train", "settings": {part: value}})
    assert found["settings"][part] == value
    with pytest.raises(SettingsError, match=part):
        read_settings(TrainSettings, found["settings"])


def test_a_pretraining_and_a_model_file_that_said_levelled():
    found = upgraded({"kind": "pretrain", "settings": {"backbone": {"name": "conv4", "levelled": True}, "epochs": 2}})
    assert read_settings(PretrainSettings, found["settings"]).backbone.whitened
    assert upgraded_backbone({"name": "conv4", "levelled": False}) == {"name": "conv4", "whitened": False}


def test_a_former_run_is_read_continued_and_keeps_its_digest(tmp_path):
    run = RunFolder(tmp_path / "run")
    wanted = read_settings(TrainSettings, upgraded({"kind": "train", "settings": FORMER})["settings"])
    run.create("train", wanted, {})
    config = read_json(run.path / "config.json")
    write_json(run.path / "config.json", {"kind": "train", "settings": FORMER, "inputs": {}})
    former = result_values("run", "SIB", backbone="resnet12 x0.5 levelled")
    write_json(run.path / "results.json", [former])
    found = read_run(run.path)
    assert found.settings == wanted
    assert found.settings_digest == digest_of(FORMER) != digest_of(config["settings"])
    assert found.results[0].backbone == "resnet12 x0.5 whitened"
    assert found.input_shape is None
    run.create("train", wanted, {})  # the same run, whatever version began it
    keep_result(run.path, found.results[0].but(accuracy=50.0))
    assert [each.accuracy for each in read_run(run.path).results] == [50.0]
