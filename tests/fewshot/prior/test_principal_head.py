"""The head on principal axes: its gradients, its collapsed form, and what does not change it."""

import torch
from torch.autograd import gradcheck

from e3bm.core.adapt import adapt_and_keep
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.fewshot.prior.learner import build_prior


def tasks(features=6, ways=3, shots=3, queries=2, count=2):
    random = torch.Generator().manual_seed(3)
    draw = lambda number: torch.randn(count, ways * number, features, generator=random, dtype=torch.double)
    labels = lambda number: torch.arange(ways).repeat_interleave(number).expand(count, -1).contiguous()
    return TaskBatch(draw(shots), labels(shots), draw(queries), labels(queries), ways)


def shaken(votes="e3bm", epochs=3):
    """A prior whose generator says something: before training its read-out is zero."""
    learner = build_prior(votes, epochs=epochs, hidden=2).double()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random, dtype=torch.double), alpha=0.1)
    return learner


def test_the_meta_gradient_is_that_of_finite_differences():
    learner = shaken()
    batch = tasks()
    names, parameters = zip(*learner.named_parameters(), strict=True)

    def loss(*values):
        named = dict(zip(names, values, strict=True))
        return meta_loss(torch.func.functional_call(learner, named, (batch,)).scores, batch.query_labels)

    assert gradcheck(loss, tuple(parameter.detach().requires_grad_() for parameter in parameters), atol=1e-6)


def test_the_collapsed_head_says_what_the_ensemble_says():
    learner, batch = shaken(), tasks(features=20)
    head, space = learner.method.open(batch)
    trace, ensemble = adapt_and_keep(head, learner.hyperprior, learner.epochs)
    folded = head.collapse(ensemble)
    scores = space(batch.query) @ folded.weight.mT + folded.bias.unsqueeze(1)
    torch.testing.assert_close(scores, trace.scores, rtol=1e-9, atol=1e-9)


def test_padding_changes_nothing():
    learner, batch = shaken(), tasks()
    mask = torch.ones(batch.support.shape[:2], dtype=torch.bool)
    mask[:, [2, 5]] = False
    kept = mask[0]
    spoilt = batch.support.clone()
    spoilt[:, ~kept] = 7.0
    padded = TaskBatch(spoilt, batch.support_labels, batch.query, batch.query_labels, 3, mask)
    short = TaskBatch(batch.support[:, kept], batch.support_labels[:, kept], batch.query, batch.query_labels, 3)
    torch.testing.assert_close(learner(padded).scores, learner(short).scores, rtol=1e-8, atol=1e-8)


def test_permuted_classes_permute_the_scores_and_a_rotation_changes_nothing():
    learner, batch = shaken(), tasks(features=8)
    order = torch.tensor([2, 0, 1])
    renamed = TaskBatch(batch.support, order[batch.support_labels], batch.query, order[batch.query_labels], batch.ways)
    torch.testing.assert_close(learner(renamed).scores[..., order], learner(batch).scores, rtol=1e-8, atol=1e-8)
    turn = torch.linalg.qr(torch.randn(8, 8, dtype=torch.double)).Q
    turned = TaskBatch(batch.support @ turn, batch.support_labels, batch.query @ turn, batch.query_labels, batch.ways)
    torch.testing.assert_close(learner(turned).scores, learner(batch).scores, rtol=1e-8, atol=1e-8)


def test_with_only_the_last_vote_the_scores_are_those_of_the_last_epoch():
    trace = shaken("last")(tasks(), every_epoch=True)
    torch.testing.assert_close(trace.scores, trace.epoch_scores[:, -1])
