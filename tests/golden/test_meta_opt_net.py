"""MetaOptNet: the published heads' solutions, scores and gradients.

Met to 1e-10, except what qpth itself did not reach: after 15 looks its solution is 4e-10 from the optimum and its
gradients 6e-8, because its backward pass keeps multipliers and slacks above 1e-8.
"""

import pytest
import torch
from tests.golden.system_arrays import close, load, padded, tasks

from e3bm.core.learner import meta_loss
from e3bm.methods.base import ReadyFeatures
from e3bm.methods.meta_opt_net import MetaOptNet

CASES = {
    "ridge": ("ridge", 0.0, 1e-10, 1e-10),
    "ridge_smooth": ("ridge", 0.1, 1e-10, 1e-10),
    "svm": ("svm", 0.0, 1e-10, 1e-10),
    "svm_smooth": ("svm", 0.1, 1e-10, 1e-10),
    "svm15": ("svm", 0.0, 1e-8, 1e-6),
    "svm15_smooth": ("svm", 0.1, 1e-8, 1e-6),
}


@pytest.fixture(scope="module")
def data():
    return load("metaoptnet")


def model(data, learner, **options):
    found = MetaOptNet(ReadyFeatures(16), learner=learner, **options).double()
    found.scale.data.fill_(float(data[f"{learner}_scale"]))
    return found


@pytest.mark.parametrize("change", [lambda batch: batch, padded])
@pytest.mark.parametrize("name", CASES)
def test_scores_and_gradients(data, name, change):
    learner, smoothing, scores_within, gradients_within = CASES[name]
    batch, found = tasks(data), model(data, learner, smoothing=smoothing)
    trace = found(change(batch))
    close(trace.scores, data[f"{name.removesuffix('_smooth')}_scores"], scores_within)
    loss = found.training_loss(trace, batch, 0.0)
    close(loss, data[f"{name}_loss"], scores_within)
    if not smoothing:
        close(loss, meta_loss(trace.scores, batch.query_labels))
    loss.backward()
    close(batch.support.grad, data[f"{name}_grad_support"], gradients_within)
    close(batch.query.grad, data[f"{name}_grad_query"], gradients_within)
    close(found.scale.grad, data[f"{name}_grad_scale"][0], gradients_within)


@pytest.mark.parametrize(
    ("learner", "name", "within"), [("ridge", "ridge", 1e-10), ("svm", "svm", 1e-10), ("svm", "svm15", 1e-8)]
)
def test_solutions(data, learner, name, within):
    batch = tasks(data)
    alpha = model(data, learner).dual(batch.support, batch)
    close(alpha.mT, data[f"{name}_alpha"], within)


def test_which_variables_are_at_their_caps(data):
    batch = tasks(data)
    alpha = model(data, "svm").dual(batch.support, batch)
    caps = 0.1 * torch.nn.functional.one_hot(batch.support_labels, 5).double()
    assert torch.equal((caps - alpha.mT).abs() < 1e-12, data["svm_active"].bool())


def test_what_the_caps_and_the_sums_leave_of_the_gradient(data):
    """Y - (K + I) alpha is the multiplier of the cap plus that of the example's sum over classes."""
    batch = tasks(data)
    alpha = model(data, "svm").dual(batch.support, batch).mT
    products = batch.support @ batch.support.mT + data["svm_ridge"] * torch.eye(batch.support.shape[1])
    targets = torch.nn.functional.one_hot(batch.support_labels, 5).double()
    close(targets - products @ alpha, data["svm_multipliers"] + data["svm_equality"].unsqueeze(-1))


def test_penalties_are_the_recorded_ones(data):
    for learner, name in (("svm", "svm_C"), ("ridge", "ridge_lambda")):
        batch = tasks(data)
        given = model(data, learner, penalty=float(data[name])).dual(batch.support, batch)
        close(given, model(data, learner).dual(batch.support, batch))


@pytest.mark.parametrize("change", [lambda batch: batch, padded])
@pytest.mark.parametrize("looks", [1, 2, 3, 4])
def test_stopped_early(data, looks, change):
    batch, found = change(tasks(data)), model(data, "svm", looks_at_test=looks)
    close(found.eval()(batch).scores, data[f"svm_early{looks}_scores"])
    alpha = found.dual(batch.support, batch)
    close(alpha[..., batch.mask[0]].mT, data[f"svm_early{looks}_alpha"])
    # In training the learner is solved.
    close(found.train()(batch).scores, data["svm_scores"])
