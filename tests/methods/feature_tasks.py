"""Tiny tasks of ready features in float64, and what every method on features promises of them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.func import functional_call

from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss

WAYS, SHOTS, QUERIES, FEATURES = 3, 2, 4, 5


def task_batch(seed=0, *, tasks=2, ways=WAYS, shots=SHOTS, queries=QUERIES, features=FEATURES, spread=1.0):
    """Classes around centres of their own; labels in no order; features are positive, as those of a network are."""
    draw = torch.Generator().manual_seed(seed)
    labels = lambda count: torch.stack(
        [torch.arange(ways).repeat(count)[torch.randperm(count * ways, generator=draw)] for _ in range(tasks)]
    )
    centres = 2 * torch.rand(tasks, ways, features, generator=draw, dtype=torch.float64)
    support_labels, query_labels = labels(shots), labels(queries)

    def examples(of):
        noise = spread * torch.rand(tasks, of.shape[1], features, generator=draw, dtype=torch.float64)
        return centres.gather(1, of.unsqueeze(-1).expand(-1, -1, features)) + noise

    return TaskBatch(examples(support_labels), support_labels, examples(query_labels), query_labels, ways)


def uneven(batch):
    """The same with the first task's first class, and the second task's second, an example short."""
    mask = torch.ones_like(batch.support_labels, dtype=torch.bool)
    for task in range(len(batch)):
        mask[task, torch.nonzero(batch.support_labels[task] == task % batch.ways)[0]] = False
    return replace(batch, support_mask=mask)


def close(found, expected, atol=1e-10):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


Scores = Callable[[TaskBatch], torch.Tensor]


@torch.no_grad()
def check_order_has_no_meaning(scores: Scores, batch: TaskBatch, *, support: bool = True):
    """Permuting tasks, queries, classes or support examples permutes the answers, or does nothing."""
    expected, draw = scores(batch), torch.Generator().manual_seed(5)
    shuffled = lambda count: torch.randperm(count, generator=draw)
    tasks = shuffled(len(batch))
    close(scores(_chosen(batch, tasks)), expected[tasks])
    queries = shuffled(batch.query.shape[1])
    close(scores(replace(batch, query=batch.query[:, queries], query_labels=None)), expected[:, queries])
    classes = shuffled(batch.ways)
    renamed = replace(batch, support_labels=classes[batch.support_labels], query_labels=None)
    close(scores(renamed)[..., classes], expected)
    if support:
        order = shuffled(batch.support.shape[1])
        moved = replace(
            batch,
            support=batch.support[:, order],
            support_labels=batch.support_labels[:, order],
            support_mask=batch.mask[:, order],
        )
        close(scores(moved), expected)


@torch.no_grad()
def check_tasks_are_alone(scores: Scores, batch: TaskBatch, atol: float = 1e-10):
    """A task's answers do not depend on the tasks beside it."""
    alone = torch.cat([scores(batch.tasks(task, task + 1)) for task in range(len(batch))])
    close(scores(batch), alone, atol)


@torch.no_grad()
def check_padding_has_no_influence(scores: Scores, batch: TaskBatch):
    """Uneven shots: masked examples may hold anything, and the tasks without them give the same answers."""
    batch = uneven(batch)
    expected = scores(batch)
    junk = torch.where(batch.mask.unsqueeze(-1), batch.support, batch.support.flip(1) + 3.0)
    close(scores(replace(batch, support=junk)), expected)
    for task in range(len(batch)):
        real, one = batch.mask[task], slice(task, task + 1)
        short = TaskBatch(batch.support[one, real], batch.support_labels[one, real], batch.query[one], None, batch.ways)
        close(scores(short), expected[one])


def check_gradients(model: nn.Module, batch: TaskBatch, *, fast: bool = False):
    """The meta-loss's derivatives by features and parameters against finite differences; fast: along one direction."""
    names = [name for name, _ in model.named_parameters()]
    assert batch.query_labels is not None

    def loss(support, query, *values):
        tasks = replace(batch, support=support, query=query)
        trace = functional_call(model, dict(zip(names, values, strict=True)), (tasks,))
        return meta_loss(trace.scores, batch.query_labels)

    leaves = [part.clone().requires_grad_() for part in (batch.support, batch.query)]
    parameters = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    assert torch.autograd.gradcheck(loss, (*leaves, *parameters), fast_mode=fast, check_undefined_grad=False)


def _chosen(batch: TaskBatch, tasks: torch.Tensor) -> TaskBatch:
    return TaskBatch(
        batch.support[tasks],
        batch.support_labels[tasks],
        batch.query[tasks],
        None if batch.query_labels is None else batch.query_labels[tasks],
        batch.ways,
        None if batch.support_mask is None else batch.support_mask[tasks],
    )
