from dataclasses import replace

import pytest
import torch
from jaxtyping import config
from tests.methods.feature_tasks import (
    FEATURES,
    check_gradients,
    check_order_has_no_meaning,
    check_padding_has_no_influence,
    check_tasks_are_alone,
    close,
    task_batch,
    uneven,
)

from e3bm.core.learner import meta_loss
from e3bm.errors import DivergenceError, SettingsError
from e3bm.methods import ReadyFeatures
from e3bm.methods.meta_opt_net import MetaOptNet, smoothed_loss

LEARNERS = ["svm", "ridge"]


def model(learner, **options):
    return MetaOptNet(ReadyFeatures(FEATURES), learner=learner, **options).double()


@pytest.mark.parametrize("learner", LEARNERS)
def test_order_tasks_and_padding(learner):
    scores = lambda batch: model(learner, penalty=0.3)(batch).scores
    check_order_has_no_meaning(scores, uneven(task_batch()))
    check_tasks_are_alone(scores, uneven(task_batch()))
    check_padding_has_no_influence(scores, task_batch())


@pytest.mark.parametrize("learner", LEARNERS)
def test_gradients(learner):
    check_gradients(model(learner, scale=2.0), uneven(task_batch()), fast=True)


@pytest.mark.parametrize("learner", LEARNERS)
def test_rotating_all_features_changes_nothing(learner):
    batch = task_batch()
    rotation = torch.linalg.qr(torch.randn(FEATURES, FEATURES, dtype=torch.float64))[0]
    turned = replace(batch, support=batch.support @ rotation, query=batch.query @ rotation)
    close(model(learner)(turned).scores, model(learner)(batch).scores)


def test_the_scores_of_an_svm_sum_to_zero():
    scores = model("svm")(task_batch()).scores
    close(scores.sum(-1), torch.zeros_like(scores[..., 0]))


def test_a_wide_penalty_makes_ridge_a_sum_of_examples():
    """penalty x score -> 2 sum of the class's x . q."""
    batch = task_batch()
    penalty = 1e11
    sums = torch.nn.functional.one_hot(batch.support_labels, batch.ways).double().mT @ batch.support
    close(penalty * model("ridge", penalty=penalty)(batch).scores, 2 * batch.query @ sums.mT, 1e-6)


def test_a_small_penalty_fits_the_support():
    batch = task_batch(features=8)
    found = MetaOptNet(ReadyFeatures(8), learner="ridge", penalty=1e-9).double()
    one_hot = torch.nn.functional.one_hot(batch.support_labels, batch.ways).double()
    close(found.head(batch).scores(batch.support), 2 * one_hot, 1e-6)


@pytest.mark.parametrize("learner", LEARNERS)
def test_single_precision_solves_in_double(learner):
    batch = task_batch()
    single = replace(batch, support=batch.support.float(), query=batch.query.float())
    same = replace(batch, support=single.support.double(), query=single.query.double())
    scores = MetaOptNet(ReadyFeatures(FEATURES), learner=learner)(single).scores
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), model(learner)(same).scores, rtol=1e-5, atol=1e-6)


def test_smoothed_targets_written_out():
    batch = task_batch()
    scores = model("ridge", scale=3.0)(batch).scores.detach()
    targets = torch.full_like(scores, 0.1 / 2).scatter_(-1, batch.query_labels.unsqueeze(-1), 0.9)
    close(smoothed_loss(scores, batch.query_labels, 0.1), -(targets * scores.log_softmax(-1)).sum(-1).mean())
    close(smoothed_loss(scores, batch.query_labels, 0.0), meta_loss(scores, batch.query_labels))


def test_looks_are_for_tests_only():
    batch, found = task_batch(), model("svm", looks_at_test=2)
    solved = model("svm")(batch).scores.detach()
    close(found.train()(batch).scores.detach(), solved)
    early = found.eval()(batch).scores.detach()
    assert float((early - solved).abs().max()) > 1e-3
    close(model("svm", looks_at_test=30).eval()(batch).scores.detach(), solved, 1e-8)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"learner": "tree"}, "'svm' or 'ridge', found 'tree'"),
        ({"learner": "svm", "penalty": 0.0}, r"penalty must be positive, found 0\.0"),
        ({"learner": "ridge", "looks_at_test": 3}, "looks_at_test stops the SVM only.*found 3 looks for 'ridge'"),
        ({"learner": "svm", "looks_at_test": 0}, "1 look or more; found 0 looks"),
        ({"learner": "svm", "smoothing": 1.0}, r"must lie in \[0, 1\), found 1\.0"),
    ],
)
def test_bad_settings(options, sentence):
    config.update("jaxtyping_disable", True)  # what users see
    try:
        with pytest.raises(SettingsError, match=sentence):
            model(**options)
    finally:
        config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("learner", LEARNERS)
def test_features_too_long_to_solve(learner):
    batch = task_batch()
    with pytest.raises(DivergenceError, match=f"{learner} has no solution in double precision.*Lower the features'"):
        model(learner)(
            replace(
                batch,
                support=1e20 * batch.support.roll(1, 1).repeat(1, 2, 1),
                support_labels=batch.support_labels.repeat(1, 2),
            )
        )
