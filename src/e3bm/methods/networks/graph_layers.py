"""The layers of an edge-labelling graph network: nodes gather along the edges, and edges follow the nodes.

Differences of nodes are symmetric, so that the edge network sees each pair once and counts it twice in its statistics.
Similarity and dissimilarity of an edge add up to 1; both are kept, because 1 - x forgets digits where x is close to 1.
"""

from collections.abc import Callable, Iterator
from copy import copy
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from e3bm.backbones.layers import activate
from e3bm.methods.head_norm import NormedLinear

SLOPE = 0.01  # of the leaky ReLU
EDGE_FLOOR = 1e-6  # added to every edge: no similarity is exactly 0 or 1
SMALLEST = 1e-12  # of sums that are divided by and of edges; far below what a layer gives
PAIRS_AT_ONCE = 4096  # of nodes, in training at least those of a task: what they need stays in the cache


class ChannelNet(nn.Module):
    """Linear, HeadNorm and leaky ReLU, as often as there are widths; the same for every node or pair of a graph."""

    def __init__(self, inputs: int, widths: tuple[int, ...], *, dropout: float, drop_all: bool) -> None:
        """``dropout`` drops whole channels of a graph: after every activation, or after the last one only."""
        super().__init__()
        self.layers = nn.ModuleList(
            NormedLinear(before, after, bias=False)
            for before, after in zip((inputs, *widths[:-1]), widths, strict=True)
        )
        self.dropout, self.drop_all = dropout, drop_all

    def forward(self, values: Float[Tensor, "T G N I"], counts: Float[Tensor, "T G N"]) -> Float[Tensor, "T G N O"]:
        return self.begin(*values.shape[:2])(values, counts)

    def begin(self, tasks: int, graphs: int) -> "ChannelPass":
        """A pass of these graphs, of which each call may take some of the tasks: what is dropped is drawn here."""
        return ChannelPass(self, tasks, graphs)


class ChannelPass:
    """A ChannelNet for graphs that come in pieces: what all of them share is computed once."""

    def __init__(self, net: ChannelNet, tasks: int, graphs: int) -> None:
        self._layers, self._taken = [cast(NormedLinear, layer) for layer in net.layers], 0
        self._matrices = [] if net.training else [layer.matrix() for layer in self._layers]
        # What the channels of each graph are multiplied by after a layer that drops some.
        self._kept: dict[int, Float[Tensor, "T G 1 _"]] = {}
        if net.training and net.dropout:
            for number, layer in enumerate(self._layers, 1):
                if net.drop_all or number == len(self._layers):
                    ones = layer.linear.weight.new_ones(tasks, graphs, 1, layer.linear.out_features)
                    self._kept[number] = functional.dropout(ones, net.dropout)

    def __call__(self, values: Float[Tensor, "T G N I"], counts: Float[Tensor, "T G N"]) -> Float[Tensor, "T G N O"]:
        """The next tasks."""
        for matrix, shift in self._matrices:
            values = activate(functional.linear(values, matrix, shift), SLOPE)
        if self._matrices:
            return values
        tasks, graphs, rows = values.shape[:3]
        for number, layer in enumerate(self._layers, 1):
            values = activate(layer(values.flatten(1, 2), counts.flatten(1)), SLOPE).unflatten(1, (graphs, rows))
            if number in self._kept:
                values = values * self._kept[number][self._taken : self._taken + tasks]
        self._taken += tasks
        return values


class GraphLayer(nn.Module):
    """Nodes gather from their neighbours; edges follow the nodes.

    Graphs are taken a few at a time, so that what is computed of their pairs stays in the processor's cache; in
    training all graphs of a task together, which share their statistics.
    """

    def __init__(self, features: int, hidden: int, edge_hidden: int, dropout: float) -> None:
        super().__init__()
        self.features = features
        self.node = ChannelNet(3 * features, (2 * hidden, hidden), dropout=dropout, drop_all=False)
        widths = (2 * edge_hidden, 2 * edge_hidden, edge_hidden, edge_hidden)
        self.edge = ChannelNet(hidden, widths, dropout=dropout, drop_all=True)
        self.out = nn.Linear(edge_hidden, 1)

    def forward(
        self, nodes: Float[Tensor, "T G N F"], edges: Float[Tensor, "T G 2 N N"], layout: "Layout"
    ) -> tuple[Float[Tensor, "T G N H"], Float[Tensor, "T G 2 N N"]]:
        """The nodes and edges of the next layer."""
        tasks, graphs = nodes.shape[:2]
        together = graphs if self.training else 1
        at_once = max(1, PAIRS_AT_ONCE // (together * layout.pairs.shape[1]))

        def pieces(of_graphs: Tensor) -> tuple[Tensor, ...]:
            return torch.split(of_graphs.reshape(-1, together, *of_graphs.shape[2:]), at_once)

        nets = self.node.begin(tasks, graphs), self.edge.begin(tasks, graphs)
        found = [
            self._next(*piece, *nets) for piece in zip(pieces(nodes), pieces(edges), layout.split(pieces), strict=True)
        ]
        new_nodes, new_edges = (torch.cat(each) for each in zip(*found, strict=True))
        return new_nodes.view(tasks, graphs, *new_nodes.shape[2:]), new_edges.view(edges.shape)

    def _next(
        self,
        nodes: Float[Tensor, "T G N F"],
        edges: Float[Tensor, "T G 2 N N"],
        layout: "Layout",
        node_net: ChannelPass,
        edge_net: ChannelPass,
    ) -> tuple[Float[Tensor, "T G N H"], Float[Tensor, "T G 2 N N"]]:
        edges = edges * layout.others
        mass = edges.sum(-1, keepdim=True)
        alike, unlike = ((edges / mass.clamp_min(SMALLEST)) @ nodes.unsqueeze(2)).unbind(2)
        nodes = node_net(torch.cat([nodes, alike, unlike], -1), layout.node_counts)
        # What a row has of either kind is handed out anew among its edges.
        edges = self.estimate(nodes, layout, edge_net) * edges
        edges = edges * (mass / edges.sum(-1, keepdim=True).clamp_min(SMALLEST)) + layout.itself
        return nodes, edges / edges.sum(2, keepdim=True)

    def estimate(
        self, nodes: Float[Tensor, "T G N H"], layout: "Layout", edge_net: ChannelPass | ChannelNet | None = None
    ) -> Float[Tensor, "T G 2 N N"]:
        """How alike and how unlike two nodes look; symmetric."""
        first, second = layout.pairs
        differences = (nodes.index_select(2, first) - nodes.index_select(2, second)).abs()
        logits = self.out((edge_net or self.edge)(differences, layout.pair_counts)).squeeze(-1)
        return torch.stack([logits, -logits], 2).sigmoid()[..., layout.pair_of]


class Layout:
    """Which nodes of T x G graphs are real, and which of them enter the statistics of BatchNorm.

    A pair of two nodes stands for both of its orders. The pair of a node with itself is the same for all nodes, a
    difference of zero: one row, the last, stands for all of them.
    """

    def __init__(self, real: Bool[Tensor, "T G N"], counted: Bool[Tensor, "T G N"], like: Float[Tensor, "..."]) -> None:
        size = real.shape[-1]
        one = torch.eye(size, dtype=like.dtype, device=like.device)
        self.itself: Float[Tensor, "2 N N"] = torch.stack([one, torch.zeros_like(one)]) + EDGE_FLOOR
        self.others: Float[Tensor, "T G 1 N N"] = ((1 - one) * real.to(like.dtype).unsqueeze(-2)).unsqueeze(2)
        self.pairs: Int[Tensor, "2 P"] = functional.pad(torch.triu_indices(size, size, 1, device=like.device), (0, 1))
        first, second = self.pairs
        pair_of = torch.full((size, size), len(first) - 1, device=like.device)
        pair_of[first, second] = pair_of[second, first] = torch.arange(len(first), device=like.device)
        self.pair_of: Int[Tensor, "N N"] = pair_of
        self.node_counts: Float[Tensor, "T G N"] = counted.to(like.dtype)
        twice = 2 * self.node_counts[..., first[:-1]] * self.node_counts[..., second[:-1]]
        self.pair_counts: Float[Tensor, "T G P"] = torch.cat([twice, self.node_counts.sum(-1, keepdim=True)], -1)

    def of_last_node(self) -> "Layout":
        """With the pairs of the last node only; no other pair is estimated, and each counts as one of a node with
        itself.
        """
        part, own, size = copy(self), self.pair_of[-1], len(self.pair_of)
        part.pairs, part.pair_counts = self.pairs[:, own], self.pair_counts[..., own]
        part.pair_of = torch.full_like(self.pair_of, size - 1)
        part.pair_of[-1] = part.pair_of[:, -1] = torch.arange(size, device=own.device)
        return part

    def split(self, pieces: Callable[[Tensor], tuple[Tensor, ...]]) -> Iterator["Layout"]:
        """The layouts of some graphs each."""
        for parts in zip(pieces(self.others), pieces(self.node_counts), pieces(self.pair_counts), strict=True):
            part = copy(self)
            part.others, part.node_counts, part.pair_counts = parts
            yield part
