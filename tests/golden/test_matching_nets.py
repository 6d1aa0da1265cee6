"""Matching Networks, simple and with full context: recorded scores, embeddings and gradients, met to 1e-10."""

from dataclasses import replace

import pytest
import torch
from tests.golden.system_arrays import close, load, padded, tasks

from e3bm.core.adapt import adapt
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods.base import ReadyFeatures
from e3bm.methods.matching_nets import MatchingNets
from e3bm.methods.matching_nets_fce import MatchingNetsFce

RULES = {"": (1.0, "attention"), "scaled_": (10.0, "attention"), "summed_": (1.0, "summed")}
WEIGHTS = {
    "onwards.weight_ih": "g.weight_ih_l0",
    "onwards.weight_hh": "g.weight_hh_l0",
    "onwards.bias_ih": "g.bias_ih_l0",
    "onwards.bias_hh": "g.bias_hh_l0",
    "backwards.weight_ih": "g.weight_ih_l0_reverse",
    "backwards.weight_hh": "g.weight_hh_l0_reverse",
    "backwards.bias_ih": "g.bias_ih_l0_reverse",
    "backwards.bias_hh": "g.bias_hh_l0_reverse",
    "reader.weight_ih": "f.weight_ih",
    "reader.weight_hh": "f.weight_hh",
    "reader.bias_ih": "f.bias_ih",
    "reader.bias_hh": "f.bias_hh",
}


@pytest.mark.parametrize("change", [lambda batch: batch, padded])
@pytest.mark.parametrize("prefix", RULES)
def test_simple(prefix, change):
    data = load("matching")
    batch = tasks(data)
    scale, rule = RULES[prefix]
    scores = MatchingNets(ReadyFeatures(16), scale=scale, rule=rule).double()(change(batch)).scores
    close(scores, data[f"{prefix}scores"])
    loss = meta_loss(scores, batch.query_labels)
    close(loss, data[f"{prefix}loss"])
    loss.backward()
    close(batch.support.grad, data[f"{prefix}grad_support"])
    close(batch.query.grad, data[f"{prefix}grad_query"])


def test_cosines():
    """With every example a class of its own, the summed rule's scores are the cosines themselves."""
    data = load("matching")
    every, count = tasks(data), data["support"].shape[1]
    alone = replace(every, support_labels=torch.arange(count).expand(2, -1), query_labels=None, ways=count)
    close(MatchingNets(ReadyFeatures(16), scale=1.0, rule="summed").double()(alone).scores, data["cosines"])


def in_context(data, prefix):
    scale, rule = RULES[prefix]
    model = MatchingNetsFce(ReadyFeatures(8), scale=scale, rule=rule, shuffled=False).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(data[f"weights.{WEIGHTS[name]}"])
    return model


@pytest.mark.parametrize("change", [lambda batch: batch, padded])
@pytest.mark.parametrize("prefix", RULES)
def test_full_context(prefix, change):
    data = load("matching_fce")
    batch, model = tasks(data), in_context(data, prefix)
    learner = MetaLearner(model, Hyperprior(Constant(1.0), LastOnly()), int(data["steps"])).double()
    scores = learner(change(batch)).scores
    close(scores, data[f"{prefix}scores"])
    loss = meta_loss(scores, batch.query_labels)
    close(loss, data[f"{prefix}loss"])
    loss.backward()
    close(batch.support.grad, data[f"{prefix}grad_support"])
    close(batch.query.grad, data[f"{prefix}grad_query"])
    for name, parameter in model.named_parameters():
        close(parameter.grad, data[f"{prefix}grad.{WEIGHTS[name]}"])


def test_every_read():
    data = load("matching_fce")
    batch = tasks(data)
    problem = in_context(data, "").begin(batch)
    close(problem.context, data["g"])
    state, one = problem.start(), torch.ones(2, dtype=torch.float64)
    for step in range(int(data["steps"])):
        state = problem.step(state, problem.direction(state), one)
        close(state.hidden[:, : batch.query.shape[1]], data["f_steps"][:, step])


def test_reads_that_begin_at_the_query():
    """As later re-implementations begin; ours begin at zero."""
    data = load("matching_fce")
    problem = in_context(data, "").begin(tasks(data))
    state, one = problem.start()._replace(hidden=problem.examples), torch.ones(2, dtype=torch.float64)
    for _ in range(int(data["steps"])):
        state = problem.step(state, problem.direction(state), one)
    close(state.hidden[:, : data["query"].shape[1]], data["f_from_query"])


def test_reads_that_vote():
    """The vote of every read adds up to the scores of all of them."""
    data = load("matching_fce")
    batch, steps = tasks(data), int(data["steps"])
    problem = in_context(data, "").begin(batch)
    trace = adapt(problem, Hyperprior(Constant(1.0), Constant(0.5)).double(), steps, every_epoch=True)
    close(trace.scores, 0.5 * trace.epoch_scores.sum(1))
    close(trace.epoch_scores[:, -1], data["scores"])
