"""The factor on scores: the best on validation classes, without a look at the test, and no answer changes."""

import pytest
import torch

from e3bm.errors import SettingsError
from e3bm.progress import Silent
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation import test as testing
from e3bm.runs.evaluation.calibration import best_factor, fitted_factor
from e3bm.runs.evaluation.evaluate import evaluate
from e3bm.runs.evaluation.metrics import negative_log_likelihoods
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.settings import TestSettings
from e3bm.runs.tasks import episode_sampler, open_data
from e3bm.runs.training.train import build_tasks, run_train
from e3bm.settings import read_settings
from small_runs import settings


def drawn(factor, count=4000):
    """Scores and labels that are drawn from softmax(factor * scores)."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(count, 5, generator=draw, dtype=torch.double) * 2
    labels = (factor * scores).softmax(1).multinomial(1, generator=draw).squeeze(1)
    return scores, labels


@pytest.mark.parametrize("factor", [0.05, 0.7, 3.0])
def test_it_is_the_minimum_of_the_nll(factor):
    scores, labels = drawn(factor)
    found = best_factor(scores, labels)
    nll = lambda scale: float(negative_log_likelihoods((scale * scores)[None], labels[None]))
    grid = found * torch.logspace(-0.5, 0.5, 101, dtype=torch.double)
    assert nll(found) <= min(nll(float(scale)) for scale in grid) + 1e-12
    assert found == pytest.approx(factor, rel=0.1)
    assert best_factor(10 * scores, labels) == pytest.approx(found / 10, rel=1e-9)


def test_scores_that_say_nothing_get_the_smallest_factor():
    scores, _ = drawn(1.0)
    assert best_factor(scores, scores.argmin(1)) < 1e-4
    assert best_factor(scores, scores.argmax(1)) > 1e4


def test_results_have_both_and_answers_stay(small_data, tmp_path, monkeypatch):
    opened = []
    of_tasks = testing.episode_sampler
    monkeypatch.setattr(
        testing,
        "episode_sampler",
        lambda data, split, *rest, **more: opened.append(split) or of_tasks(data, split, *rest, **more),
    )
    runs = [run_train(settings(small_data, name), tmp_path / name).path for name in ("mtl", "mtl+e3bm")]
    plain = run_test(runs, TestSettings(episodes=30))
    assert opened == ["test", "test"]
    rows = run_test(runs, TestSettings(episodes=30, calibrate=20))
    assert opened[2:] == ["test", "val", "test", "val"]
    for before, after in zip(plain, rows, strict=True):
        assert (after.accuracy, after.nll, after.ece) == (before.accuracy, before.nll, before.ece)
        assert "calibrated_nll" not in before.metrics
        assert after.metrics["score_factor"] > 0
    both = [row.metrics for row in rows]
    difference = both[1]["calibrated_nll"] - both[0]["calibrated_nll"]
    assert both[1]["calibrated_nll_difference"] == pytest.approx(difference)
    assert both[1]["nll_difference"] == pytest.approx(both[1]["nll"] - both[0]["nll"])
    assert both[1]["nll_difference_ci"] > 0
    # The same by hand: the factor of these validation tasks, on the scores of the test.
    again = run_test(runs[:1], TestSettings(episodes=30, calibrate=20))[0]
    assert again.metrics["score_factor"] == both[0]["score_factor"]


def test_classes_that_fit_the_factor_do_not_judge_it():
    with pytest.raises(SettingsError, match="they cannot show what it does; set split to test or calibrate to 0"):
        read_settings(TestSettings, {"calibrate": 20, "split": "val"})
    assert read_settings(TestSettings, {"calibrate": 20, "split": "val", "dataset": "omniglot"}).calibrate == 20


def test_a_factor_of_one_changes_nothing_and_the_batch_size_does_not_matter(small_data):
    wanted = settings(small_data, "mtl+e3bm", machine__precision="float64")
    data = open_data(wanted.data)
    backbone = build_backbone(wanted.backbone, *data.input_shape)
    sampler = episode_sampler(data, "val", wanted.episode, 0, "validation")
    tasks = build_tasks(wanted, data, backbone, sampler, Silent(), Engine())
    learner = build_learner(wanted, backbone)
    found = evaluate(learner, tasks, 6, factor=1.0)
    torch.testing.assert_close(found.metrics["calibrated_nll"], found.metrics["nll"])
    assert found.summary()["calibrated_ece"] == pytest.approx(found.summary()["ece"])
    sizes = [fitted_factor(learner, tasks, 6, batch=batch, engine=Engine()) for batch in (1, 4, 16)]
    assert sizes == pytest.approx([sizes[0]] * 3, rel=1e-9)
    scaled = evaluate(learner, tasks, 6, factor=sizes[0])
    assert float(scaled.metrics["calibrated_nll"].mean()) <= float(found.metrics["nll"].mean())
