"""MAML (Finn et al., ICML 2017): the base-learner is the whole network, and its initial weights are meta-learned."""

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from e3bm.core.adapt import AdaptationTrace
from e3bm.core.context import Basis
from e3bm.core.episode import TaskBatch
from e3bm.errors import DataError, SettingsError
from e3bm.methods.base import METHODS, InnerLoopMethod, InnerLoopSettings, Needs, Parts, check_ways
from e3bm.methods.heads.labelled import LabelledSupport, PrototypeStart
from e3bm.methods.networks.functional import ImageBackbone, functional_pass
from e3bm.methods.networks.passes import Answer, FixedParameters, Lesson, Parameters, TaskPasses, parameter_names
from e3bm.methods.networks.step_statistics import BatchNorm, StepStatistics


class MamlSettings(InnerLoopSettings):
    """MAML: every weight of the network is adapted."""

    title = "MAML"
    needs = Needs(
        takes="images",
        backbone=("full",),
        batchnorm=("batch", "running", "batch_then_running", "per_step"),
        precision=("float32", "float64"),
        reasons={
            "backbone.adapt": "MAML adapts the whole network",
            "machine.precision": "MAML's second derivatives need float32 or float64",
        },
    )

    name: Literal["maml"] = "maml"
    start: Literal["learned", "zero", "prototype"] = "learned"
    """Theta_0 of the head: meta-learned, zero, or the task's class means."""
    feature_length: float | None = Field(default=None, gt=0)
    """Scale every feature vector to this length; unset: as the backbone gives them."""
    loss_scale: Literal["ways", "mean"] = "ways"
    """Inner loss: W times the mean cross-entropy, as published, or the mean."""
    checkpointed: bool = False
    """Recompute inner steps in the backward pass to save memory."""


@METHODS.register("maml")
class Maml(InnerLoopMethod):
    """Initial weights of a backbone and a linear head, adapted together; BatchNorm's scale and shift are not adapted.

    The inner loss is W times the mean cross-entropy as published (``loss_scale`` "ways") or the mean. With ``start``
    "zero" the head begins every task at zero, so that no class has an advantage before its examples are seen (Kao et
    al., ICLR 2022); with "prototype" at the nearest-class-mean rule of the task's support, for any number of ways
    (Triantafillou et al., ICLR 2020). ``feature_length`` scales what the head sees. ``checkpointed`` recomputes every
    inner step in the backward pass; ``fast`` off forces the general path through any network. ``epochs`` is needed by
    ``per_step`` BatchNorm only, whose sets ``led`` numbers as MAML++ does.
    """

    settings = MamlSettings

    def __init__(
        self,
        backbone: nn.Module,
        *,
        ways: int = 5,
        second_order: bool = True,
        loss_scale: Literal["ways", "mean"] = "ways",
        start: Literal["learned", "zero", "prototype"] = "learned",
        feature_length: float | None = None,
        batchnorm: BatchNorm = "batch",
        epochs: int | None = None,
        led: bool = False,
        checkpointed: bool = False,
        fast: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, ImageBackbone):
            raise SettingsError(
                "MAML needs a backbone that states its feature_size and feature_positions; found "
                f"{type(backbone).__name__}: wrap it with e3bm.backbones.wrap."
            )
        if loss_scale not in ("ways", "mean"):
            raise SettingsError(f"MAML's inner loss is scaled by 'ways' or 'mean'; found '{loss_scale}'.")
        self.positions = backbone.feature_positions
        self.backbone = backbone
        self.head: nn.Linear | PrototypeStart
        if start == "prototype":
            self.head = PrototypeStart(constant=not second_order)
        else:
            self.head = linear = nn.Linear(backbone.feature_size, ways)
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
            if start == "zero":
                nn.init.zeros_(linear.weight)
                linear.requires_grad_(False)
        self.statistics = StepStatistics(batchnorm, backbone, epochs, led=led)
        self.second_order, self.loss_scale, self.feature_length = second_order, loss_scale, feature_length
        self.checkpointed, self.fast = checkpointed, fast

    @classmethod
    def from_settings(cls, settings: MamlSettings, parts: Parts) -> "Maml":
        if parts.backbone is None:
            raise SettingsError("MAML adapts the whole network; set backbone.adapt to full.")
        return cls(
            parts.backbone,
            ways=parts.ways,
            second_order=settings.order == "second",
            loss_scale=settings.loss_scale,
            start=settings.start,
            feature_length=settings.feature_length,
            batchnorm=cast(BatchNorm, parts.batchnorm),
            epochs=settings.epochs if parts.batchnorm == "per_step" else None,
            checkpointed=settings.checkpointed,
        )

    @property
    def batchnorm(self) -> BatchNorm:
        """Whose statistics normalise; every result states it."""
        return self.statistics.mode

    @property
    def transductive(self) -> bool:
        """Whether a prediction depends in fact on the other queries, whatever the hyperprior sees."""
        return self.batchnorm == "batch" and self.statistics.normalises

    def check_ways(self, ways: int) -> None:
        if isinstance(self.head, nn.Linear):
            check_ways(self.head.out_features, ways, "linear head")

    def begin(self, batch: TaskBatch) -> "MamlProblem":
        return self.problem(batch)

    def problem(self, batch: TaskBatch, changes: "Changes | None" = None) -> "MamlProblem":
        """The moves, changed as a method that builds on this one wants them."""
        changes = Changes() if changes is None else changes
        self.check_ways(batch.ways)
        if batch.support.ndim != 5:
            raise DataError(
                "MAML adapts the network itself and takes images [tasks, examples, channels, height, width]; "
                f"found shape {tuple(batch.support.shape)}."
            )
        if torch.is_inference_mode_enabled():
            raise SettingsError("MAML takes gradients at test time too; use torch.no_grad in place of inference_mode.")
        names = parameter_names(self.backbone)
        values = dict(self.backbone.named_parameters())
        fixed = tuple(values[name] for name in names.fixed)
        passes = TaskPasses(
            functional_pass(self.backbone, fast=self.fast),
            self.statistics.open(self.backbone),
            names,
            changes.fixed or (lambda part, updates: fixed),
            second_order=self.second_order and not changes.first_order,
            loss_factor=float(batch.ways if self.loss_scale == "ways" else 1),
            feature_length=self.feature_length,
            checkpointed=self.checkpointed,
        )
        for task in range(len(batch)):
            passes.add_task(batch.support[task], batch.support_labels[task], batch.mask[task], batch.query[task])
        start = self._start(passes, tuple(values[name] for name in names.adapted), batch)
        return MamlProblem(passes, start, batch.mask, self.positions, changes)

    def _start(self, passes: TaskPasses, network: Parameters, batch: TaskBatch) -> tuple[Parameters, ...]:
        """Theta_0 of every task."""
        if isinstance(self.head, nn.Linear):
            return ((*network, self.head.weight, self.head.bias),) * len(batch)
        learners = []
        for task, (_, labels) in enumerate(passes.support):
            features = passes.embed(task, network).unsqueeze(0)
            real = torch.ones_like(labels, dtype=torch.bool)[None]
            weight, bias = self.head(features, LabelledSupport(labels[None], real, batch.ways, features.dtype))
            # The network under other names: to an inner step the head is a weight of its own, not a function of it.
            learners.append((*(each.view_as(each) for each in network), weight[0], bias[0]))
        return tuple(learners)


@runtime_checkable
class TensorRates(Protocol):
    """From an epoch's rate of every task to a rate for each tensor of its learner."""

    def __call__(self, updates: int, rate: Float[Tensor, " T"]) -> Float[Tensor, "T L"]: ...


@dataclass(frozen=True)
class Changes:
    """What differs from MAML in one batch of tasks.

    ``fixed`` parameters that depend on the pass, ``rates`` that depend on the tensor, inner gradients that are
    constants though the method is of second order, and whether the trace shall hold every learner's scores.
    """

    fixed: FixedParameters | None = None
    rates: TensorRates | None = None
    first_order: bool = False
    every_epoch: bool = False


@dataclass(frozen=True)
class Learners:
    """One learner per task after some updates, with what is already known of them; those before, if they are kept."""

    updates: int
    parameters: tuple[Parameters, ...]
    before: "Learners | None" = None
    lessons: list[Lesson] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


class MamlProblem:
    """The moves of MAML on T tasks; each pass of a learner is computed once, when it is first needed."""

    def __init__(
        self,
        passes: TaskPasses,
        start: tuple[Parameters, ...],
        mask: Bool[Tensor, "T S"],
        positions: int,
        changes: Changes,
    ) -> None:
        self._passes, self._mask, self._positions, self._changes = passes, mask, positions, changes
        self.second_order = passes.second_order
        # A frozen network is adapted all the same: its weights are then constants of the outer loop.
        first = tuple(
            tuple(each if each.requires_grad else each.detach().requires_grad_() for each in learner)
            for learner in start
        )
        self._start = Learners(0, first)

    def basis(self) -> Basis:
        return Basis(None, self._support_embeddings, self._query_embeddings, self._mask)

    def start(self) -> Learners:
        return self._start

    def empty(self) -> Float[Tensor, "T Q W"]:
        query, bias = self._passes.query[0], self._start.parameters[0][-1]
        return bias.new_zeros(()).expand(len(self._mask), len(query), len(bias))

    def direction(self, state: Learners) -> tuple[Parameters, ...]:
        return tuple(lesson.gradient for lesson in self.lessons(state))

    def observe(self, state: Learners, direction: tuple[Parameters, ...]) -> "MamlObservation":
        return MamlObservation(self, state, direction)

    def step(self, state: Learners, direction: tuple[Parameters, ...], rate: Float[Tensor, " T"]) -> Learners:
        rates = rate.unsqueeze(1).expand(-1, len(state.parameters[0]))
        if self._changes.rates is not None:
            rates = self._changes.rates(state.updates, rate)
        updated = [
            tuple(each - own * part for each, part, own in zip(learner, gradient, its_rates.unbind(0), strict=True))
            for learner, gradient, its_rates in zip(state.parameters, direction, rates.unbind(0), strict=True)
        ]
        return Learners(state.updates + 1, tuple(updated), state if self._changes.every_epoch else None)

    def vote(
        self, ensemble: Float[Tensor, "T Q W"], state: Learners, weight: Float[Tensor, " T"]
    ) -> Float[Tensor, "T Q W"]:
        return torch.addcmul(ensemble, weight.view(-1, 1, 1), self.query_scores(state))

    def scores(self, ensemble: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        return ensemble

    def remember(self, trace: AdaptationTrace, state: Learners) -> AdaptationTrace:
        """The trace, with every learner's scores where they are wanted."""
        if not self._changes.every_epoch or trace.epoch_scores is not None:
            return trace
        scores: list[Tensor] = []
        while state.before is not None:
            scores.insert(0, self.query_scores(state))
            state = state.before
        return replace(trace, epoch_scores=torch.stack(scores, 1))

    def lessons(self, state: Learners) -> list[Lesson]:
        """What each learner finds in its support."""
        if not state.lessons:
            state.lessons.extend(
                self._passes.learn(task, state.updates, learner) for task, learner in enumerate(state.parameters)
            )
        return state.lessons

    def query_scores(self, state: Learners) -> Float[Tensor, "T Q W"]:
        """Each learner's scores of its queries."""
        return torch.stack([answer.scores for answer in self._answers(state)])

    def _answers(self, state: Learners) -> list[Answer]:
        if not state.answers:
            state.answers.extend(
                self._passes.answer(task, state.updates, learner) for task, learner in enumerate(state.parameters)
            )
        return state.answers

    def _support_embeddings(self) -> Float[Tensor, "T S E"]:
        pooled = [self._pool(lesson.features) for lesson in self.lessons(self._start)]
        if bool(self._mask.all()):
            return torch.stack(pooled)
        padded = pooled[0].new_zeros(*self._mask.shape, pooled[0].shape[1])
        return padded.index_put(self._mask.nonzero(as_tuple=True), torch.cat(pooled))

    def _query_embeddings(self) -> Float[Tensor, "T Q E"]:
        return torch.stack([self._pool(answer.features) for answer in self._answers(self._start)])

    def _pool(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N E"]:
        return features.view(len(features), -1, self._positions).mean(-1)


class MamlObservation:
    """What a hyperprior may see of MAML's learners at an epoch."""

    def __init__(self, problem: MamlProblem, state: Learners, direction: tuple[Parameters, ...]) -> None:
        self._problem, self._state, self._direction = problem, state, direction

    def coefficients(self) -> Float[Tensor, "T D W"]:
        return torch.stack([gradient[-2].mT for gradient in self._direction])

    def squared_norm(self) -> Float[Tensor, " T"]:
        return torch.stack([torch.stack([part.square().sum() for part in each]).sum() for each in self._direction])

    def loss(self) -> Float[Tensor, " T"]:
        return torch.stack([lesson.loss for lesson in self._problem.lessons(self._state)])

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        scores = self._problem.query_scores(self._state)
        return scores if self._problem.second_order else scores.detach()  # all that is observed is a constant
