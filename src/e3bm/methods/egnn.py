"""EGNN (Kim et al., CVPR 2019): support and queries are nodes of a graph whose edges say how alike their ends are.

A layer first lets every node gather from the others, once weighted by similarity and once by dissimilarity, and then
estimates the edges anew from the differences of the nodes. A query is classified by its edges to the support.
Transductive: one graph of the support and all queries. Inductive: a graph of the support and one query, for each query.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.context import Basis
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.errors import DataError, SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.head_norm import NormedLinear
from e3bm.methods.heads.labelled import LabelledSupport
from e3bm.methods.networks.graph_layers import SMALLEST, GraphLayer, Layout

Setting = Literal["inductive", "transductive"]
LOWEST_LOG = -100.0


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
    """Nodes and edges of the next layer; rows of edges that nobody is known to read are NaN, and marked."""

    nodes: Float[Tensor, "T G N H"]
    edges: Float[Tensor, "T G 2 N N"]
    unread: Bool[Tensor, "G 1 N 1"] | None = None


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
        """Where a layer leads; if not ``whole``, only edges that are read after the last layer are computed.

        These are the queries' own rows in tests and all edges of the graph without query; other rows are NaN.
        """
        if whole or self.method.training or self.method.transductive:
            return GraphDirection(*layer(state.nodes, state.edges, self.layout))
        with_query_or_not = partial(torch.split, split_size_or_sections=self.queries, dim=1)
        layouts = list(self.layout.split(with_query_or_not))
        layouts[0] = layouts[0].of_last_node()
        graphs = zip(with_query_or_not(state.nodes), with_query_or_not(state.edges), layouts, strict=True)
        nodes, edges = (torch.cat(each, 1) for each in zip(*(layer(*each) for each in graphs), strict=True))
        unread = torch.zeros(edges.shape[1], 1, edges.shape[3], 1, dtype=torch.bool, device=edges.device)
        unread[: self.queries, :, :-1] = True
        return GraphDirection(nodes, edges.masked_fill(unread, torch.nan), unread)

    def observe(self, state: GraphState, direction: GraphDirection) -> "GraphObservation":
        return GraphObservation(self, state, direction)

    def step(self, state: GraphState, direction: GraphDirection, rate: Float[Tensor, " T"]) -> GraphState:
        # lerp is the end itself where the rate is 1: the published layer to the last digit. Only beyond 1 can edges
        # leave [0, 1]; there they stop.
        ends, unread = direction.edges, direction.unread
        if unread is not None:  # gradients of a rate would be NaN, too
            ends = torch.where(unread, state.edges, ends)
        edges = torch.lerp(state.edges, ends, rate.view(-1, 1, 1, 1, 1)).clamp(SMALLEST, 1)
        if unread is not None:
            edges = edges.masked_fill(unread, torch.nan)
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
        """The edges after every layer of the published network; not ``whole``: of the last, what scores need.

        The other rows are NaN then.
        """
        state, found, last = self.start(), [], len(self.method.layers)
        for number, layer in enumerate(self.method.layers, 1):
            direction = self._through(layer, state, whole=whole or number < last)
            state = GraphState(direction.nodes, direction.edges, number)
            found.append(direction.edges)
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
