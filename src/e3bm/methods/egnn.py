"""EGNN (Kim et al., CVPR 2019): support and queries are nodes of a graph whose edges say how alike their ends are.

A layer first lets every node gather from the others, once weighted by similarity and once by dissimilarity, and then
estimates the edges anew from the differences of the nodes. A query is classified by its edges to the support.
Transductive: one graph of the support and all queries. Inductive: a graph of the support and one query, for each query.

Differences of nodes are symmetric, so that the edge network sees each pair once and counts it twice in its statistics.
Similarity and dissimilarity of an edge add up to 1; both are kept, because 1 - x forgets digits where x is close to 1.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from e3bm.backbones.layers import activate
from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.context import Basis
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.errors import DataError, SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.head_norm import NormedLinear
from e3bm.methods.heads.labelled import LabelledSupport

Setting = Literal["inductive", "transductive"]
SLOPE = 0.01  # of the leaky ReLU
EDGE_FLOOR = 1e-6  # added to every edge: no similarity is exactly 0 or 1
LOWEST_LOG = -100.0
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


class EgnnSettings(InnerLoopSettings):
    """EGNN: a graph of support and queries, whose layers are the epochs."""

    title = "EGNN"
    named_by = ("graph",)

    name: Literal["egnn"] = "egnn"
    epochs: int = Field(default=3, ge=1, le=1000)
    """Layers of the graph network."""
    test_epochs: None = None
    """Must stay unset: a test uses exactly the layers that were trained."""
    rate: float = Field(default=1.0, gt=0)
    """How far edges move from one layer's to the next; 1: as published."""
    order: Literal["second"] = "second"
    """The only choice: layers are not gradients."""
    graph: Setting = "transductive"
    """One graph with all queries, or a separate graph for each query."""
    hidden: int = Field(default=96, ge=1)
    """Features of nodes and edges after a layer."""
    embedding: int | None = Field(default=128, ge=1)
    """Size of the linear layer between features and graph; unset: none."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of channels that all layers but the last drop in training."""

    @property
    def transductive(self) -> bool:  # type: ignore[override]  # here it depends on an option
        """Whether a prediction uses the other queries."""
        return self.graph == "transductive"


@dataclass(frozen=True)
class EgnnTrace(AdaptationTrace):
    """The trace of a training step: with the loss of every layer's edges."""

    edge_losses: Float[Tensor, " M"] | None = None


@METHODS.register("egnn")
class Egnn(InnerLoopMethod):
    """A graph layer is an epoch of the inner loop.

    The rate says how far the edges move from the last layer's to this layer's own: 1 is the published network, 0 leaves
    the edges as they were at the start (the nodes always move on). With as many epochs as layers, the rate 1 and the
    last vote this is EGNN. In training each task is normalised by its own graphs, not by all tasks' together as
    published.
    """

    settings = EgnnSettings

    def __init__(
        self,
        encoder: Encoder,
        *,
        setting: Setting = "transductive",
        layers: int = 3,
        hidden: int = 96,
        edge_hidden: int | None = None,
        embedding: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        """``embedding``: features first pass a linear layer of that size and BatchNorm. ``dropout``: of all but the
        last layer.
        """
        super().__init__()
        if layers < 1 or hidden < 1 or not 0 <= dropout < 1:
            raise SettingsError(
                "EGNN needs 1 or more layers and hidden features and a dropout in [0, 1); "
                f"found {layers}, {hidden} and {dropout}."
            )
        self.encoder, self.setting = encoder, setting
        self.embedding = None if embedding is None else NormedLinear(encoder.feature_size, embedding, bias=False)
        sizes = [encoder.feature_size if embedding is None else embedding] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList(
            GraphLayer(size, hidden, edge_hidden or hidden, dropout if number < layers else 0.0)
            for number, size in enumerate(sizes, 1)
        )

    @classmethod
    def from_settings(cls, settings: EgnnSettings, parts: Parts) -> "Egnn":
        return cls(
            parts.encoder,
            setting=settings.graph,
            layers=settings.epochs,
            hidden=settings.hidden,
            embedding=settings.embedding,
            dropout=settings.dropout,
        )

    @property
    def transductive(self) -> bool:
        return self.setting == "transductive"

    def begin(self, batch: TaskBatch) -> "GraphProblem":
        return self.problem(batch, observed=True)

    def problem(self, batch: TaskBatch, *, observed: bool) -> "GraphProblem":
        """The graphs of a batch; inductive tasks ``observed`` by a hyperprior have one more, without a query."""
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        if support.ndim != 3 or support.shape[-1] != self.encoder.feature_size:
            raise SettingsError(
                f"This EGNN is made for features [tasks, examples, {self.encoder.feature_size}]; the encoder gave "
                f"{list(support.shape)}: take the backbone that it was built for, without maps."
            )
        return GraphProblem(self, support, query, batch, observed=observed)

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Logarithms of class probabilities after the last layer; query labels are not used."""
        problem = self.problem(batch, observed=False)
        return problem.class_scores(problem.all_layers(whole=False)[-1])

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """The published loss of the layers' edges.

        Edges know nothing of votes: where those are trained, the cross-entropy of the ensemble's scores is added.
        """
        assert batch.query_labels is not None
        if not isinstance(trace, EgnnTrace) or trace.edge_losses is None:
            return meta_loss(trace.scores, batch.query_labels)
        loss = over_layers(trace.edge_losses)
        return loss + meta_loss(trace.scores, batch.query_labels) if trace.weights.requires_grad else loss


def over_layers(losses: Float[Tensor, " M"]) -> Float[Tensor, ""]:
    """Half of every layer's loss but all of the last one's, divided by the number of layers."""
    return (losses.sum() + losses[-1]) / (2 * len(losses))


class GraphState(NamedTuple):
    """Nodes, edges (similarity and dissimilarity), how many layers they have passed, in training each one's loss."""

    nodes: Float[Tensor, "T G N F"]
    edges: Float[Tensor, "T G 2 N N"]
    passed: int
    losses: tuple[Float[Tensor, ""], ...] = ()


class GraphDirection(NamedTuple):
    """Nodes and edges of the next layer."""

    nodes: Float[Tensor, "T G N H"]
    edges: Float[Tensor, "T G 2 N N"]


class GraphProblem:
    """The moves of EGNN on T tasks.

    What a hyperprior sees of the edges are those of the support, in the one graph or, where each query has its own, in
    a graph without query: rates of inductive tasks must not know of the queries. That graph enters no statistics.
    """

    def __init__(
        self,
        method: Egnn,
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        batch: TaskBatch,
        *,
        observed: bool,
    ) -> None:
        self.method, self.support, self.query, self.batch = method, support, query, batch
        self.mask, self.support_size, self.queries = batch.mask, support.shape[1], query.shape[1]
        self.labelled = LabelledSupport(batch.support_labels, self.mask, batch.ways, support.dtype)
        features = torch.cat([support, query], 1)
        real = torch.cat([self.mask, self.mask.new_ones(len(batch), self.queries)], 1)
        if method.embedding is not None:
            features = method.embedding(features, real.to(features.dtype))
        if method.transductive:
            self.nodes, real = features.unsqueeze(1), real.unsqueeze(1)
            counted = real
        else:
            own = features[:, self.support_size :].unsqueeze(2)
            real = functional.pad(self.mask.unsqueeze(1).expand(-1, self.queries, -1), (0, 1), value=True)
            counted = real
            if observed:
                own = functional.pad(own, (0, 0, 0, 0, 0, 1))
                alone = functional.pad(self.mask, (0, 1), value=False).unsqueeze(1)
                real, counted = torch.cat([real, alone], 1), torch.cat([real, torch.zeros_like(alone)], 1)
            shared = features[:, : self.support_size].unsqueeze(1).expand(-1, own.shape[1], -1, -1)
            self.nodes = torch.cat([shared, own], 2)
        self.layout = Layout(real, counted, support)

    @cached_property
    def same(self) -> Bool[Tensor, "T S S"]:
        """Whether two support examples are of one class."""
        labels = self.batch.support_labels
        return labels.unsqueeze(1) == labels.unsqueeze(2)

    @cached_property
    def support_pairs(self) -> Bool[Tensor, "T S S"]:
        """Pairs of two different real support examples."""
        different = ~torch.eye(self.support_size, dtype=torch.bool, device=self.mask.device)
        return self.mask.unsqueeze(1) & self.mask.unsqueeze(2) & different

    @cached_property
    def gram(self) -> Float[Tensor, "T S S"]:
        return self.support @ self.support.mT

    def basis(self) -> Basis:
        return Basis(lambda: self.support, lambda: self.support, lambda: self.query, self.mask)

    def start(self) -> GraphState:
        """Edges of the support are its labels; nothing is known of an edge with a query."""
        others = self.nodes.shape[2] - self.support_size
        alike = functional.pad(self.same.to(self.nodes.dtype), (0, others, 0, others), value=0.5)
        edges = torch.stack([alike, 1 - alike], 1).unsqueeze(1)
        return GraphState(self.nodes, edges.expand(-1, self.nodes.shape[1], -1, -1, -1), 0)

    def empty(self) -> Float[Tensor, "T Q W"]:
        return self.query.new_zeros(*self.query.shape[:2], self.batch.ways)

    def direction(self, state: GraphState) -> GraphDirection:
        layers = self.method.layers
        if state.passed >= len(layers):
            raise SettingsError(
                f"This EGNN has {len(layers)} layers, which are its epochs; epoch {state.passed + 1} was asked for: "
                f"set epochs to {len(layers)}, or build it with more layers."
            )
        return self._through(layers[state.passed], state, whole=state.passed + 1 < len(layers))

    def _through(self, layer: nn.Module, state: GraphState, *, whole: bool) -> GraphDirection:
        """Where a layer leads; if not ``whole``, only edges that are read after the last layer need be right.

        These are the queries' own rows in tests and, among the support, those in the graph without query.
        """
        if whole or self.method.training or self.method.transductive:
            return GraphDirection(*layer(state.nodes, state.edges, self.layout))
        with_query_or_not = partial(torch.split, split_size_or_sections=self.queries, dim=1)
        layouts = list(self.layout.split(with_query_or_not))
        layouts[0] = layouts[0].of_last_node()
        graphs = zip(with_query_or_not(state.nodes), with_query_or_not(state.edges), layouts, strict=True)
        found = zip(*(layer(*each) for each in graphs), strict=True)
        return GraphDirection(*(torch.cat(each, 1) for each in found))

    def observe(self, state: GraphState, direction: GraphDirection) -> "GraphObservation":
        return GraphObservation(self, state, direction)

    def step(self, state: GraphState, direction: GraphDirection, rate: Float[Tensor, " T"]) -> GraphState:
        # lerp is the end itself where the rate is 1: the published layer to the last digit. Only beyond 1 can edges
        # leave [0, 1]; there they stop.
        edges = torch.lerp(state.edges, direction.edges, rate.view(-1, 1, 1, 1, 1)).clamp(SMALLEST, 1)
        trained = self.method.training and self.batch.query_labels is not None
        losses = (*state.losses, self.edge_loss(edges)) if trained else ()
        return GraphState(direction.nodes, edges, state.passed + 1, losses)

    def vote(
        self, ensemble: Float[Tensor, "T Q W"], state: GraphState, weight: Float[Tensor, " T"]
    ) -> Float[Tensor, "T Q W"]:
        return torch.addcmul(ensemble, self.class_scores(state.edges), weight.view(-1, 1, 1))

    def scores(self, ensemble: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        return ensemble

    def remember(self, trace: AdaptationTrace, state: GraphState) -> AdaptationTrace:
        """The trace, in training with the losses of the edges."""
        if not state.losses:
            return trace
        parts = trace.rates, trace.weights, trace.losses, trace.epoch_scores
        return EgnnTrace(trace.scores, *parts, edge_losses=torch.stack(state.losses))

    def all_layers(self, *, whole: bool = True) -> list[Float[Tensor, "T G 2 N N"]]:
        """The edges after every layer of the published network; not ``whole``: of the last, what scores need."""
        state, found, last = self.start(), [], len(self.method.layers)
        for number, layer in enumerate(self.method.layers, 1):
            nodes, edges = self._through(layer, state, whole=whole or number < last)
            state = GraphState(nodes, edges, number)
            found.append(edges)
        return found

    def class_scores(self, edges: Float[Tensor, "T G 2 N N"]) -> Float[Tensor, "T Q W"]:
        """Logarithms of the shares of the classes in a query's similarity: of the mean over each class's support."""
        by_class = self._to_support(edges)[:, 0] @ self.labelled.class_share.mT
        return by_class.log() - by_class.sum(-1, keepdim=True).log()

    def edge_loss(self, edges: Float[Tensor, "T G 2 N N"]) -> Float[Tensor, ""]:
        """Mean -log of the similarity where labels agree plus mean -log of the dissimilarity where they do not.

        Edges of queries only: from and to the support and, in one graph, among queries, each with itself included.
        Means are over a task's edges and then over tasks; as published, over all, where tasks have equally many.
        """
        labels = self.batch.query_labels
        if labels is None:
            raise DataError("Training needs the labels of the queries, found none.")
        parts = [self._to_support(edges), self._from_support(edges)]
        same = [labels.unsqueeze(2) == self.batch.support_labels.unsqueeze(1)] * 2
        real = [self.mask.unsqueeze(1).expand(-1, self.queries, -1)] * 2
        if self.method.transductive:
            parts.append(edges[:, 0, :, self.support_size :, self.support_size :])
            same.append(labels.unsqueeze(2) == labels.unsqueeze(1))
            real.append(torch.ones_like(same[-1]))
        logs = torch.cat(parts, 3).log().clamp_min(LOWEST_LOG)  # T 2 Q X
        agree, counted = torch.cat(same, 2), torch.cat(real, 2)
        wanted = torch.stack([agree & counted, ~agree & counted], 1).to(logs.dtype)
        return -((wanted * logs).sum((2, 3)) / wanted.sum((2, 3))).sum(1).mean()

    def support_edges(self, edges: Float[Tensor, "T G 2 N N"]) -> Float[Tensor, "T 2 S S"]:
        """Edges among the support: of the one graph, or of that without query."""
        return edges[:, -1, :, : self.support_size, : self.support_size]

    def _to_support(self, edges: Float[Tensor, "T G 2 N N"]) -> Float[Tensor, "T 2 Q S"]:
        """Edges from each query, as its row has them."""
        if self.method.transductive:
            return edges[:, 0, :, self.support_size :, : self.support_size]
        return edges[:, : self.queries, :, self.support_size, : self.support_size].transpose(1, 2)

    def _from_support(self, edges: Float[Tensor, "T G 2 N N"]) -> Float[Tensor, "T 2 Q S"]:
        """The same edges as the support's rows have them."""
        if self.method.transductive:
            return edges[:, 0, :, : self.support_size, self.support_size :].mT
        return edges[:, : self.queries, :, : self.support_size, self.support_size].transpose(1, 2)


class GraphObservation:
    """What a hyperprior may see of a layer: how it changes the support's similarity to each class.

    The way back from where the layer leads is its gradient, written in the features of the support.
    """

    def __init__(self, problem: GraphProblem, state: GraphState, direction: GraphDirection) -> None:
        self._problem, self._state, self._direction = problem, state, direction

    def coefficients(self) -> Float[Tensor, "T S W"]:
        problem = self._problem
        way_back = problem.support_edges(self._state.edges) - problem.support_edges(self._direction.edges)
        return way_back[:, 0] @ problem.labelled.class_share.mT * problem.mask.unsqueeze(-1)

    def squared_norm(self) -> Float[Tensor, " T"]:
        gradient = self.coefficients()
        return (gradient * (self._problem.gram @ gradient)).sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        """Mean -log probability of the support's own edges; 0 before the first layer, where edges are labels."""
        problem = self._problem
        pairs, (alike, unlike) = problem.support_pairs, problem.support_edges(self._state.edges).unbind(1)
        right = torch.where(problem.same, alike, unlike).clamp_min(SMALLEST)
        gains: Tensor = (right.log() * pairs).sum((1, 2)) / pairs.sum((1, 2))
        return -gains

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        return self._problem.class_scores(self._state.edges)
