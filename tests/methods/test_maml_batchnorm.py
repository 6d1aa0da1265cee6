"""BatchNorm in MAML: whose statistics are used, where a pass's own go, and what a result may call itself."""

from itertools import pairwise

import pytest
import torch
from tests.methods.maml_tasks import WAYS, context, conv4, generated, plain, smooth, task_batch
from torch import nn

from e3bm.backbones import batchnorm_mode, commit_statistics, pop_statistics
from e3bm.backbones.normalisation import task_batchnorms
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.errors import SettingsError
from e3bm.methods import Maml
from e3bm.methods.networks.step_statistics import step_of

EPOCHS = 3
MODES = {"batch": {}, "running": {}, "batch_then_running": {}, "per_step": {"epochs": EPOCHS}}


def exact(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def maml(mode, make=conv4, **settings):
    return make(batchnorm=mode, **MODES[mode], **settings)


def pictures(make=conv4, **settings):
    return task_batch(size=17 if make is conv4 else 4, **settings)


def trained(mode, make=conv4, steps=3, **settings):
    """A learner whose running statistics have moved away from 0 and 1."""
    learner = plain(maml(mode, make, **settings), epochs=EPOCHS)
    for step in range(steps):
        learner(pictures(make, seed=step))
        commit_statistics(learner, pop_statistics(learner))
    return learner.eval()


def one_query_at_a_time(learner, batch):
    parts = []
    for query in range(batch.query.shape[1]):
        single = TaskBatch(batch.support, batch.support_labels, batch.query[:, query : query + 1], None, WAYS)
        parts.append(learner(single).scores)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_prediction_depends_on_other_queries_in_batch_mode_only(mode, fast):
    learner, batch = trained(mode, fast=fast), pictures(queries=3, seed=9)
    together, alone = learner(batch).scores, one_query_at_a_time(learner, batch)
    assert learner.method.transductive == (mode == "batch")
    assert learner.method.batchnorm == mode
    if mode == "batch":
        assert (together - alone).abs().max() > 1e-3
    else:
        exact(alone, together)


def test_a_network_without_batchnorm_is_not_transductive():
    class Bare(nn.Flatten):
        feature_size, feature_positions = 16, 1

    assert not Maml(Bare(), ways=WAYS).transductive


def test_the_modes_differ():
    batch = pictures(seed=9)
    scores = {mode: trained(mode)(batch).scores for mode in MODES}
    names = list(scores)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            if {first, second} != {"running", "batch_then_running"}:
                assert (scores[first] - scores[second]).abs().max() > 1e-3, (first, second)


@pytest.mark.parametrize("mode", MODES)
def test_fast_and_general_paths_agree(mode):
    results = []
    for fast in (True, False):
        learner = plain(maml(mode, fast=fast), epochs=EPOCHS)
        parts = []
        for seed in (0, 1):
            batch = pictures(seed=seed)
            loss = meta_loss(learner(batch).scores, batch.query_labels)
            parts += [loss, *torch.autograd.grad(loss, list(learner.parameters()))]
            commit_statistics(learner, pop_statistics(learner))
        parts += list(learner.buffers())
        parts.append(learner.eval()(pictures(seed=2)).scores)
        results.append(parts)
    for found, expected in zip(*results, strict=True):
        exact(found, expected)


def statistics_of(layer, images):
    variance, mean = torch.var_mean(images, (0, 2, 3))
    return torch.stack([mean, variance])


def test_running_statistics_get_one_entry_a_task_the_mean_of_its_support_passes():
    method = maml("running", smooth, fast=False)
    seen = []
    method.backbone.norm.register_forward_pre_hook(
        lambda layer, inputs: seen.append((len(inputs[0]), statistics_of(layer, inputs[0].detach())))
    )
    learner = plain(method, epochs=EPOCHS)
    learner(pictures(smooth, queries=4))
    (entries,) = pop_statistics(learner)
    support = [found for examples, found in seen if examples == WAYS]  # epoch by epoch, task after task
    assert len(seen) == 2 * EPOCHS + 2
    exact(entries, torch.stack([torch.stack(support[task::2]).mean(0) for task in range(2)]))


def test_running_statistics_normalise_and_are_updated_by_commit_alone():
    learner, batch = plain(maml("running", smooth), epochs=EPOCHS), pictures(smooth)
    layer = learner.method.backbone.norm
    before = learner(batch).scores
    assert torch.equal(layer.running_mean, torch.zeros(2))
    exact(learner(batch).scores, before)
    pop_statistics(learner)
    learner(batch)
    commit_statistics(learner, pop_statistics(learner))
    assert not torch.allclose(layer.running_mean, torch.zeros(2, dtype=torch.float64))
    assert int(layer.num_batches_tracked) == 2
    assert not torch.allclose(learner(batch).scores, before)
    pop_statistics(learner)
    evaluated = learner.eval()(batch).scores
    exact(learner.train()(batch).scores, evaluated)  # the same statistics in training and test
    with batchnorm_mode(learner.method.backbone, "running"):
        frozen = learner.method.backbone(batch.support[0]).view(WAYS, 2, 4).mean(-1)
    exact(learner.method.begin(batch).basis().support()[0], frozen)


@pytest.mark.parametrize("votes", ["last", "generated"])
def test_every_step_has_statistics_of_its_own(votes):
    method = maml("per_step", smooth)
    learner = (
        plain(method, epochs=EPOCHS)
        if votes == "last"
        else generated(method, context("rms", method, transductive=True), epochs=EPOCHS)
    )
    learner(pictures(smooth, tasks=2))
    popped = pop_statistics(learner)
    assert [len(entries) for entries in popped] == [0] + [2] * (EPOCHS + 1)  # the backbone's own layer stays as it is
    alone = []
    for task in range(2):
        learner(pictures(smooth, tasks=2).tasks(task, task + 1))
        alone.append(pop_statistics(learner))
    for entries, first, second in zip(popped, *alone, strict=True):
        exact(entries, torch.cat([first, second]))
    commit_statistics(learner, popped)
    sets = [step[0].running_mean for step in method.statistics.steps]
    assert all(not torch.allclose(first, second) for first, second in pairwise(sets))


def test_per_step_training_uses_the_images_own_statistics():
    batch = pictures(smooth)
    exact(
        plain(maml("per_step", smooth), epochs=EPOCHS)(batch).scores,
        plain(maml("batch", smooth), epochs=EPOCHS)(batch).scores,
    )


def test_queries_after_an_update_belong_to_the_step_of_the_support_before_it():
    assert [step_of("support", updates) for updates in range(4)] == [0, 1, 2, 3]
    assert [step_of("query", updates) for updates in range(1, 5)] == [0, 1, 2, 3]
    assert step_of("query", 0) == 0  # no update yet


@pytest.mark.parametrize("mode", MODES)
def test_recomputed_passes_are_not_counted_twice(mode):
    results = []
    for checkpointed in (False, True):
        method = maml(mode, smooth, checkpointed=checkpointed)
        learner = generated(method, context("stats", method, transductive=True), epochs=EPOCHS)
        batch = pictures(smooth)
        meta_loss(learner(batch, every_epoch=True).scores, batch.query_labels).backward()
        results.append([*pop_statistics(learner), *(part.grad for part in learner.parameters())])
    for found, expected in zip(*results, strict=True):
        exact(found, expected)


def test_nothing_is_set_aside_at_test_or_in_batch_mode():
    for mode in MODES:
        learner = plain(maml(mode, smooth), epochs=EPOCHS)
        learner.train(mode == "batch")
        learner(pictures(smooth))
        assert all(len(entries) == 0 for entries in pop_statistics(learner))


def test_a_commit_before_the_backward_pass_changes_nothing():
    results = []
    for commit in (False, True):
        learner, batch = plain(maml("running"), epochs=EPOCHS), pictures()
        loss = meta_loss(learner(batch).scores, batch.query_labels)
        if commit:
            commit_statistics(learner, pop_statistics(learner))
        results.append(torch.autograd.grad(loss, list(learner.parameters())))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def test_statistics_travel_in_checkpoints():
    learner, batch = trained("per_step"), pictures(seed=9)
    other = plain(maml("per_step"), epochs=EPOCHS).eval()
    assert not torch.allclose(other(batch).scores, learner(batch).scores)
    other.load_state_dict(learner.state_dict())
    assert torch.equal(other(batch).scores, learner(batch).scores)
    assert len(list(other.parameters())) == len(list(plain(maml("batch")).parameters()))


def test_the_network_is_left_in_the_mode_it_had():
    method = maml("running", fast=False)
    plain(method)(pictures())
    assert all(layer.mode == "standard" for layer in task_batchnorms(method.backbone))


def test_errors_say_what_to_do():
    learner = plain(maml("per_step", smooth), epochs=EPOCHS)
    with pytest.raises(SettingsError, match="statistics for 3 inner epochs but epoch 4"):
        learner.eval()(pictures(smooth), epochs=4)
    with pytest.raises(SettingsError, match="exactly when BatchNorm keeps statistics per step"):
        smooth(batchnorm="per_step")
    with pytest.raises(SettingsError, match="exactly when BatchNorm keeps statistics per step"):
        smooth(batchnorm="running", epochs=3)

    class Foreign(nn.Sequential):
        feature_size, feature_positions = 16, 1

    with pytest.raises(SettingsError, match=r"layer '0' is a BatchNorm2d, .* wrap the network"):
        Maml(Foreign(nn.BatchNorm2d(1), nn.Flatten()), ways=WAYS)
