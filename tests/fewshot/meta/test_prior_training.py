"""Tasks are drawn as described, and training on them lowers the loss."""

import numpy as np
import pytest
import torch

from e3bm.errors import DataError
from e3bm.fewshot.fitted_head import LEVELS
from e3bm.fewshot.meta.pools import FeaturePool, TaskShapes, draw_batches, draw_tasks, task_batch, uneven_queries
from e3bm.fewshot.meta.train import train_prior, validate
from e3bm.fewshot.meta.train_trust import LOST, SHOTS, draw_trust_tasks, fit_to_tasks, fit_trust
from e3bm.fewshot.prior.learner import build_prior
from e3bm.fewshot.trust import choose_temperature, known_facts, known_levels, known_scores
from e3bm.runs.settings import OptimiserSettings


@pytest.fixture(scope="module")
def pool():
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 20)
    # The first column is the number of the row, so that tests can tell which rows a task has.
    features = random.standard_normal((12, 10))[labels] + random.standard_normal((240, 10))
    return FeaturePool("made up", np.column_stack([np.arange(240), features]).astype(np.float32), labels)


def test_tasks_have_the_asked_shape_and_no_example_twice(pool):
    batch = task_batch(pool, 3, 4, 2, 5, np.random.default_rng(0))
    assert batch.support.shape == (3, 8, 11)
    for task in range(3):
        rows = torch.cat([batch.support[task, :, 0], batch.query[task, :, 0]]).long().numpy()
        assert len(set(rows)) == 28
        classes = pool.labels[rows]
        assert len({*classes[:8]}) == 4
        for way in range(4):
            own = classes[np.r_[batch.support_labels[task] == way, batch.query_labels[task] == way]]
            assert len(set(own)) == 1


def test_uneven_tasks_leave_every_class_an_example(pool):
    batch = task_batch(pool, 5, 4, 6, 2, np.random.default_rng(0), uneven=True)
    counts = batch.mask.view(5, 4, 6).sum(-1)
    assert int(counts.min()) >= 1
    assert len(counts.unique()) > 2


def test_drawn_tasks_are_of_many_shapes_and_the_same_for_the_same_numbers(pool):
    shapes = TaskShapes()
    found = [draw_tasks([pool], shapes, 2, np.random.default_rng(seed)) for seed in range(30)]
    assert len({batch.ways for batch in found}) > 5
    assert len({batch.support.shape[-1] for batch in found}) > 2
    again = draw_tasks([pool], shapes, 2, np.random.default_rng(7))
    torch.testing.assert_close(again.support, found[7].support, rtol=0, atol=0)


def test_unlabelled_batches_are_of_any_size_and_proportions(pool):
    random = np.random.default_rng(0)
    sizes = {draw_batches([pool], TaskShapes(), 2, random).query.shape[1] for _ in range(30)}
    assert len(sizes) > 8
    batch = uneven_queries(task_batch(pool, 2, 4, 2, 8, random), random, 10)
    assert batch.query_labels.shape == (2, 10)


def test_a_pool_needs_classes_and_examples():
    with pytest.raises(DataError, match="two or more"):
        FeaturePool("small", np.zeros((3, 2), np.float32), np.array([0, 0, 1]))


def test_training_lowers_the_loss_and_tells_of_it(pool):
    learner, lines, steps = build_prior(epochs=4), [], []
    before = np.mean([line["nll"] for line in validate(learner, [pool])])
    settings = OptimiserSettings(steps=12, tasks=2, theta=5e-2, psi_rate=1e-2, psi_weight=1e-2, base_weight=2e-2)
    train_prior(
        learner,
        [pool],
        [pool],
        settings,
        seed=0,
        shapes=TaskShapes(most_ways=8),
        record=lines.append,
        every=6,
        advance=steps.append,
    )
    after = np.mean([line["nll"] for line in lines if line["split"] == "val" and line["step"] == 12])
    assert after < before
    assert steps == list(range(1, 13))
    assert [line["step"] for line in lines if line["split"] == "train"] == [6, 12]


def test_the_numbers_of_trust_follow_from_tasks(pool):
    learner = build_prior(epochs=3).double().requires_grad_(False)
    done = []
    trust = fit_trust(learner, [pool], tasks=2, seed=0, advance=done.append)
    assert done[-1] == 2 * sum(SHOTS.values())
    assert len(trust.temperature) == 14
    assert len(trust.known) == 15
    assert len(trust.location) == len(trust.log_scale) == 46
    by_ways = np.array([curve(1) for curve in trust.quantiles]).reshape(len(trust.ways), -1)
    assert (np.diff(by_ways) >= 0).all()
    assert trust.suspicion >= 0


def test_thresholds_lose_the_same_share_whatever_the_tails(pool):
    """Two pools, one of which has far-off examples: each should lose about a twentieth of the known."""
    far = pool.features.copy()
    far[::7, 1:] *= 3
    pools = [pool, FeaturePool("far-off", far, pool.labels)]
    learner = build_prior(epochs=3).double().requires_grad_(False)
    tasks = draw_trust_tasks(learner, pools, tasks=8, seed=0, advance=lambda done: None)
    trust = fit_to_tasks(tasks)
    kept: dict[str, list[float]] = {}
    for task in tasks:
        temperature = choose_temperature(task.facts, trust)
        facts = known_facts(task.facts, task.head, temperature, task.shots, task.held_out, trust)
        levels = known_levels(facts, task.head.ways, task.shots, trust)
        scores = known_scores(task.scores, task.distances, temperature, task.head.facts.unsqueeze(0), trust)
        share = (scores >= levels[LEVELS.index(LOST)]).double().mean()
        kept.setdefault(task.pool, []).append(float(share))
    for shares in kept.values():
        assert np.mean(shares) == pytest.approx(1 - LOST, abs=0.02)
