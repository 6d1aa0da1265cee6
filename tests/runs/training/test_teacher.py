"""A teacher's features as a second target: the right ones, with the right weight, of the right classes, and learned."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from e3bm.backbones import build
from e3bm.data.episodes.classification import ClassificationBatches, LabelledBatch
from e3bm.errors import SettingsError
from e3bm.progress import Silent
from e3bm.runs.engine import Engine
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.run import read_run
from e3bm.runs.settings import MachineSettings
from e3bm.runs.tasks import open_data
from e3bm.runs.training.pretrain import Classifier, _step, run_pretrain
from e3bm.runs.training.teacher import Lesson, Teacher
from e3bm.runs.training.train import run_train
from small_runs import pretrain_settings, settings

WIDER = {"backbone__width": 0.5}


@pytest.fixture(scope="module")
def taught_by(small_data, tmp_path_factory):
    """A trained network of twice the width."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    run_pretrain(pretrain_settings(small_data, **WIDER), folder)
    return folder


def test_a_lesson_gives_each_image_its_own_features(small_data, taught_by):
    wanted = pretrain_settings(small_data, teacher=taught_by)
    data = open_data(wanted.data)
    teacher = Teacher.of(wanted, data)
    lesson = teacher.lesson(Silent(), Engine.start(MachineSettings()))
    batch = ClassificationBatches(data.images, "train", data.training, 20, 0).batch(1, 2)
    images = data.evaluation(torch.from_numpy(data.images.gather(batch.positions)).permute(0, 3, 1, 2))
    with torch.inference_mode():
        expected = functional.normalize(teacher.backbone.eval()(images))
    torch.testing.assert_close(lesson.of(batch.positions), expected, rtol=1e-4, atol=1e-5)
    assert lesson.feature_size == teacher.backbone.feature_size


def test_the_step_adds_one_minus_the_cosine(small_data):
    wanted = pretrain_settings(small_data, teacher_weight=3.0)
    torch.manual_seed(0)
    features = functional.normalize(torch.randn(9, 5, dtype=torch.double))
    lesson = Lesson(features, np.array([2, 3, 5, 7, 11, 13, 17, 19, 23]))
    model = Classifier(build("conv4", width=0.25, image_size=16), 7, "linear", lesson).double()
    images = torch.randn(6, 3, 16, 16, dtype=torch.double)
    batch = LabelledBatch(images, torch.tensor([0, 1, 2, 3, 4, 6]), np.array([5, 2, 23, 17, 3, 11]))
    told = features[[2, 0, 8, 6, 1, 4]]
    predicted = model.predict(model.backbone(images))
    cosines = functional.cosine_similarity(predicted, told, dim=1)
    loss = functional.cross_entropy(model(images), batch.labels) + 3 * (1 - cosines).mean()
    found = model.predict.disagreement(model.backbone(images), batch.positions)
    torch.testing.assert_close(found, (1 - cosines).mean())
    expected = torch.autograd.grad(loss, list(model.parameters()))
    engine = Engine.start(MachineSettings())
    stated, _ = _step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0), wanted, 0, engine)
    assert stated == pytest.approx(loss.item(), rel=1e-6)
    for parameter, whole in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, whole, rtol=1e-9, atol=1e-12)


def test_the_student_learns_what_the_teacher_says(small_data, taught_by, tmp_path):
    """More than one who is told the same with hardly any weight."""
    engine, cosines = Engine.start(MachineSettings()), {}
    for weight in (1e-6, 5.0):
        wanted = pretrain_settings(small_data, epochs=8, data__augment=False, teacher=taught_by, teacher_weight=weight)
        run = run_pretrain(wanted, tmp_path / f"student-{weight}")
        data = open_data(wanted.data)
        teacher = Teacher.of(wanted, data)
        lesson = teacher.lesson(Silent(), engine)
        backbone = build("conv4", width=0.25, image_size=16)
        model = Classifier(backbone, len(data.images.splits["train"]), "linear", lesson)
        model.load_state_dict(Checkpoints(run.path).weights("last"))
        images = data.evaluation(torch.from_numpy(data.images.gather(lesson.positions)).permute(0, 3, 1, 2))
        with torch.inference_mode():
            model.eval()
            cosines[weight] = 1 - model.predict.disagreement(model.backbone(images), lesson.positions).item()
        assert read_run(run.path).inputs["teacher"] == (teacher.digest,)
    assert cosines[5.0] > cosines[1e-6] + 0.2


def test_a_taught_backbone_is_used_like_any_other(small_data, taught_by, tmp_path):
    run_pretrain(pretrain_settings(small_data, epochs=1, teacher=taught_by), tmp_path / "student")
    changes = {"backbone.pretrained": tmp_path / "student", "optimiser.steps": 2}
    run_train(settings(small_data, "mtl", **changes), tmp_path / "run")
    assert read_run(tmp_path / "run").finished


def test_a_teacher_of_other_classes_is_refused(small_data, taught_by, tmp_path):
    wanted = pretrain_settings(small_data, teacher=taught_by, left_out=(1, 2))
    with pytest.raises(SettingsError, match=r"was trained on all training classes.*without part 1 of 2 of them"):
        run_pretrain(wanted, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_other_data_is_refused(small_data, taught_by, tmp_path):
    wanted = pretrain_settings(small_data, teacher=taught_by, data__dataset="small_grey")
    with pytest.raises(SettingsError, match="was trained on small, this backbone is to be trained on small_grey"):
        run_pretrain(wanted, tmp_path / "run")


def test_a_run_of_another_kind_is_no_teacher(small_data, taught_by, tmp_path):
    run_train(settings(small_data, "mtl", **{"optimiser.steps": 1}), tmp_path / "trained")
    with pytest.raises(SettingsError, match="is no run of `e3bm pretrain`"):
        run_pretrain(pretrain_settings(small_data, teacher=tmp_path / "trained"), tmp_path / "run")
