from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
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
from e3bm.methods.laplacian_shot import LaplacianShot, rectified


def model(**options):
    return LaplacianShot(ReadyFeatures(FEATURES), **options).double()


def written_out(support, labels, query, ways, agreement, rectified):
    """The published updates of one task in numpy, with scikit-learn's neighbours."""
    support = support / np.linalg.norm(support, axis=1, keepdims=True)
    query = query / np.linalg.norm(query, axis=1, keepdims=True)
    means = np.stack([support[labels == way].mean(0) for way in range(ways)])
    if rectified:
        query = query + support.mean(0) - query.mean(0)
        everyone = np.concatenate([support, query])
        cosines = everyone @ means.T / np.linalg.norm(everyone, axis=1)[:, None] / np.linalg.norm(means, axis=1)
        sure = np.exp(10 * cosines) / np.exp(10 * cosines).sum(1, keepdims=True)
        nearest = cosines.argmax(1)
        means = np.stack(
            [(sure[nearest == way, way][:, None] * everyone[nearest == way]).mean(0) for way in range(ways)]
        )
    costs = ((query[:, None] - means[None]) ** 2).sum(-1)
    _, near = NearestNeighbors(n_neighbors=3).fit(query).kneighbors(query)
    agree = np.zeros((len(query), len(query)))
    for row, columns in enumerate(near):
        agree[row, columns[1:]] = 1
    softmax = lambda values: np.exp(values) / np.exp(values).sum(1, keepdims=True)
    assigned, energy = softmax(-costs), np.inf
    for update in range(20):
        assigned = softmax(-costs + agreement * agree @ assigned)
        found = (assigned * (np.log(assigned) + costs - agreement * agree @ assigned)).sum()
        if update > 1 and abs(found - energy) <= 1e-6 * abs(energy):
            break
        energy = found
    return np.log(assigned)


@pytest.mark.parametrize("rectified", [True, False])
@pytest.mark.parametrize("agreement", [0.1, 1.0])
def test_updates_written_out(agreement, rectified):
    batch = uneven(task_batch(spread=3.0))
    scores = model(agreement=agreement, rectified=rectified)(batch).scores
    for task in range(2):
        real = batch.mask[task]
        parts = (batch.support[task, real], batch.support_labels[task, real], batch.query[task])
        expected = written_out(*(part.numpy() for part in parts), batch.ways, agreement, rectified)
        close(scores[task], torch.from_numpy(expected))


def test_without_agreement_it_is_the_nearest_mean():
    batch = task_batch()
    problem = model(agreement=0.0, rectified=False)
    normalise = lambda values: torch.nn.functional.normalize(values, dim=-1)
    support, query = normalise(batch.support), normalise(batch.query)
    member = torch.nn.functional.one_hot(batch.support_labels, batch.ways).double().mT
    means = member @ support / member.sum(-1, keepdim=True)
    costs = (query.unsqueeze(2) - means.unsqueeze(1)).square().sum(-1)
    close(problem(batch).scores, (-costs).log_softmax(-1))


def test_neighbours_follow_one_another():
    """With a strong agreement nobody is left alone in a class that none of its neighbours is in."""
    batch = task_batch(3, spread=4.0)
    found = model(agreement=50.0, rectified=False)(batch).scores.argmax(-1)
    near = model().affinity(torch.nn.functional.normalize(batch.query, dim=-1))
    for task in range(2):
        for query in range(batch.query.shape[1]):
            assert int(found[task, query]) in found[task, near[task, query] > 0].tolist()


def test_one_query_has_no_neighbours():
    batch = task_batch(queries=1)
    single = lambda number: replace(batch, query=batch.query[:, [number]], query_labels=None)
    alone = torch.cat([model(rectified=False)(single(number)).scores for number in range(3)], 1)
    close(alone, model(agreement=0.0, rectified=False)(batch).scores)


@pytest.mark.parametrize("rectified", [True, False])
def test_order_tasks_and_padding(rectified):
    scores = lambda batch: model(rectified=rectified)(batch).scores
    check_order_has_no_meaning(scores, uneven(task_batch()))
    check_tasks_are_alone(scores, uneven(task_batch()))
    check_padding_has_no_influence(scores, task_batch())


def test_gradients():
    check_gradients(model(), uneven(task_batch()), fast=True)


def test_a_class_that_nobody_is_near_keeps_its_mean():
    means = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    examples = torch.tensor([[[2.0, 0.0], [0.0, 5.0]]], dtype=torch.float64)
    mask = torch.tensor([[True, False]])
    sure = torch.tensor([10.0, -10.0], dtype=torch.float64).softmax(0)[0]
    close(rectified(means, examples, mask), torch.stack([sure * examples[0, 0], means[0, 1]]).unsqueeze(0))


def test_bad_settings():
    with pytest.raises(SettingsError, match=r"agreement must be 0 or more, found -0\.5"):
        model(agreement=-0.5)
    with pytest.raises(SettingsError, match="at least 1 neighbour, found 0"):
        model(neighbours=0)
