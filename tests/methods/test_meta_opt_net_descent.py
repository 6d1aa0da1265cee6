import pytest
import torch
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

from e3bm.core.context import ClassMean, Context
from e3bm.core.hyperprior import FcGenerator, Hyperprior
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly, Learned
from e3bm.errors import SettingsError
from e3bm.methods import ReadyFeatures
from e3bm.methods.meta_opt_net import MetaOptNet, smoothed_loss
from e3bm.methods.meta_opt_net_descent import MetaOptNetDescent


def learner(hyperprior=None, epochs=3, **options):
    method = MetaOptNetDescent(ReadyFeatures(FEATURES), penalty=options.pop("penalty", 2.0), **options)
    return MetaLearner(method, hyperprior or Hyperprior(Constant(0.25), LastOnly()), epochs).double()


def test_many_epochs_reach_the_solution():
    batch = uneven(task_batch())
    solved = MetaOptNet(ReadyFeatures(FEATURES), learner="ridge", penalty=2.0, scale=1.5).double()
    close(learner(epochs=2000, scale=1.5)(batch).scores, solved(batch).scores)


def test_two_epochs_of_the_primal_written_out():
    batch = uneven(task_batch())
    trace = learner(epochs=2, scale=1.5)(batch)
    for task in range(2):
        real = batch.mask[task]
        examples = batch.support[task, real]
        targets = 2 * torch.nn.functional.one_hot(batch.support_labels[task, real], batch.ways).double()
        weight = torch.zeros(batch.ways, FEATURES, dtype=torch.float64, requires_grad=True)
        pace = 0.25 / (examples.square().sum(-1).mean() + 2.0)
        for epoch in range(2):
            loss = (examples @ weight.mT - targets).square().sum() / 2 + weight.square().sum()
            close(trace.losses[task, epoch], loss.detach() / len(examples))
            weight = (weight - pace * torch.autograd.grad(loss, weight)[0]).detach().requires_grad_()
        close(trace.scores[task], 1.5 * batch.query[task] @ weight.mT)


def test_rates_mean_the_same_for_features_of_any_length():
    batch = task_batch()
    longer = batch.__class__(10 * batch.support, batch.support_labels, 10 * batch.query, batch.query_labels, batch.ways)
    close(learner(penalty=200.0)(longer).scores, learner(penalty=2.0)(batch).scores)


def test_order_tasks_and_padding():
    scores = lambda batch: learner(Hyperprior(Constant(0.25), Equal()))(batch).scores
    check_order_has_no_meaning(scores, uneven(task_batch()))
    check_tasks_are_alone(scores, uneven(task_batch()))
    check_padding_has_no_influence(scores, task_batch())


@pytest.mark.parametrize("generated", [True, False])
def test_gradients(generated):
    torch.manual_seed(0)
    rates, votes = [0.2, 0.3, 0.1], [0.1, 0.3, 0.6]
    hyperprior = Hyperprior(Learned(rates), Learned(votes))
    if generated:
        psi = FcGenerator(Context(ClassMean(FEATURES), embedding=FEATURES), 3, 2)
        hyperprior = Hyperprior(Generated(rates), Generated(votes), psi)
    check_gradients(learner(hyperprior), uneven(task_batch()), fast=True)


def test_first_order_replays_to_the_same_numbers():
    batch = uneven(task_batch())
    model = learner(Hyperprior(Learned([0.2, 0.3, 0.1]), Learned([0.1, 0.3, 0.6])), second_order=False)
    trace = model(batch)
    with torch.no_grad():
        step_by_step = model(batch, every_epoch=True)
    close(trace.scores, step_by_step.scores)
    close(step_by_step.scores, torch.einsum("tm,tmqw->tqw", step_by_step.weights, step_by_step.epoch_scores))
    meta_loss(trace.scores, batch.query_labels).backward()
    assert float(model.hyperprior.rate.values.grad.abs().min()) > 0


def test_one_matrix_has_the_ensembles_scores():
    batch = uneven(task_batch())
    model = learner(Hyperprior(Constant(0.25), Equal()), scale=1.5)
    trace, ensemble = model.adapt(batch)
    close(model.method.begin(batch).collapse(ensemble).scores(batch.query), trace.scores)


def test_smoothing():
    batch, model = task_batch(), learner(smoothing=0.1)
    trace = model(batch)
    close(model.method.training_loss(trace, batch, 0.5), smoothed_loss(trace.scores, batch.query_labels, 0.1))


def test_bad_settings():
    with pytest.raises(SettingsError, match=r"penalty must be positive, found -1\.0"):
        learner(penalty=-1.0)
