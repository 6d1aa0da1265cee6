"""Examples used together: what they may change, and what not."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.fewshot.fitted_head import FitOptions, fit_head, is_one_sided
from e3bm.fewshot.meta.pools import FeaturePool, task_batch
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.prior.learner import build_prior
from e3bm.fewshot.prior.together import build_batch_prior


def clusters(ways=4, each=30, features=12, apart=1.0, seed=0):
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(ways), each)
    centres = apart * random.standard_normal((ways, features))
    return centres[labels] + random.standard_normal((len(labels), features)), labels


@pytest.fixture(scope="module")
def prior():
    return load_prior()


@pytest.fixture(scope="module")
def fitted(prior):
    features, labels = clusters()
    rows = np.concatenate([np.flatnonzero(labels == way)[:2] for way in range(4)])
    return fit_head(prior, features[rows], labels[rows], 4, FitOptions()), np.delete(features, rows, 0)


def test_the_order_of_the_batch_does_not_matter(prior, fitted):
    model, batch = fitted
    order = np.random.default_rng(1).permutation(len(batch))
    one, two = model.predict_together(batch, prior), model.predict_together(batch[order], prior)
    np.testing.assert_allclose(one.probabilities[order], two.probabilities, atol=1e-9)


def test_only_probabilities_and_labels_listen_to_the_batch(prior, fitted):
    model, batch = fitted
    alone, together = model.predict(batch), model.predict_together(batch, prior)
    # How much a batch changes is the prior's matter; that it is read at all is tested here.
    assert np.abs(alone.probabilities - together.probabilities).max() > 1e-6
    np.testing.assert_array_equal(together.labels, together.probabilities.argmax(1))
    for name in ("unknown", "known_scores", "disagreement"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))
    np.testing.assert_allclose(together.probabilities.sum(1), 1)


def test_an_example_alone_is_predicted_as_ever(prior, fitted):
    model, batch = fitted
    for row in batch[:5]:
        alone, together = model.predict(row[None]), model.predict_together(row[None], prior)
        np.testing.assert_allclose(together.probabilities, alone.probabilities, atol=1e-9)
    assert len(model.predict_together(batch[:0], prior).labels) == 0


def test_a_batch_of_one_class_is_answered_alone(prior, fitted):
    model, batch = fitted
    labels = model.predict(batch).labels
    one_class = batch[labels == labels[0]]
    alone, together = model.predict(one_class), model.predict_together(one_class, prior)
    np.testing.assert_array_equal(alone.probabilities, together.probabilities)


def test_one_sided_is_what_is_spread_over_few_of_the_classes():
    even = np.tile(np.arange(5), 8)
    assert not is_one_sided(even, 5)
    assert not is_one_sided(np.arange(3), 20)
    assert is_one_sided(np.zeros(40, np.int64), 5)
    assert is_one_sided(np.r_[np.zeros(36, np.int64), 1, 2, 3, 4], 5)
    assert not is_one_sided(np.zeros(1, np.int64), 5)


def test_renamed_classes_rename_the_answers(prior):
    features, labels = clusters(seed=2)
    rows, order = np.arange(0, len(labels), 10), np.array([3, 1, 0, 2])
    one = fit_head(prior, features[rows], labels[rows], 4, FitOptions()).predict_together(features, prior)
    two = fit_head(prior, features[rows], order[labels[rows]], 4, FitOptions()).predict_together(features, prior)
    np.testing.assert_allclose(two.probabilities[:, order], one.probabilities, atol=1e-7)


def test_a_batch_of_one_example_many_times_changes_nothing(prior, fitted):
    model, batch = fitted
    many = np.repeat(batch[:1], 30, 0)
    np.testing.assert_allclose(
        model.predict_together(many, prior).probabilities, model.predict(many).probabilities, atol=1e-9
    )


def test_before_training_a_batch_of_clusters_already_helps():
    features, labels = clusters(ways=5, apart=0.7, seed=3)
    batch = task_batch(FeaturePool("made up", features, labels), 20, 5, 1, 20, np.random.default_rng(0))
    inductive = load_prior().inductive.float()
    right = lambda learner: float((learner(batch).scores.argmax(-1) == batch.query_labels).float().mean())
    with torch.no_grad():
        assert right(build_batch_prior(inductive)) > right(inductive) + 0.05


def test_without_a_gradient_the_batch_changes_nothing():
    inductive = load_prior().inductive.double()
    features, labels = clusters()
    batch = task_batch(FeaturePool("made up", features, labels), 3, 3, 2, 4, np.random.default_rng(0))
    batch = TaskBatch(batch.support.double(), batch.support_labels, batch.query.double(), batch.query_labels, 3)
    together = build_batch_prior(inductive).double()
    with torch.no_grad():
        for parameter in together.method.sib.gradient_net.third.parameters():
            parameter.zero_()
    torch.testing.assert_close(together(batch).scores, inductive(batch).scores)
    inductive.float()


def test_the_meta_gradient_is_that_of_finite_differences():
    random = torch.Generator().manual_seed(5)
    draw = lambda count: torch.randn(1, count, 5, generator=random, dtype=torch.double)
    labels = torch.arange(3).repeat(2).unsqueeze(0)
    batch = TaskBatch(draw(6), labels, draw(6), labels, 3)
    learner = build_batch_prior(build_prior(epochs=2).double(), epochs=2).double()
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random, dtype=torch.double), alpha=0.1)
    # What the other layers' numbers do passes through these; all of them would cost minutes.
    few = ("sib.scale", "sib.bias", "third.weight", "hyperprior.rate", "hyperprior.weight", "readout")
    chosen = {name: value for name, value in learner.named_parameters() if any(part in name for part in few)}
    names = list(chosen)

    def loss(*values):
        named = dict(zip(names, values, strict=True))
        return meta_loss(torch.func.functional_call(learner, named, (batch,)).scores, batch.query_labels)

    assert gradcheck(loss, tuple(value.detach().requires_grad_() for value in chosen.values()), atol=1e-5)
    assert len(names) == len(few)
