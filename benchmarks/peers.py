"""Other packages for second-order MAML, where they are installed: pip install higher torchopt."""

import importlib.util
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from benchmarks.maml import EPOCHS, RATE, learner, our_step, reference, reference_step, tasks_of_images
from benchmarks.maml_reference import Labelled, PlainConv4
from benchmarks.rows import Table
from benchmarks.timing import Work, taking_turns
from e3bm.core.episode import TaskBatch

Peer = Callable[[PlainConv4, Labelled, Labelled], tuple[Tensor, ...]]  # gradients of the adapted parameters


def by_higher(network: PlainConv4, support: Labelled, query: Labelled) -> tuple[Tensor, ...]:
    """Meta-gradients of one task by ``higher``."""
    import higher

    parameters = dict(network.named_parameters())
    adapted = [parameters[name] for name in network.adapted_names()]
    optimiser = torch.optim.SGD(adapted, lr=RATE)
    with higher.innerloop_ctx(network, optimiser, copy_initial_weights=False) as (copy, inner):
        for _ in range(EPOCHS):
            inner.step(network.head.out_features * functional.cross_entropy(copy(support.images), support.labels))
        return torch.autograd.grad(functional.cross_entropy(copy(query.images), query.labels), adapted)


def by_torchopt(network: PlainConv4, support: Labelled, query: Labelled) -> tuple[Tensor, ...]:
    """Meta-gradients of one task by ``torchopt``'s functional optimiser."""
    import torchopt

    parameters = dict(network.named_parameters())
    names, ways = network.adapted_names(), network.head.out_features
    start = tuple(parameters[name] for name in names)

    def loss(adapted: tuple[Tensor, ...], part: Labelled) -> Tensor:
        values = parameters | dict(zip(names, adapted, strict=True))
        return functional.cross_entropy(functional_call(network, values, (part.images,)), part.labels)

    inner, adapted = torchopt.FuncOptimizer(torchopt.sgd(lr=RATE)), start
    for _ in range(EPOCHS):
        adapted = inner.step(ways * loss(adapted, support), adapted)
    return torch.autograd.grad(loss(adapted, query), start)


PEERS: dict[str, Peer] = {"higher": by_higher, "torchopt": by_torchopt}


def installed() -> dict[str, Peer]:
    """The peers that can be imported here."""
    return {name: peer for name, peer in PEERS.items() if importlib.util.find_spec(name) is not None}


def step(peer: Peer, network: PlainConv4, batch: TaskBatch) -> Work:
    """The first task of a batch."""
    assert batch.query_labels is not None
    support = Labelled(batch.support[0], batch.support_labels[0])
    query = Labelled(batch.query[0], batch.query_labels[0])
    return lambda: peer(network, support, query)


def tables(quick: bool) -> list[Table]:
    """Speed of each, the plain loop being one."""
    peers, lines = installed(), []
    for size, shots in ((16, 1),) if quick else ((32, 1), (32, 5)):
        batch, model = tasks_of_images(size, shots), learner(size)
        works = {"plain loop": reference_step(reference(model, size), batch), "this package": our_step(model, batch)}
        works |= {name: step(peer, reference(model, size), batch) for name, peer in peers.items()}
        times = taking_turns(works, 1 if quick else 3)
        medians = {name: statistics.median(found) for name, found in times.items()}
        speeds = [
            medians["plain loop"] / medians[name] if name in medians else "not installed"
            for name in ("plain loop", *PEERS, "this package")
        ]
        lines.append((f"{size} px, {shots}-shot", *speeds))
    about = "MAML, 4CONV-32, 5 second-order steps, 75 queries, one task: times faster than the plain loop."
    return [Table("Other packages", about, ("task", "plain loop", *PEERS, "this package"), tuple(lines))]
