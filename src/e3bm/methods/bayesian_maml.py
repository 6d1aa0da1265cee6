"""Bayesian MAML (Yoon et al., NeurIPS 2018): a few classifiers, the particles, approximate a task's posterior together.

Each particle is a linear classifier on shared features. The inner loop moves them by Stein variational gradient descent
on the sum of the support's log-likelihoods and a log prior; the answer is the mean of their probabilities.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.context import Basis
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.errors import SettingsError
from e3bm.methods.base import (
    METHODS,
    Encoder,
    InnerLoopMethod,
    InnerLoopSettings,
    Parts,
    check_memory,
    check_ways,
)
from e3bm.methods.heads.collapsed import unit

Interaction = Literal["stein", "kernel", "independent"]
Width = Literal["matrix", "pairs", "mean"]
OuterLoss = Literal["mixture", "chaser"]
NARROWEST = 1e-12  # equal particles have a kernel too
WITHOUT_VOTES = (
    "the chaser loss does not use the votes, so v cannot be learned or generated with it; set hyperprior.weight to last"
    " or equal, or method.loss to mixture"
)


class BayesianMamlSettings(InnerLoopSettings):
    """BMAML: several linear classifiers of a task move together and answer by their mean probability."""

    title = "BMAML"

    name: Literal["bayesian_maml"] = "bayesian_maml"
    epochs: int = Field(default=5, ge=1, le=1000)
    """M: inner updates of all particles."""
    particles: int = Field(default=5, ge=1)
    """Linear classifiers for each task."""
    interaction: Interaction = "stein"
    """How particles move: together and apart as published, without repulsion, or each alone."""
    kernel: Width = "matrix"
    """Width of the kernel: median of all squared distances, or square of the median or mean distance of pairs."""
    prior_precision: float = Field(default=0.0, ge=0)
    """Precision of the normal prior of all weights; 0 is none."""
    spread: float = Field(default=0.1, gt=0)
    """Standard deviation of the particles' weights before training; they must start apart."""
    loss: OuterLoss = "mixture"
    """Outer loss: that of the mean probability, or the distance to where the leader would go (chaser)."""
    leader_steps: int = Field(default=1, ge=1)
    """Further steps of the chaser loss's leader, which also sees the labels of the queries."""
    leader_rate: float = Field(default=0.01, gt=0)
    """The leader's rate."""
    feature_length: float | None = Field(default=None, gt=0)
    """Length that features are scaled to; unset: as they are."""

    @property
    def without_votes(self) -> str | None:
        return WITHOUT_VOTES if self.loss == "chaser" else None

    @model_validator(mode="after")
    def _consistent(self) -> "BayesianMamlSettings":
        leader = {name: type(self).model_fields[name].default for name in ("leader_steps", "leader_rate")}
        if self.loss == "mixture" and self.model_dump(include=set(leader)) != leader:
            raise ValueError("only the chaser loss has a leader; set loss to chaser or leave out its steps and rate")
        return self


@dataclass(frozen=True, kw_only=True)
class BayesianMamlTrace(AdaptationTrace):
    """``chase``: squared distance of all particles to where the leader's further steps take them; None unless asked."""

    chase: Float[Tensor, " T"] | None


@METHODS.register("bayesian_maml")
class BayesianMaml(InnerLoopMethod):
    """Initial particles are meta-learned; the encoder is the outer loop's.

    ``interaction``: "stein" as published, "kernel" without repulsion, "independent" particles of plain gradient ascent.
    ``loss`` "mixture" is that of the mean probability; "chaser" asks particles to be where ``leader_steps`` further
    steps at ``leader_rate``, with the labels of the queries too, would take them. The likelihood is a sum over
    examples, so that rates mean less the fewer examples there are. ``feature_length`` scales features to that length.
    """

    settings = BayesianMamlSettings

    def __init__(
        self,
        encoder: Encoder,
        *,
        ways: int = 5,
        particles: int = 5,
        interaction: Interaction = "stein",
        kernel: Width = "matrix",
        prior_precision: float = 0.0,
        spread: float = 0.1,
        loss: OuterLoss = "mixture",
        leader_steps: int = 1,
        leader_rate: float = 0.01,
        feature_length: float | None = None,
        second_order: bool = True,
        epochs: int = 1,
    ) -> None:
        """``spread`` is the standard deviation of the particles' weights before training: they must start apart.

        ``epochs`` says for how many of them a training step keeps distances, all of which must fit into memory.
        """
        super().__init__()
        for name, value, known in (
            ("interaction", interaction, get_args(Interaction)),
            ("kernel", kernel, get_args(Width)),
            ("loss", loss, get_args(OuterLoss)),
        ):
            if value not in known:
                raise SettingsError(f"Bayesian MAML has no {name} '{value}'; known: {', '.join(known)}.")
        if particles < 1 or leader_steps < 0 or prior_precision < 0:
            raise SettingsError(
                "Bayesian MAML needs at least 1 particle and 0 or more leader steps and prior precision; found "
                f"{particles} particles, {leader_steps} steps and precision {prior_precision}."
            )
        self.interaction: Interaction = interaction
        self._check_memory(particles, ways, encoder.feature_size)
        self.encoder = encoder
        self.weight = nn.Parameter(spread * torch.randn(particles, ways, encoder.feature_size))
        self.bias = nn.Parameter(torch.zeros(particles, ways))
        self.kernel: Width = kernel
        self.prior_precision, self.feature_length, self.second_order = prior_precision, feature_length, second_order
        self.loss, self.leader_steps, self.leader_rate = loss, leader_steps, leader_rate
        self.epochs = epochs

    @classmethod
    def from_settings(cls, settings: BayesianMamlSettings, parts: Parts) -> "BayesianMaml":
        return cls(
            parts.encoder,
            ways=parts.ways,
            particles=settings.particles,
            interaction=settings.interaction,
            kernel=settings.kernel,
            prior_precision=settings.prior_precision,
            spread=settings.spread,
            loss=settings.loss,
            leader_steps=settings.leader_steps,
            leader_rate=settings.leader_rate,
            feature_length=settings.feature_length,
            second_order=settings.order == "second",
            epochs=settings.epochs,
        )

    def check_ways(self, ways: int) -> None:
        check_ways(self.weight.shape[1], ways, "particles, which are linear classifiers")

    def begin(self, batch: TaskBatch) -> "ParticleProblem":
        self.check_ways(batch.ways)
        # Without gradients nothing of an epoch is kept.
        particles, ways, features = self.weight.shape
        self._check_memory(particles, ways, features, len(batch), self.epochs if torch.is_grad_enabled() else 1)
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        if self.feature_length is not None:
            support, query = self.feature_length * unit(support), self.feature_length * unit(query)
        tasks = len(batch)
        start = torch.cat([self.weight, self.bias.unsqueeze(-1)], -1).expand(tasks, -1, -1, -1)
        mask = batch.mask
        lesson = ParticleLesson.of(support, batch.support_labels, mask, batch.ways)
        leader = None
        if self.loss == "chaser" and self.training and batch.query_labels is not None:
            # The leader's lesson has the queries and their labels; it never reaches the scores.
            everything = torch.cat([support, query], 1), torch.cat([batch.support_labels, batch.query_labels], 1)
            real = torch.cat([mask, torch.ones_like(batch.query_labels, dtype=torch.bool)], 1)
            leader = ParticleLesson.of(*everything, real, batch.ways)
        return ParticleProblem(self, lesson, leader, query, start, mask)

    def _check_memory(self, particles: int, ways: int, features: int, tasks: int = 1, epochs: int = 1) -> None:
        """What is kept of particles at a time must fit: differences of all pairs, or they themselves."""
        alone = self.interaction == "independent"
        needed = tasks * epochs * particles * (1 if alone else particles) * ways * (features + 1) * 4  # float32
        numbers = f"{particles} particles of {ways} x {features + 1} numbers"
        at_a_time = " for one task" if tasks == 1 else f" for {tasks} tasks"
        if epochs > 1:
            at_a_time += f" of {epochs} epochs"
        advice = "" if tasks == 1 else ", or fewer tasks in a step of the training (optimiser.tasks)"
        check_memory(
            needed,
            numbers if alone else f"The distances between {numbers}",
            f"use fewer particles{advice}",
            at_a_time=at_a_time,
        )

    def ascent(self, particles: Float[Tensor, "T P W E"], lesson: "ParticleLesson") -> Float[Tensor, "T P W E"]:
        """Where a lesson sends the particles."""
        scores = lesson.scores(particles) - self.prior_precision * particles
        if not self.second_order:
            scores = scores.detach()
        if self.interaction == "independent":
            return scores
        moved = stein_direction(
            particles.flatten(2), scores.flatten(2), self.kernel, repulsion=self.interaction == "stein"
        )
        return moved.view_as(particles)

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """The mixture's loss or the chaser's; ``progress`` has no part in it."""
        assert isinstance(trace, BayesianMamlTrace)
        assert batch.query_labels is not None
        if self.loss == "mixture":
            return meta_loss(trace.scores, batch.query_labels)
        if trace.chase is None:
            raise SettingsError(
                "The chaser loss compares with a leader that only training has; call train() before the forward pass."
            )
        if trace.weights.requires_grad:  # of a learner that was not made of settings
            raise SettingsError(f"{WITHOUT_VOTES.capitalize()}.")
        return trace.chase.mean()


class ParticleLesson(NamedTuple):
    """Examples with a one appended (for the bias), and their targets; padding has no share."""

    examples: Float[Tensor, "T N E"]
    targets: Float[Tensor, "T N W"]
    real: Float[Tensor, "T N 1"]

    @classmethod
    def of(
        cls, features: Float[Tensor, "T N D"], labels: Int[Tensor, "T N"], mask: Bool[Tensor, "T N"], ways: int
    ) -> "ParticleLesson":
        """A lesson of features and labels."""
        real = mask.to(features.dtype).unsqueeze(-1)
        return cls(with_one(features), functional.one_hot(labels, ways) * real, real)

    def log_probabilities(self, particles: Float[Tensor, "T P W E"]) -> Float[Tensor, "T P N W"]:
        """What every particle says of every example."""
        return (self.examples.unsqueeze(1) @ particles.mT).log_softmax(-1)

    def scores(self, particles: Float[Tensor, "T P W E"]) -> Float[Tensor, "T P W E"]:
        """Derivatives of the summed log-likelihood."""
        return -self.residual(particles).mT @ self.examples.unsqueeze(1)

    def residual(self, particles: Float[Tensor, "T P W E"]) -> Float[Tensor, "T P N W"]:
        """Softmax minus target, for every particle."""
        found = self.log_probabilities(particles).exp()
        return found * self.real.unsqueeze(1) - self.targets.unsqueeze(1)


class ParticleProblem:
    """The moves of particles on T tasks; a direction points downhill, against the ascent."""

    def __init__(
        self,
        method: BayesianMaml,
        lesson: ParticleLesson,
        leader: ParticleLesson | None,
        query: Float[Tensor, "T Q D"],
        start: Float[Tensor, "T P W E"],
        mask: Bool[Tensor, "T S"],
    ) -> None:
        self._method, self._leader, self._start, self._mask = method, leader, start, mask
        self.lesson, self.query, self.second_order = lesson, with_one(query), method.second_order

    def basis(self) -> Basis:
        support, query = self.lesson.examples[..., :-1], self.query[..., :-1]
        return Basis(lambda: support, lambda: support, lambda: query, self._mask)

    def start(self) -> Float[Tensor, "T P W E"]:
        return self._start

    def empty(self) -> Float[Tensor, "T Q W"]:
        shape = (*self.query.shape[:2], self._start.shape[2])
        return self.query.new_zeros(()).expand(shape)

    def direction(self, state: Float[Tensor, "T P W E"]) -> Float[Tensor, "T P W E"]:
        return -self._method.ascent(state, self.lesson)

    def observe(self, state: Float[Tensor, "T P W E"], direction: Float[Tensor, "T P W E"]) -> "ParticleObservation":
        return ParticleObservation(self, state)

    def step(
        self, state: Float[Tensor, "T P W E"], direction: Float[Tensor, "T P W E"], rate: Float[Tensor, " T"]
    ) -> Float[Tensor, "T P W E"]:
        return torch.addcmul(state, rate.view(-1, 1, 1, 1), direction, value=-1)

    def vote(
        self, ensemble: Float[Tensor, "T Q W"], state: Float[Tensor, "T P W E"], weight: Float[Tensor, " T"]
    ) -> Float[Tensor, "T Q W"]:
        return torch.addcmul(ensemble, weight.view(-1, 1, 1), self.query_scores(state))

    def scores(self, ensemble: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        return ensemble

    def remember(self, trace: AdaptationTrace, state: Float[Tensor, "T P W E"]) -> BayesianMamlTrace:
        """How far the leader would go from here; it is a constant of the outer loop."""
        chase = None
        if self._leader is not None:
            goal = state.detach()
            with torch.no_grad():
                for _ in range(self._method.leader_steps):
                    goal = goal + self._method.leader_rate * self._method.ascent(goal, self._leader)
            chase = (state - goal).square().sum((1, 2, 3))
        return BayesianMamlTrace(**vars(trace), chase=chase)

    def query_scores(self, state: Float[Tensor, "T P W E"]) -> Float[Tensor, "T Q W"]:
        """Logarithms of the particles' mean probability."""
        each = (self.query.unsqueeze(1) @ state.mT).log_softmax(-1)
        return each.logsumexp(1) - math.log(state.shape[1])


class ParticleObservation:
    """What a hyperprior may see of particles: the mean over them of their mean losses, and of its gradient."""

    def __init__(self, problem: ParticleProblem, state: Float[Tensor, "T P W E"]) -> None:
        self._problem = problem
        self._state = state if problem.second_order else state.detach()
        self._count = problem.lesson.real.sum(1, keepdim=True)  # T 1 1

    def coefficients(self) -> Float[Tensor, "T S W"]:
        return self._cut(self._problem.lesson.residual(self._state).mean(1) / self._count)

    def squared_norm(self) -> Float[Tensor, " T"]:
        gradient = self.coefficients().mT @ self._problem.lesson.examples
        return self._cut(gradient.square().sum((1, 2)))

    def loss(self) -> Float[Tensor, " T"]:
        lesson = self._problem.lesson
        found = (lesson.log_probabilities(self._state).mean(1) * lesson.targets).sum(-1, keepdim=True)
        return self._cut(-(found / self._count).sum((1, 2)))

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        return self._cut(self._problem.query_scores(self._state))

    def _cut(self, values: Tensor) -> Tensor:
        return values if self._problem.second_order else values.detach()  # all that is observed is a constant


def with_one(features: Float[Tensor, "T N D"]) -> Float[Tensor, "T N D1"]:
    """Features with a one at their end, which a particle's bias multiplies."""
    return functional.pad(features, (0, 1), value=1.0)


# Stein variational gradient descent (Liu and Wang, 2016): particles that move together. Each follows all particles'
# scores, weighted by a kernel K = exp(-|p - q|^2 / h), and is pushed away from the others by sum_q K (p - q)/h: the
# kernel's gradient would have 2/h, the published code has 1/h.


class Kernel(NamedTuple):
    """How much every particle minds every other, the push it gets from all of them, and the kernel's width."""

    values: Float[Tensor, "*B P P"]
    repulsion: Float[Tensor, "*B P N"]
    width: Float[Tensor, "*B"]


def stein_kernel(particles: Float[Tensor, "*B P N"], width: Width) -> Kernel:
    """The kernel between particles; a single one minds itself alone and is not pushed."""
    count = particles.shape[-2]
    if count == 1:
        one = torch.ones_like(particles[..., :1])
        return Kernel(one, torch.zeros_like(particles), one[..., 0, 0])
    # Differences first: by inner products, float32 would lose the digits of particles that are close.
    squares = (particles.unsqueeze(-2) - particles.unsqueeze(-3)).square().sum(-1)
    found = kernel_width(squares, width).clamp_min(NARROWEST)
    wide = found[..., None, None]
    values = (-squares / wide).exp()
    repulsion = (values.sum(-1, keepdim=True) * particles - values @ particles) / wide
    return Kernel(values, repulsion, found)


def kernel_width(squares: Float[Tensor, "*B P P"], width: Width) -> Float[Tensor, "*B"]:
    """h from squared distances: their median over the whole matrix, zeros included, or the square of the median or the
    mean distance of pairs; over log P. Medians are constants for gradients.
    """
    count = squares.shape[-1]
    if width == "matrix":
        return _median(squares.detach().flatten(-2)) / math.log(count)
    rows, columns = torch.triu_indices(count, count, 1, device=squares.device)
    pairs = squares[..., rows, columns]
    if width == "pairs":
        return _median(pairs.detach().sqrt()).square() / math.log(count)
    # A distance of zero has no derivative; here it counts as a constant.
    distances = torch.where(pairs > 0, pairs, torch.ones_like(pairs)).sqrt() * (pairs > 0)
    return distances.mean(-1).square() / math.log(count)


def stein_direction(
    particles: Float[Tensor, "*B P N"], scores: Float[Tensor, "*B P N"], width: Width, *, repulsion: bool = True
) -> Float[Tensor, "*B P N"]:
    """Where particles go, given the scores of each: the derivatives of its log posterior."""
    kernel = stein_kernel(particles, width)
    moved = kernel.values @ scores
    return (moved + kernel.repulsion if repulsion else moved) / particles.shape[-2]


def _median(values: Float[Tensor, "*B N"]) -> Float[Tensor, "*B"]:
    """The middle value, or the mean of the middle two."""
    ordered, count = values.sort(-1).values, values.shape[-1]
    return (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
