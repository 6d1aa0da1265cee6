from dataclasses import replace

import pytest
import torch
from sklearn import linear_model
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

from e3bm.errors import SettingsError
from e3bm.methods import ReadyFeatures
from e3bm.methods.heads.logistic_solver import logistic_dual
from e3bm.methods.linear_rivals import LogisticRegression, RidgeRegression

RIVALS = {
    "ridge": lambda **options: RidgeRegression(ReadyFeatures(FEATURES), **options).double(),
    "logistic": lambda **options: LogisticRegression(ReadyFeatures(FEATURES), **options).double(),
}


def lengths_of_one(batch):
    shorter = lambda values: torch.nn.functional.normalize(values, dim=-1)
    return replace(batch, support=shorter(batch.support), query=shorter(batch.query))


@pytest.mark.parametrize("name", RIVALS)
def test_order_tasks_and_padding(name):
    scores = lambda batch: RIVALS[name]()(batch).scores
    check_order_has_no_meaning(scores, uneven(task_batch()))
    check_tasks_are_alone(scores, uneven(task_batch()))
    check_padding_has_no_influence(scores, task_batch())


@pytest.mark.parametrize("name", RIVALS)
def test_gradients(name):
    check_gradients(RIVALS[name](unit_length=False), uneven(task_batch()), fast=True)


@pytest.mark.parametrize("name", RIVALS)
def test_lengths_are_taken_away(name):
    batch = uneven(task_batch())
    close(RIVALS[name]()(batch).scores, RIVALS[name](unit_length=False)(lengths_of_one(batch)).scores)


@pytest.mark.parametrize("name", RIVALS)
def test_moving_all_features_changes_nothing(name):
    """The bias is free."""
    batch = task_batch()
    moved = replace(batch, support=batch.support + 3.0, query=batch.query + 3.0)
    close(RIVALS[name](unit_length=False)(moved).scores, RIVALS[name](unit_length=False)(batch).scores)


@pytest.mark.parametrize("penalty", [0.1, 1.0, 10.0])
def test_ridge_against_scikit_learn(penalty):
    batch = uneven(task_batch())
    scores = RIVALS["ridge"](penalty=penalty, unit_length=False, scale=1.0)(batch).scores
    for task in range(2):
        real = batch.mask[task]
        targets = torch.nn.functional.one_hot(batch.support_labels[task, real], batch.ways).double()
        found = linear_model.Ridge(alpha=penalty).fit(batch.support[task, real].numpy(), targets.numpy())
        close(scores[task], torch.from_numpy(found.predict(batch.query[task].numpy())))


@pytest.mark.parametrize("inverse_penalty", [0.1, 1.0, 100.0])
def test_logistic_against_scikit_learn(inverse_penalty):
    """Its optimiser stops near 1e-9 of the optimum; ours is held to the conditions of one below."""
    batch = uneven(task_batch())
    scores = RIVALS["logistic"](inverse_penalty=inverse_penalty, unit_length=False)(batch).scores
    for task in range(2):
        real = batch.mask[task]
        found = linear_model.LogisticRegression(C=inverse_penalty, solver="newton-cg", tol=1e-10, max_iter=1000).fit(
            batch.support[task, real].numpy(), batch.support_labels[task, real].numpy()
        )
        expected = torch.from_numpy(found.decision_function(batch.query[task].numpy()))
        close(scores[task].log_softmax(-1), expected.log_softmax(-1), 1e-7)


@pytest.mark.parametrize("inverse_penalty", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("ways", "shots", "features"), [(3, 2, 5), (5, 5, 20), (2, 10, 3), (20, 1, 8)])
def test_conditions_of_an_optimum(ways, shots, features, inverse_penalty):
    batch = task_batch(1, ways=ways, shots=shots, features=features)
    one_hot = torch.nn.functional.one_hot(batch.support_labels, ways).double().mT
    alpha, bias = logistic_dual(batch.support @ batch.support.mT, one_hot, batch.mask, inverse_penalty)
    weight = (alpha @ batch.support).requires_grad_()
    bias = bias.clone().requires_grad_()
    logs = (torch.bmm(weight, batch.support.mT) + bias.unsqueeze(-1)).log_softmax(1)
    loss = -(logs * one_hot).sum() + weight.square().sum() / (2 * inverse_penalty)
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        close(gradient, torch.zeros_like(gradient))
    close(bias.sum(1), torch.zeros(2, dtype=torch.float64))


def test_a_wide_penalty_leaves_ridge_with_the_share_of_each_class():
    batch = uneven(task_batch())
    scores = RIVALS["ridge"](penalty=1e12, scale=1.0)(batch).scores
    member = torch.nn.functional.one_hot(batch.support_labels, batch.ways) * batch.mask.unsqueeze(-1)
    shares = member.double().sum(1) / batch.mask.sum(1, keepdim=True)
    close(scores, shares.unsqueeze(1).expand_as(scores))


def test_bad_settings():
    with pytest.raises(SettingsError, match=r"Ridge regression's penalty must be positive, found 0\.0"):
        RIVALS["ridge"](penalty=0.0)
    with pytest.raises(SettingsError, match=r"Logistic regression's inverse penalty must be positive, found -1\.0"):
        RIVALS["logistic"](inverse_penalty=-1.0)
