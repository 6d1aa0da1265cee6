"""Methods on features, given tasks that are hard on arithmetic: scores and gradients stay finite."""

from dataclasses import replace

import pytest
import torch
from tests.methods.feature_tasks import FEATURES, task_batch, uneven

from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Equal, Learned
from e3bm.methods import ReadyFeatures
from e3bm.methods.laplacian_shot import LaplacianShot
from e3bm.methods.linear_rivals import LogisticRegression, RidgeRegression
from e3bm.methods.map_rounds import MapRounds
from e3bm.methods.matching_nets import MatchingNets
from e3bm.methods.matching_nets_fce import MatchingNetsFce
from e3bm.methods.meta_opt_net import MetaOptNet
from e3bm.methods.meta_opt_net_descent import MetaOptNetDescent
from e3bm.methods.proto_nets import ProtoNets
from e3bm.methods.pt_map import PtMap
from e3bm.methods.soft_k_means import SoftKMeans
from e3bm.methods.tim import Tim

EPOCHS = 3


def with_epochs(method, rate):
    return MetaLearner(method, Hyperprior(Learned([rate] * EPOCHS), Equal()), EPOCHS)


METHODS = {
    "ProtoNets": lambda encoder: ProtoNets(encoder, learned_scale=True, divided=True),
    "Matching": lambda encoder: MatchingNets(encoder, learned_scale=True),
    "Matching, summed": lambda encoder: MatchingNets(encoder, rule="summed"),
    "Matching, in context": lambda encoder: with_epochs(MatchingNetsFce(encoder), 1.0),
    "MetaOptNet, SVM": MetaOptNet,
    "MetaOptNet, ridge": lambda encoder: MetaOptNet(encoder, learner="ridge"),
    "MetaOptNet, descent": lambda encoder: with_epochs(MetaOptNetDescent(encoder), 0.1),
    "ridge": RidgeRegression,
    "logistic": LogisticRegression,
    "soft k-means": lambda encoder: with_epochs(SoftKMeans(encoder), 1.0),
    "MAP": lambda encoder: with_epochs(MapRounds(encoder), 0.2),
    "PT+MAP": lambda encoder: with_epochs(PtMap(encoder), 0.2),
    "TIM": lambda encoder: with_epochs(Tim(encoder), 1.0),
    "LaplacianShot": LaplacianShot,
}
AWKWARD = {
    "plain": lambda batch: batch,
    "uneven shots": uneven,
    "all features zero": lambda batch: replace(batch, support=0 * batch.support, query=0 * batch.query),
    "a zero query": lambda batch: replace(batch, query=batch.query * (torch.arange(12) > 0).view(1, -1, 1)),
    "identical examples": lambda batch: replace(
        batch, support=batch.support[:, :1].expand_as(batch.support), query=batch.query[:, :1].expand_as(batch.query)
    ),
    "queries that are examples": lambda batch: replace(batch, query=batch.support.repeat(1, 2, 1)),
    "long features": lambda batch: replace(batch, support=1e3 * batch.support, query=1e3 * batch.query),
    "short features": lambda batch: replace(batch, support=1e-6 * batch.support, query=1e-6 * batch.query),
    "a query of its own": lambda batch: replace(
        batch, query=batch.query[:, :1], query_labels=batch.query_labels[:, :1]
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize("name", METHODS)
def test_scores_and_gradients_are_finite(name, kind, dtype):
    torch.manual_seed(0)
    model, batch = METHODS[name](ReadyFeatures(FEATURES)).to(dtype), AWKWARD[kind](task_batch())
    support, query = (part.to(dtype).clone().requires_grad_() for part in (batch.support, batch.query))
    scores = model(replace(batch, support=support, query=query)).scores
    assert scores.shape == (*query.shape[:2], batch.ways)
    assert scores.dtype == dtype
    assert bool(torch.isfinite(scores).all())
    meta_loss(scores, batch.query_labels).backward()
    for leaf in (support, query, *model.parameters()):
        assert leaf.grad is None or bool(torch.isfinite(leaf.grad).all())
