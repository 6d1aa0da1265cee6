"""The backbone of a run for photos: without its training data, from its folder or from kept results."""

import shutil

import pytest

import small_runs
from e3bm.errors import CheckpointError, DataError, SettingsError
from e3bm.fewshot.networks.choice import choose_backbone
from e3bm.runs.evaluation.ensemble import make_ensemble
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.files import read_json, write_json
from e3bm.runs.kept.pack import add_runs
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train import run_train


@pytest.fixture
def runs(small_data, tmp_path):
    """A pre-training and a run on top of it, whose data are gone."""
    small_runs.flags(small_data, "mtl")  # writes the data
    data = tmp_path / "data"
    shutil.copytree(small_data / "small", data / "small")
    changes = {"data__folder": str(data), "optimiser__steps": 2}
    run_pretrain(small_runs.pretrain_settings(small_data, epochs=1, data__folder=str(data)), tmp_path / "backbone")
    wanted = small_runs.settings(small_data, "mtl", backbone__pretrained=tmp_path / "backbone", **changes)
    run_train(wanted, tmp_path / "mtl")
    run_test([tmp_path / "backbone", tmp_path / "mtl"], TestSettings(episodes=4))
    add_runs([tmp_path / "backbone", tmp_path / "mtl"], tmp_path / "results")
    shutil.rmtree(data)
    return tmp_path


def test_the_training_data_need_not_be_there(runs):
    found = choose_backbone(runs / "backbone")
    assert found.channels == 3
    assert found.pipeline.output_shape((small_runs.SIZE, small_runs.SIZE, 3)) == (3, small_runs.SIZE, small_runs.SIZE)
    # A frozen backbone is the one that was pre-trained, found by its digest under another name.
    (runs / "backbone").rename(runs / "renamed")
    assert choose_backbone(runs / "mtl").digest() == found.digest()


def test_kept_runs_serve_as_well(runs):
    found = choose_backbone(runs / "backbone")
    shutil.rmtree(runs / "backbone")
    shutil.rmtree(runs / "mtl")
    for name in ("backbone", "mtl"):
        assert choose_backbone(runs / "results" / "small" / name).digest() == found.digest()


def test_a_former_run_without_its_shape_asks_the_data(runs):
    config = read_json(runs / "backbone" / "config.json")
    del config["input_shape"]
    write_json(runs / "backbone" / "config.json", config)
    with pytest.raises(DataError, match=r"There is no data set 'small'|small is not prepared"):
        choose_backbone(runs / "backbone")


def test_what_has_no_backbone_says_so(runs):
    shutil.rmtree(runs / "backbone")
    with pytest.raises(CheckpointError, match="which is neither there nor next to the run"):
        choose_backbone(runs / "mtl")
    make_ensemble([runs / "mtl", runs / "mtl"], runs / "both")
    with pytest.raises(SettingsError, match="is a run of kind ensemble, which has no backbone"):
        choose_backbone(runs / "both")
