"""Whitening: the last stage of a pre-training, and everything that builds on its features."""

import shutil

import numpy as np
import pytest
import torch

from e3bm import FewShotClassifier
from e3bm.backbones import batchnorm_mode
from e3bm.backbones.whitened import views
from e3bm.errors import CheckpointError, SettingsError
from e3bm.runs.assembly import build_backbone, load_backbone
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.settings import TestSettings
from e3bm.runs.tasks import open_data
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train import run_train
from photo_models import picture, support
from small_runs import assert_equal, pretrain_settings, settings


def test_whitening_is_the_last_stage_of_the_same_training(small_data, tmp_path):
    plain = run_pretrain(pretrain_settings(small_data), tmp_path / "plain")
    wanted = pretrain_settings(small_data, backbone__whitened=True)
    run = run_pretrain(wanted, tmp_path / "whitened")
    before, after = Checkpoints(plain.path).weights("best"), Checkpoints(run.path).weights("best")
    trunk = {name.replace("backbone.", "backbone.trunk."): value for name, value in before.items()}
    assert trunk.keys() | {"backbone.centre", "backbone.matrix"} == after.keys()
    assert all(torch.equal(after[name], value) for name, value in trunk.items())
    assert_equal(Checkpoints(plain.path).weights("last"), Checkpoints(run.path).weights("last"))
    # Its features: the centre is that of the training images, computed here one image after the other.
    data = open_data(wanted.data)
    backbone = build_backbone(wanted.backbone.but(whitened=False), *data.input_shape).eval()
    load_backbone(backbone, plain.path)
    positions = np.concatenate([data.images.indices_of(number) for number in data.images.splits["train"]])
    pixels = torch.from_numpy(data.images.gather(positions)).permute(0, 3, 1, 2)
    with torch.no_grad(), batchnorm_mode(backbone, "running"):
        images = data.evaluation(pixels, dtype=torch.float32)
        features = torch.stack([backbone(torch.cat(list(views(one[None])))).mean(0) for one in images])
    torch.testing.assert_close(after["backbone.centre"], features.mean(0), rtol=1e-4, atol=1e-5)
    # Asked again, it is finished.
    run_pretrain(wanted, tmp_path / "whitened")
    assert_equal(Checkpoints(run.path).weights("best"), after)
    found = run_test([run.path, plain.path], TestSettings(episodes=20))
    assert [row.backbone for row in found] == ["conv4 x0.25 whitened", "conv4 x0.25"]
    assert found[0].accuracy != found[1].accuracy


def test_a_backbone_that_is_trained_on_is_still_the_one_it_began_with(small_data, tmp_path):
    run_pretrain(pretrain_settings(small_data, epochs=1), tmp_path / "backbone")
    wanted = settings(small_data, "maml", backbone__pretrained=tmp_path / "backbone", method__start="zero")
    run = run_train(wanted, tmp_path / "run")
    (row,) = run_test([run.path], TestSettings(episodes=5))
    assert row.backbone == "conv4 x0.25"
    run_pretrain(pretrain_settings(small_data, epochs=1, seed=1), tmp_path / "other")
    shutil.rmtree(tmp_path / "backbone")
    (tmp_path / "other").rename(tmp_path / "backbone")
    with pytest.raises(CheckpointError, match="its pre-trained backbone changed"):
        run_test([run.path], TestSettings(episodes=5))


def test_a_whitened_backbone_serves_training_and_photos(small_data, tmp_path):
    run_pretrain(pretrain_settings(small_data, backbone__whitened=True), tmp_path / "backbone")
    wanted = settings(
        small_data, "mtl+e3bm", backbone__whitened=True, backbone__pretrained=tmp_path / "backbone", optimiser__steps=4
    )
    trained = run_train(wanted, tmp_path / "run")
    (row,) = run_test([trained.path], TestSettings(episodes=10))
    assert row.backbone == "conv4 x0.25 whitened"
    model = FewShotClassifier(trained.path).fit(support())
    model.save(tmp_path / "model.e3bm")
    found = FewShotClassifier.load(tmp_path / "model.e3bm")
    photo = picture("grass", 30)[:, :40]  # square: nothing is cropped
    assert found.predict([photo]) == model.predict([photo])
    mirrored = model.predict([np.ascontiguousarray(photo[:, ::-1])])[0]
    np.testing.assert_allclose(
        sorted(model.predict([photo])[0].probabilities.values()), sorted(mirrored.probabilities.values()), atol=1e-4
    )
    for setting, value in (("whitened", False), ("width", 0.5), ("name", "conv4_64")):
        with pytest.raises(SettingsError, match=rf"is conv4 x0\.25 whitened, .* backbone\.{setting} differs"):
            run_train(wanted.but(**{f"backbone__{setting}": value}), tmp_path / "wrong")
