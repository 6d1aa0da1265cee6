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
from e3bm.errors import SettingsError
from e3bm.methods import ReadyFeatures
from e3bm.methods.matching_nets import MatchingNets


def model(**options):
    return MatchingNets(ReadyFeatures(FEATURES), **options).double()


def test_probabilities_are_attention_summed_by_class():
    batch = uneven(task_batch())
    scores = model(scale=3.0)(batch).scores
    for task in range(len(batch)):
        for number, query in enumerate(batch.query[task]):
            cosines = torch.nn.functional.cosine_similarity(batch.support[task], query.unsqueeze(0))
            attention = (3.0 * cosines[batch.mask[task]]).softmax(0)
            labels = batch.support_labels[task, batch.mask[task]]
            expected = torch.stack([attention[labels == way].sum() for way in range(batch.ways)])
            close(scores[task, number].exp(), expected)


def test_one_shot_scores_are_a_softmax_of_cosines_by_either_rule():
    batch = task_batch(shots=1)
    attention, summed = model(scale=1.0)(batch).scores, model(scale=1.0, rule="summed")(batch).scores
    close(attention, summed.log_softmax(-1))
    close(meta_loss(attention, batch.query_labels), meta_loss(summed, batch.query_labels))


@pytest.mark.parametrize("rule", ["attention", "summed"])
def test_lengths_do_not_matter(rule):
    batch = task_batch()
    lengths = 0.5 + torch.rand(2, batch.support.shape[1], 1, dtype=torch.float64)
    longer = replace(batch, support=lengths * batch.support, query=7.0 * batch.query)
    close(model(rule=rule)(longer).scores, model(rule=rule)(batch).scores)


def test_the_scale_is_trained_only_where_that_is_asked_for():
    assert list(model().parameters()) == []
    (scale,) = model(learned_scale=True, scale=3.0).parameters()
    assert scale.numel() == 1


def test_doubling_every_example_changes_no_attention():
    batch = task_batch()
    twice = replace(batch, support=batch.support.repeat(1, 2, 1), support_labels=batch.support_labels.repeat(1, 2))
    close(model()(twice).scores, model()(batch).scores)


def test_a_large_scale_is_the_nearest_neighbour():
    batch = task_batch()
    cosines = torch.nn.functional.cosine_similarity(batch.query.unsqueeze(2), batch.support.unsqueeze(1), dim=-1)
    nearest = batch.support_labels.gather(1, cosines.argmax(-1))
    assert torch.equal(model(scale=1e6)(batch).scores.argmax(-1), nearest)


@pytest.mark.parametrize("rule", ["attention", "summed"])
def test_order_tasks_and_padding(rule):
    scores = lambda batch: model(rule=rule)(batch).scores
    check_order_has_no_meaning(scores, uneven(task_batch()))
    check_tasks_are_alone(scores, uneven(task_batch()))
    check_padding_has_no_influence(scores, task_batch())


@pytest.mark.parametrize("rule", ["attention", "summed"])
def test_gradients(rule):
    check_gradients(model(learned_scale=True, rule=rule), uneven(task_batch()))


def test_bad_settings():
    config.update("jaxtyping_disable", True)  # what users see
    try:
        with pytest.raises(SettingsError, match="'attention' or 'summed' cosines, found 'loud'"):
            model(rule="loud")
    finally:
        config.update("jaxtyping_disable", False)
    with pytest.raises(SettingsError, match=r"cosines must be positive, found -1\.0"):
        model(scale=-1.0)
