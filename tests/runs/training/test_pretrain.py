"""Pretraining: schedules, classifiers, selection by few-shot accuracy, and that it learns."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.nn import functional

from e3bm.backbones import build
from e3bm.data.episodes.classification import LabelledBatch
from e3bm.errors import SettingsError
from e3bm.runs.engine import Engine
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.settings import PretrainSettings
from e3bm.runs.training.pretrain import Classifier, _step, rate_at, run_pretrain
from small_runs import TRAIN_CLASSES, assert_equal, pretrain_settings


def test_it_learns_and_keeps_the_best_few_shot_features(small_data, tmp_path):
    wanted = pretrain_settings(small_data, epochs=12, rate=0.05, data__augment=False)
    run = run_pretrain(wanted, tmp_path / "run")
    metrics = list(run.lines("metrics"))
    training = [line for line in metrics if line["split"] == "train"]
    validation = [line for line in metrics if line["split"] == "val"]
    assert training[-1]["loss"] < 0.5 * math.log(TRAIN_CLASSES)
    assert training[-1]["accuracy"] > 80
    assert [line["epoch"] for line in validation] == list(range(12))
    assert validation[0].keys() == {"step", "epoch", "split", "accuracy", "ci", "best", "seconds"}
    best = max(validation, key=lambda line: line["accuracy"])
    assert Checkpoints(run.path).state("best")["step"] == best["step"]
    weights = Checkpoints(run.path).weights("best")
    assert any(name.startswith("backbone.") for name in weights)


def test_one_cycle_rises_and_falls():
    wanted = PretrainSettings(epochs=10, rate=0.4, schedule="one_cycle")
    rates = [rate_at(wanted, step, 10) for step in range(100)]
    assert rates[0] == pytest.approx(0.4 / 25)
    assert max(rates) == pytest.approx(0.4) == rates[30]
    assert rates == sorted(rates[:31]) + sorted(rates[31:], reverse=True)
    assert rates[-1] < 1e-3


def test_step_and_warm_up():
    wanted = PretrainSettings(epochs=100, rate=0.1, schedule="step", step_every=30, step_factor=0.2)
    epochs = [rate_at(wanted, 5 * epoch, 5) for epoch in (0, 29, 30, 60, 99)]
    assert epochs == pytest.approx([0.1, 0.1, 0.02, 0.004, 0.0008])
    warm = wanted.but(schedule="warmup_step", warmup=10)
    assert [rate_at(warm, step, 5) for step in (0, 4, 9, 10)] == pytest.approx([0.01, 0.05, 0.1, 0.1])


def test_classifiers():
    torch.manual_seed(0)
    backbone, images = build("conv4", width=0.25, image_size=16), torch.randn(5, 3, 16, 16)
    linear, cosine = (Classifier(backbone, 7, kind).eval() for kind in ("linear", "cosine"))
    features = backbone(images)
    torch.testing.assert_close(linear(images), features @ linear.weight.mT + linear.bias)
    expected = 10 * functional.cosine_similarity(features[:, None], cosine.weight[None], dim=-1)
    torch.testing.assert_close(cosine(images), expected, rtol=1e-5, atol=1e-5)
    assert cosine.bias is None
    assert isinstance(cosine.scale, torch.nn.Parameter)


@pytest.mark.parametrize(
    "changes", [{"classifier": "cosine"}, {"label_smoothing": 0.1}, {"seed": 1}, {"data__augment": False}]
)
def test_settings_have_an_effect(small_data, tmp_path, changes):
    run_pretrain(pretrain_settings(small_data, epochs=1), tmp_path / "plain")
    run_pretrain(pretrain_settings(small_data, epochs=1, **changes), tmp_path / "changed")
    name = "backbone.blocks.0.conv.weight"
    one, other = (Checkpoints(tmp_path / run).weights("last")[name] for run in ("plain", "changed"))
    assert not torch.equal(one, other)


def test_validation_can_be_rarer(small_data, tmp_path):
    run = run_pretrain(pretrain_settings(small_data, epochs=5, validation__every=2), tmp_path / "run")
    assert [line["epoch"] for line in run.lines("metrics") if line["split"] == "val"] == [1, 3, 4]


def test_the_same_again_to_the_last_bit(small_data, tmp_path):
    for name in ("one", "two"):
        torch.rand(3)
        run_pretrain(pretrain_settings(small_data, epochs=1), tmp_path / name)
    assert_equal(Checkpoints(tmp_path / "one").weights("last"), Checkpoints(tmp_path / "two").weights("last"))


def test_bfloat16_and_float64(small_data, tmp_path):
    losses = {}
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.float32), ("float64", torch.float64)):
        run = run_pretrain(pretrain_settings(small_data, epochs=1, machine__precision=precision), tmp_path / precision)
        assert Checkpoints(run.path).weights("last")["backbone.blocks.0.conv.weight"].dtype == dtype
        losses[precision] = next(line["loss"] for line in run.lines("metrics") if line["split"] == "train")
    assert losses["float64"] == pytest.approx(losses["float32"], rel=1e-3)
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.1)
    assert losses["bfloat16"] != losses["float32"]


def test_a_batch_larger_than_the_data(small_data, tmp_path):
    with pytest.raises(SettingsError, match=r"batch size must lie in 1\.\.80, found 500"):
        run_pretrain(pretrain_settings(small_data, batch=500), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Sent(Engine):
    """A process that keeps what it would have sent: the gradients of its share."""

    @contextmanager
    def summed_gradients(self, parameters):
        trained = list(parameters)
        yield
        object.__setattr__(self, "sent", [parameter.grad.clone() for parameter in trained])

    def gather(self, mine, total, dim=0):
        return mine

    def share_buffers(self, module):
        pass


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_process_counts_for_its_share(small_data, world):
    wanted = pretrain_settings(small_data)
    torch.manual_seed(0)
    model = Classifier(build("conv4", width=0.25, image_size=16), 7, "linear").double()
    images = torch.randn(6, 3, 16, 16, dtype=torch.double)
    batch = LabelledBatch(images, torch.tensor([0, 1, 2, 3, 4, 6]), np.arange(6))
    loss = functional.cross_entropy(model(batch.images), batch.labels)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    engine = Sent(world=world)
    _step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0), wanted, 0, engine)
    for found, whole in zip(engine.sent, expected, strict=True):
        torch.testing.assert_close(found, whole / world, rtol=1e-9, atol=1e-12)


def test_only_matrices_are_decayed(small_data, tmp_path, monkeypatch):
    """Biases, scales and shifts have no weight decay."""
    groups, made = [], torch.optim.SGD

    def spy(given, **options):
        groups.extend(given)
        return made(given, **options)

    monkeypatch.setattr(torch.optim, "SGD", spy)
    run_pretrain(pretrain_settings(small_data, epochs=1, weight_decay=0.01), tmp_path / "run")
    decayed = [parameter for group in groups if group.get("weight_decay") for parameter in group["params"]]
    others = [parameter for group in groups if not group.get("weight_decay") for parameter in group["params"]]
    assert {group.get("weight_decay", 0.0) for group in groups} == {0.01, 0.0}
    assert decayed
    assert others
    assert min(parameter.ndim for parameter in decayed) > 1 >= max(parameter.ndim for parameter in others)


def test_training_goes_on_in_training_mode_after_a_validation(small_data, tmp_path, monkeypatch):
    """Whatever the validation did to the network: running statistics count every step."""

    def looked(backbone, *_):
        backbone.eval()
        return 50.0, 1.0

    monkeypatch.setattr("e3bm.runs.training.pretrain.few_shot_accuracy", looked)
    run = run_pretrain(pretrain_settings(small_data, epochs=3), tmp_path / "run")
    assert int(Checkpoints(run.path).weights("last")["backbone.blocks.0.norm.num_batches_tracked"]) == 3 * 4


def test_every_tenth_step_and_the_last_are_logged(small_data, tmp_path):
    run = run_pretrain(pretrain_settings(small_data, epochs=4), tmp_path / "run")
    training = [line for line in run.lines("metrics") if line["split"] == "train"]
    assert [(line["step"], line["epoch"]) for line in training] == [(10, 2), (16, 3)]
