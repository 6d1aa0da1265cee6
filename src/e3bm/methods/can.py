"""CAN and CAN+T (Hou et al., NeurIPS 2019): cross attention between class maps and query maps.

For a class map P and a query map Q, R_ij is the cosine of P at position i and Q at position j. A small network makes of
the mean over i a kernel k_j; the class is looked at with A = softmax_i(mean_j k_j R_ij / temperature), so that position
i counts 1 + A_i times. The query is looked at in the same way with i and j exchanged. A score is the scaled cosine of
the two means over positions. CAN+T then takes its most confident queries into the class means and scores again.

Attended maps of all pairs are never built: only their means over positions are needed, and the dense scores need no
attention of the query, because 1 + A_j > 0 does not turn a vector.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.context import Basis
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import Method, meta_loss
from e3bm.errors import DataError, SettingsError
from e3bm.methods.base import (
    METHODS,
    DirectMethod,
    Encoder,
    InnerLoopMethod,
    InnerLoopSettings,
    MethodSettings,
    Needs,
    Parts,
)
from e3bm.methods.head_norm import NormedLinear
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.labelled import LabelledSupport

PUBLISHED_SHARE = 35 / 75


class CrossAttention(nn.Module):
    """The fusion layer: correlations of two maps to attention over the positions of the first."""

    def __init__(self, positions: int, hidden: int, temperature: float) -> None:
        super().__init__()
        self.positions, self.temperature = positions, temperature
        self.first = NormedLinear(positions, hidden, bias=True)
        self.second = nn.Linear(hidden, positions)
        for linear in (self.first.linear, self.second):
            nn.init.normal_(linear.weight, std=(2.0 / linear.out_features) ** 0.5)  # as published: over the outputs

    def forward(self, correlations: Float[Tensor, "T W Q P R"]) -> Float[Tensor, "T W Q P"]:
        """Attention over P, summing to 1; the kernel reads the mean over P and weighs R."""
        mean = correlations.mean(-2)
        kernel: Tensor = self.second(self.first(mean.flatten(1, 2)).relu()).view_as(mean)
        logits = (correlations * kernel.unsqueeze(-2)).mean(-1)
        return (logits / self.temperature).softmax(-1)


class Looks(NamedTuple):
    """Every query beside every class: its score, the class's mean as the query sees it, and where it is looked at."""

    scores: Float[Tensor, "T Q W"]
    class_vectors: Float[Tensor, "T Q W C"]
    query_attention: Float[Tensor, "T Q W P"]


class CanLosses(NamedTuple):
    """The two terms of CAN's training loss; ``overall`` is None without a classifier of the training classes."""

    dense: Float[Tensor, ""]
    overall: Float[Tensor, ""] | None


@dataclass(frozen=True)
class CanTrace(Trace):
    """The trace of a training step: with the terms of the loss."""

    own: CanLosses


@dataclass(frozen=True)
class RoundTrace(AdaptationTrace):
    """The same with rounds; the terms are those before the first round."""

    own: CanLosses | None = None


class AttendedMaps(Method):
    """What CAN and CAN+T share: cross attention on the maps [T N C H W] that the encoder gives, and the training loss.

    In training each task is normalised by its own pairs, not by all tasks' together as published.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        channels: int,
        positions: int,
        classes: int = 0,
        hidden: int | None = None,
        scale: float = 7.0,
        temperature: float = 0.025,
        dense_share: float = 0.5,
    ) -> None:
        """``classes`` is the number of training classes of the auxiliary classifier, 0 for none.

        ``hidden`` is positions // 6 unless given, and at least 2.
        """
        super().__init__()
        if channels < 1 or positions < 1 or classes < 0 or temperature <= 0:
            raise SettingsError(
                "CAN needs 1 or more channels and positions, 0 or more classes and a temperature above 0; found "
                f"{channels}, {positions}, {classes} and {temperature}."
            )
        self.encoder, self.scale, self.dense_share = encoder, scale, dense_share
        self.channels, self.positions, self.classes = channels, positions, classes
        self.attention = CrossAttention(positions, hidden or max(2, positions // 6), temperature)
        self.classifier = nn.Linear(channels, classes) if classes else None

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Scaled cosines of attended means; query labels are not used."""
        return self.look(*self.maps(batch)).scores

    def maps(self, batch: TaskBatch) -> tuple[Float[Tensor, "T W C P"], Float[Tensor, "T Q C P"]]:
        """Mean maps of the classes and maps of the queries, with positions in a row."""
        support, query = self.encoded(batch)
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        return labelled.class_means(support.flatten(2)).unflatten(2, support.shape[2:]), query

    def encoded(self, batch: TaskBatch) -> tuple[Float[Tensor, "T S C P"], Float[Tensor, "T Q C P"]]:
        """Maps of the support and of the queries."""
        return self._rows(self.encoder(batch.support, batch.support_mask)), self._rows(self.encoder(batch.query))

    def look(self, classes: Float[Tensor, "T W C P"], query: Float[Tensor, "T Q C P"]) -> Looks:
        """Look at every pair of a class and a query."""
        tasks, ways, _, positions = classes.shape
        queries = query.shape[1]
        # One product a task; pairs as they come out of it are [T, W P, Q P].
        of_classes, of_queries = unit(classes.mT).flatten(1, 2), unit(query.mT).flatten(1, 2)
        products = torch.bmm(of_classes, of_queries.mT).view(tasks, ways, positions, queries, positions)
        correlations = products.transpose(2, 3)
        # The class side comes first: running averages move in the order of the calls.
        class_attention, query_attention = self.attention(correlations), self.attention(correlations.mT)
        seen_by_query = query_attention.transpose(1, 2)
        class_vectors = ((1 + class_attention) @ classes.mT / positions).transpose(1, 2)
        query_vectors = (1 + seen_by_query) @ query.mT / positions
        scores = self.scale * torch.linalg.vecdot(unit(class_vectors), unit(query_vectors))
        return Looks(scores, class_vectors, seen_by_query)

    def dense_scores(self, looks: Looks, query: Float[Tensor, "T Q C P"]) -> Float[Tensor, "T Q W P"]:
        """Scaled cosines of every position of a query with the classes' means as that query sees them."""
        return self.scale * unit(looks.class_vectors) @ unit(query.mT).mT

    def losses(self, looks: Looks, query: Float[Tensor, "T Q C P"], batch: TaskBatch) -> CanLosses:
        """Cross-entropy at every position: among the task's classes, and among the training classes."""
        labels, numbers = batch.query_labels, batch.query_classes
        if labels is None:
            raise DataError("Training needs the labels of the queries, found none.")
        positions = query.shape[-1]
        dense = self.dense_scores(looks, query).transpose(2, 3).flatten(0, 2)
        dense_loss = functional.cross_entropy(dense, labels.flatten().repeat_interleave(positions))
        if self.classifier is None:
            return CanLosses(dense_loss, None)
        if numbers is None:
            raise DataError(
                "CAN's classifier learns the training classes and needs each query's number among them, found none; "
                "give class numbers, or build it with classes=0."
            )
        # The classifier of an attended map: (1 + A) W q + b, which needs no attended map.
        own = labels.view(*labels.shape, 1, 1).expand(-1, -1, 1, positions)
        attention = 1 + looks.query_attention.gather(2, own).squeeze(2)
        logits = torch.addcmul(self.classifier.bias, attention.unsqueeze(-1), query.mT @ self.classifier.weight.mT)
        wanted = numbers.flatten().repeat_interleave(positions)
        return CanLosses(dense_loss, functional.cross_entropy(logits.flatten(0, 2), wanted))

    def total(self, losses: CanLosses) -> Float[Tensor, ""]:
        """The published training loss: the classifier's plus a share of the dense one."""
        dense = self.dense_share * losses.dense
        return dense if losses.overall is None else losses.overall + dense

    def _rows(self, maps: Tensor) -> Float[Tensor, "T N C P"]:
        if maps.ndim != 5:
            raise SettingsError(
                "CAN compares positions and needs feature maps [tasks, examples, channels, height, width]; the encoder "
                f"gave {list(maps.shape)}: take a backbone that gives maps instead of averages."
            )
        rows = maps.flatten(3)
        if rows.shape[2:] != (self.channels, self.positions):
            raise SettingsError(
                f"This CAN is made for maps of {self.channels} channels and {self.positions} positions; the encoder "
                f"gave {rows.shape[2]} channels and {rows.shape[3]} positions: use images of the size it was built for."
            )
        return rows


class CanSettings(MethodSettings):
    """CAN: cross attention between feature maps."""

    title = "CAN"
    needs = Needs(takes="maps", last_pooling=False, class_numbers=True)

    name: Literal["can"] = "can"
    hidden: int | None = Field(default=None, ge=1)
    """Hidden size of the fusion layer; unset: a sixth of the positions of a map, and at least 2."""
    scale: float = Field(default=7.0, gt=0)
    """Factor on the cosines."""
    temperature: float = Field(default=0.025, gt=0)
    """Temperature of the attention; a lower one concentrates on fewer positions."""
    dense_share: float = Field(default=0.5, ge=0)
    """Weight of matching at every position, relative to classifying the training classes."""


@METHODS.register("can")
class Can(AttendedMaps, DirectMethod):
    """Scores of cross attention; nothing is learned per task."""

    settings = CanSettings

    @classmethod
    def from_settings(cls, settings: CanSettings, parts: Parts) -> "Can":
        return cls(parts.encoder, **_sizes(parts), **settings.model_dump(exclude={"name"}))

    def forward(self, batch: TaskBatch) -> Trace:
        classes, query = self.maps(batch)
        looks = self.look(classes, query)
        if not self.training or batch.query_labels is None:
            return Trace(looks.scores)
        return CanTrace(looks.scores, self.losses(looks, query, batch))

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """The published loss."""
        assert isinstance(trace, CanTrace)
        return self.total(trace.own)


class CanTSettings(InnerLoopSettings):
    """CAN+T: CAN that adds its most confident queries to the classes; its rounds are the epochs."""

    title = "CAN+T"
    transductive = True
    needs = CanSettings.needs

    name: Literal["can_t"] = "can_t"
    epochs: int = Field(default=2, ge=1, le=1000)
    """Rounds."""
    rate: float = Field(default=1.0, gt=0)
    """How far class maps move to the means with the chosen queries; 1: as published."""
    order: Literal["second"] = "second"
    """The only choice: rounds are not gradients."""
    hidden: int | None = Field(default=None, ge=1)
    """Hidden size of the fusion layer; unset: a sixth of the positions of a map, and at least 2."""
    scale: float = Field(default=7.0, gt=0)
    """Factor on the cosines."""
    temperature: float = Field(default=0.025, gt=0)
    """Temperature of the attention; a lower one concentrates on fewer positions."""
    dense_share: float = Field(default=0.5, ge=0)
    """Weight of matching at every position, relative to classifying the training classes."""
    share: float = Field(default=PUBLISHED_SHARE, gt=0, le=1)
    """Share of the queries that each round chooses in addition."""


@METHODS.register("can_t")
class CanT(AttendedMaps, InnerLoopMethod):
    """CAN+T: rounds in which the most confident queries join the class means; transductive.

    A round is an epoch of the inner loop. The rate says how far the class maps move from where they are to the means of
    the support and the chosen queries: 1 is the published round, 0 none at all. With 2 epochs, the rate 1 and the last
    vote this is CAN+T. It trains on CAN's loss, which does not know of rounds; where rates or votes are trained, the
    cross-entropy of the ensemble's scores is added.
    """

    settings = CanTSettings

    def __init__(
        self,
        encoder: Encoder,
        *,
        channels: int,
        positions: int,
        classes: int = 0,
        hidden: int | None = None,
        scale: float = 7.0,
        temperature: float = 0.025,
        dense_share: float = 0.5,
        share: float = PUBLISHED_SHARE,
    ) -> None:
        """Round r chooses r times ``share`` of the queries, rounded down."""
        super().__init__(
            encoder,
            channels=channels,
            positions=positions,
            classes=classes,
            hidden=hidden,
            scale=scale,
            temperature=temperature,
            dense_share=dense_share,
        )
        if not 0 < share <= 1:
            raise SettingsError(f"The share of the queries that a round adds must lie in (0, 1], found {share}.")
        self.share = share

    @classmethod
    def from_settings(cls, settings: CanTSettings, parts: Parts) -> "CanT":
        own = settings.model_dump(exclude=set(InnerLoopSettings.model_fields))
        return cls(parts.encoder, **_sizes(parts), **own)

    def begin(self, batch: TaskBatch) -> "CanRounds":
        support, query = self.encoded(batch)
        return CanRounds(self, support, query, batch)

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """CAN's loss and, where rates or votes are trained, that of the ensemble's scores."""
        assert isinstance(trace, RoundTrace)
        assert trace.own is not None
        assert batch.query_labels is not None
        loss = self.total(trace.own)
        if trace.rates.requires_grad or trace.weights.requires_grad:
            loss = loss + meta_loss(trace.scores, batch.query_labels)
        return loss

    def rounds(self, queries: int) -> int:
        """How many rounds the published code makes for so many queries."""
        added = chosen_by_round(1, queries, self.share)
        return queries // added if added else 0


def _sizes(parts: Parts) -> dict[str, Any]:
    """Of maps and training classes."""
    if parts.map_shape is None:
        raise SettingsError("CAN compares positions and needs feature maps; take a backbone that gives maps.")
    channels, height, width = parts.map_shape
    return {"channels": channels, "positions": height * width, "classes": parts.classes}


class RoundState(NamedTuple):
    """Class maps as coefficients over support and query maps, the scores they give, and how many rounds are over.

    ``own`` are CAN's losses, in training.
    """

    coefficients: Float[Tensor, "T W N"]
    scores: Float[Tensor, "T Q W"]
    done: int
    own: CanLosses | None


class CanRounds:
    """The moves of CAN+T on T tasks; a direction is where the class maps would go, as coefficients."""

    def __init__(
        self, method: CanT, support: Float[Tensor, "T S C P"], query: Float[Tensor, "T Q C P"], batch: TaskBatch
    ) -> None:
        self.method, self.query, self.batch, self.ways = method, query, batch, batch.ways
        self.labels, self.mask = batch.support_labels, batch.mask
        self.maps: Float[Tensor, "T N C P"] = torch.cat([support, query], 1)
        self.labelled = LabelledSupport(self.labels, self.mask, batch.ways, support.dtype)

    @cached_property
    def pooled(self) -> Float[Tensor, "T N C"]:
        """Means over positions: what a hyperprior sees of maps."""
        return self.maps.mean(-1)

    @cached_property
    def gram(self) -> Float[Tensor, "T N N"]:
        """Products of these means."""
        return self.pooled @ self.pooled.mT

    def basis(self) -> Basis:
        support = self.mask.shape[1]
        return Basis(lambda: self.pooled, lambda: self.pooled[:, :support], lambda: self.pooled[:, support:], self.mask)

    def start(self) -> RoundState:
        share = functional.pad(self.labelled.class_share, (0, self.query.shape[1]))
        looks = self._look(share)
        trained = self.method.training and self.batch.query_labels is not None
        return RoundState(
            share, looks.scores, 0, self.method.losses(looks, self.query, self.batch) if trained else None
        )

    def empty(self) -> Float[Tensor, "T Q W"]:
        return self.query.new_zeros(*self.query.shape[:2], self.ways)

    def direction(self, state: RoundState) -> Float[Tensor, "T W N"]:
        """Class means of the support and of the queries that this round chooses; a choice has no derivative."""
        count = chosen_by_round(state.done + 1, self.query.shape[1], self.method.share)
        chosen, classes = most_confident(state.scores.detach(), count)
        labels = torch.cat([self.labels, classes], 1)
        mask = torch.cat([self.mask, chosen], 1)
        return LabelledSupport(labels, mask, self.ways, self.maps.dtype).class_share

    def observe(self, state: RoundState, direction: Float[Tensor, "T W N"]) -> "RoundObservation":
        return RoundObservation(self, state, direction)

    def step(self, state: RoundState, direction: Float[Tensor, "T W N"], rate: Float[Tensor, " T"]) -> RoundState:
        # lerp is the end itself where the rate is 1: the published round to the last digit.
        coefficients = torch.lerp(state.coefficients, direction, rate.view(-1, 1, 1))
        return RoundState(coefficients, self._look(coefficients).scores, state.done + 1, state.own)

    def vote(
        self, ensemble: Float[Tensor, "T Q W"], state: RoundState, weight: Float[Tensor, " T"]
    ) -> Float[Tensor, "T Q W"]:
        return torch.addcmul(ensemble, state.scores, weight.view(-1, 1, 1))

    def scores(self, ensemble: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        return ensemble

    def remember(self, trace: AdaptationTrace, state: RoundState) -> AdaptationTrace:
        """The trace, in training with CAN's losses."""
        if state.own is None:
            return trace
        parts = trace.rates, trace.weights, trace.losses, trace.epoch_scores
        return RoundTrace(trace.scores, *parts, own=state.own)

    def _look(self, coefficients: Float[Tensor, "T W N"]) -> Looks:
        """Look at the class maps that the coefficients make."""
        return self.method.look((coefficients @ self.maps.flatten(2)).unflatten(2, self.maps.shape[2:]), self.query)


class RoundObservation:
    """What a hyperprior may see of a round: the way back from where it leads is its gradient."""

    def __init__(self, problem: CanRounds, state: RoundState, direction: Float[Tensor, "T W N"]) -> None:
        self._problem, self._state = problem, state
        self._gradient = state.coefficients - direction

    def coefficients(self) -> Float[Tensor, "T N W"]:
        return self._gradient.mT

    def squared_norm(self) -> Float[Tensor, " T"]:
        return (self._gradient * (self._gradient @ self._problem.gram)).sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        """Cross-entropy of the support by scaled cosines of mean maps, without attention."""
        problem, pooled = self._problem, self._problem.pooled
        classes = unit(self._state.coefficients @ pooled)
        scores = problem.method.scale * classes @ unit(pooled[:, : problem.mask.shape[1]]).mT
        return problem.labelled.loss(scores.log_softmax(1))

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        return self._state.scores


def chosen_by_round(number: int, queries: int, share: float) -> int:
    """How many queries round ``number`` chooses: so many times the share, rounded down, and never more than all."""
    added = int(queries * share + 1e-9)  # 75 * (35 / 75) may fall a rounding error short of 35
    return min(number * added, queries)


def most_confident(scores: Float[Tensor, "T Q W"], count: int) -> tuple[Bool[Tensor, "T Q"], Int[Tensor, "T Q"]]:
    """True for the ``count`` queries of each task with the highest top score, and every query's best class.

    Of equal scores the earlier query goes first.
    """
    top, classes = scores.max(-1)
    order = top.argsort(stable=True, dim=-1, descending=True)
    chosen = torch.zeros_like(top, dtype=torch.bool)
    return chosen.scatter(1, order[:, :count], True), classes
