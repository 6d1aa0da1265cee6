"""A trained backbone with running statistics is tested on features computed once: the same answers as from images."""

import pytest
import torch

import small_runs
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.evaluation.evaluate import evaluate
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.relatives import with_relatives
from e3bm.runs.folder.run import read_run
from e3bm.runs.settings import TestSettings
from e3bm.runs.tasks import episode_sampler, image_tasks, open_data
from e3bm.runs.training.train import run_train


@pytest.mark.parametrize("kind", ["mtl-scaled+e3bm", "proto_nets", "ctm-trained"])
def test_features_of_a_trained_encoder_are_those_of_the_images(kind, small_data, tmp_path):
    run = run_train(small_runs.settings(small_data, kind, optimiser__steps=4), tmp_path / "run")
    (row,) = run_test([run.path], TestSettings(episodes=12))
    train = with_relatives(read_run(run.path))
    data = open_data(train.data)
    size = data.input_shape[1]
    learner = build_learner(train, build_backbone(train.backbone, *data.input_shape), image_size=size)
    assert row.parameters == sum(parameter.numel() for parameter in learner.parameters())
    Checkpoints(run.path).load_weights(learner, "best")
    sampler = episode_sampler(data, "test", train.episode, 1234, "test")
    found = evaluate(learner, image_tasks(data, sampler, augment=False, dtype=torch.float32), 12)
    torch.testing.assert_close(found.summary()["nll"], row.nll, rtol=1e-5, atol=1e-6)
    # Features are computed in other batches: of 72 queries, rounding may turn one that lies on the border.
    assert found.summary()["accuracy"] == pytest.approx(row.accuracy, abs=1.01 * 100 / 72)
