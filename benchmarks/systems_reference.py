"""EGNN, CTM and MetaOptNet as their authors compute them: one task, graph, query or program after the other."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from e3bm.core.episode import TaskBatch
from e3bm.methods.ctm import GAP, Ctm
from e3bm.methods.egnn import Egnn
from e3bm.methods.meta_opt_net import MetaOptNet
from e3bm.methods.networks.graph_layers import EDGE_FLOOR, SLOPE, ChannelNet, GraphLayer

QpFunction = Callable[..., Tensor]


def egnn_scores(method: Egnn, batch: TaskBatch, task: int) -> Tensor:
    """Query scores of one task: a graph for each query, or one for all, with every ordered pair of nodes."""
    support, query = method.encoder(batch.support)[task], method.encoder(batch.query)[task]
    features = torch.cat([support, query])
    if method.embedding is not None:
        features = method.embedding(features.unsqueeze(0)).squeeze(0)
    known, labels = features[: len(support)], batch.support_labels[task]
    asked = [features[len(support) :]] if method.transductive else features[len(support) :].unsqueeze(1).unbind(0)
    return torch.cat([_graph_scores(method, torch.cat([known, own]), labels, batch.ways) for own in asked])


def _graph_scores(method: Egnn, nodes: Tensor, labels: Tensor, ways: int) -> Tensor:
    size, known = len(nodes), len(labels)
    alike = nodes.new_full((size, size), 0.5)
    alike[:known, :known] = (labels.unsqueeze(0) == labels.unsqueeze(1)).to(nodes.dtype)
    edges = torch.stack([alike, 1 - alike])
    for layer in method.layers:
        assert isinstance(layer, GraphLayer)
        nodes, edges = _layer(layer, nodes, edges)
    share = functional.one_hot(labels, ways).to(nodes.dtype)
    by_class = edges[0, known:, :known] @ (share / share.sum(0))
    return by_class.log() - by_class.sum(-1, keepdim=True).log()


def _layer(layer: GraphLayer, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    itself = torch.eye(len(nodes), dtype=nodes.dtype)
    edges = edges * (1 - itself)
    gathered = [(each / each.sum(-1, keepdim=True).clamp_min(1e-12)) @ nodes for each in edges]
    nodes = _net(layer.node, torch.cat([nodes, *gathered], -1))
    differences = (nodes.unsqueeze(0) - nodes.unsqueeze(1)).abs()
    alike = layer.out(_net(layer.edge, differences.flatten(0, 1))).view(len(nodes), -1).sigmoid()
    moved = torch.stack([alike, 1 - alike]) * edges
    moved = moved / moved.sum(-1, keepdim=True).clamp_min(1e-12) * edges.sum(-1, keepdim=True)
    moved = moved + torch.stack([itself, torch.zeros_like(itself)]) + EDGE_FLOOR
    return nodes, moved / moved.sum(0)


def _net(net: ChannelNet, values: Tensor) -> Tensor:
    for layer in net.layers:
        values = functional.leaky_relu(layer(values.unsqueeze(0)).squeeze(0), SLOPE)
    return values


def ctm_scores(method: Ctm, batch: TaskBatch, task: int) -> Tensor:
    """Query scores of one task: support and queries pass one by one, and so do their distances."""
    own = batch.tasks(task, task + 1)
    each = lambda examples: [method.encoder(examples[:, place : place + 1]) for place in range(examples.shape[1])]
    support, query = each(own.support), each(own.query)
    labels = own.support_labels[0].tolist()
    concentrated = [method.concentrator(maps) for maps in support]
    means = [
        torch.stack([found for found, label in zip(concentrated, labels, strict=True) if label == way]).mean(0)
        for way in range(batch.ways)
    ]
    mask = method.mask(torch.cat(means, 1))
    known = [method.reshaper(maps) * mask for maps in support]
    scores = []
    for maps in query:
        asked = method.reshaper(maps) * mask
        far = [torch.linalg.vector_norm((other - asked).flatten() + GAP) for other in known]
        of_way = [[d for d, label in zip(far, labels, strict=True) if label == way] for way in range(batch.ways)]
        scores.append(torch.stack([-torch.stack(found).mean() for found in of_way]))
    return method.scale * torch.stack(scores)


def svm_scores(method: MetaOptNet, solver: QpFunction, batch: TaskBatch) -> Tensor:
    """MetaOptNet's SVM by a general solver of quadratic programs, as its published code writes the program."""
    support, query = method.encoder(batch.support).double(), method.encoder(batch.query).double()
    tasks, count, ways = support.shape[0], support.shape[1], batch.ways
    one = torch.eye(ways, dtype=support.dtype)
    gram = support @ support.mT
    blocks = torch.stack([torch.kron(each, one) for each in gram]) + torch.eye(count * ways, dtype=support.dtype)
    target = functional.one_hot(batch.support_labels, ways).to(support.dtype).view(tasks, -1)
    caps = torch.eye(count * ways, dtype=support.dtype).expand(tasks, -1, -1)
    sums = torch.kron(torch.eye(count, dtype=support.dtype), torch.ones(1, ways, dtype=support.dtype))
    zeros = support.new_zeros(tasks, count)
    alpha = solver(blocks, -target, caps, method.penalty * target, sums.expand(tasks, -1, -1), zeros)
    weight = alpha.view(tasks, count, ways).mT @ support
    scores: Tensor = method.scale * (query @ weight.mT)
    return scores
