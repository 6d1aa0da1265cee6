from dataclasses import replace

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

from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Constant, LastOnly
from e3bm.errors import SettingsError
from e3bm.methods import Mtl, ReadyFeatures
from e3bm.methods.heads.distances import squared_distances
from e3bm.methods.proto_nets import ProtoNets


def model(**options):
    return ProtoNets(ReadyFeatures(FEATURES), **options).double()


def test_distances_to_means_written_out():
    batch = uneven(task_batch())
    scores = model(scale=2.0)(batch).scores
    for task in range(len(batch)):
        for way in range(batch.ways):
            chosen = (batch.support_labels[task] == way) & batch.mask[task]
            mean = batch.support[task, chosen].mean(0)
            close(scores[task, :, way], -2.0 * (batch.query[task] - mean).square().sum(-1))


def test_it_is_mtl_that_starts_at_prototypes_and_stays_there():
    """2 (q . mean - |mean|^2/2) - |q|^2."""
    batch = task_batch()
    mtl = Mtl(ReadyFeatures(FEATURES), start="prototype")
    start = MetaLearner(mtl, Hyperprior(Constant(0.0), LastOnly()), 1).double()(batch).scores
    close(model()(batch).scores, 2 * start - batch.query.square().sum(-1, keepdim=True), 1e-13)


def test_moving_and_rotating_all_features_changes_nothing():
    batch = task_batch()
    expected = model()(batch).scores
    rotation = torch.linalg.qr(torch.randn(FEATURES, FEATURES, dtype=torch.float64))[0]
    moved = lambda values: (values + 3.0) @ rotation
    close(model()(replace(batch, support=moved(batch.support), query=moved(batch.query))).scores, expected)


def test_order_tasks_and_padding():
    scores = lambda batch: model()(batch).scores
    check_order_has_no_meaning(scores, uneven(task_batch()))
    check_tasks_are_alone(scores, uneven(task_batch()))
    check_padding_has_no_influence(scores, task_batch())


def test_gradients():
    check_gradients(model(learned_scale=True, divided=True), uneven(task_batch()))


def test_divided_distances_do_not_know_how_often_features_are_repeated():
    batch = task_batch()
    twice = replace(batch, support=batch.support.repeat(1, 1, 2), query=batch.query.repeat(1, 1, 2))
    wide = ProtoNets(ReadyFeatures(2 * FEATURES), divided=True).double()
    close(wide(twice).scores, model(divided=True)(batch).scores)


def test_distances_far_from_the_origin_keep_their_digits():
    """In single precision the expanded square of features near 1000 would be wrong in its second digit."""
    draw = torch.Generator().manual_seed(0)
    near, points = torch.randn(1, 6, 8, generator=draw), torch.randn(1, 3, 8, generator=draw)
    expected = (near.double().unsqueeze(2) - points.double().unsqueeze(1)).square().sum(-1)
    # The features themselves are rounded to 1000 * 2^-24 = 6e-5 when they are moved.
    torch.testing.assert_close(squared_distances(near + 1000, points + 1000).double(), expected, rtol=0, atol=5e-3)


def test_a_scale_that_is_not_positive():
    with pytest.raises(SettingsError, match=r"scale of ProtoNets' distances must be positive, found 0\.0"):
        model(scale=0.0)
