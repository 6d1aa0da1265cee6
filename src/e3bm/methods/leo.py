"""LEO (Rusu et al., ICLR 2019): gradients move codes of a small latent space, then the weights decoded from them.

A class has one code. In training it is sampled as often as the class has examples, each copy is decoded with noise of
its own, and the class's weights are the mean of its copies; a copy's gradient is therefore 1/K of the class's. Without
noise all copies are equal, so that in tests one copy with rates divided by K is the same learner. Uneven shots have
their own K in every class.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.context import Basis
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Needs, Parts
from e3bm.methods.heads.collapsed import CollapsedHead, WeightedSum, unit
from e3bm.methods.heads.labelled import LabelledSupport

SMALLEST_DEVIATION = 1e-10


class LeoSettings(InnerLoopSettings):
    """LEO: gradients move a code of every class, then the weights decoded from it."""

    title = "LEO"
    needs = Needs(
        backbone=("frozen",),
        batchnorm=("running",),
        reasons={"backbone.adapt": "LEO trains on frozen features"},
    )

    name: Literal["leo"] = "leo"
    epochs: int = Field(default=10, ge=1, le=1000)
    """M: inner updates, the first of them on codes (latent_steps), the rest on weights."""
    rate: float = Field(default=1.0, gt=0)
    """alpha' of every epoch, which multiplies LEO's own learned rates: 1 is the published step."""
    latents: int = Field(default=64, ge=1)
    """Numbers in the code of a class."""
    latent_steps: int = Field(default=5, ge=0)
    """How many of the epochs move codes: the first ones."""
    latent_rate: float = Field(default=1.0, ge=0)
    """Learned rates of codes before training."""
    weight_rate: float = Field(default=1e-3, ge=0)
    """Learned rates of decoded weights before training."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """Share of features that is left out in training, drawn again at each use."""
    divergence: float = Field(default=0.1, ge=0)
    """Coefficient of the KL term between codes and a standard normal."""
    encoder_penalty: float = Field(default=1e-6, ge=0)
    """Coefficient of the squared distance that codes moved in the inner loop."""
    decay: float = Field(default=1e-8, ge=0)
    """Coefficient of the squared weights of LEO's networks."""
    orthogonality: float = Field(default=0.1, ge=0)
    """Coefficient of the squared cosines between rows of the decoder."""

    @model_validator(mode="after")
    def _consistent(self) -> "LeoSettings":
        if self.latent_steps > self.epochs:
            raise ValueError(
                f"LEO's {self.latent_steps} latent_steps are the first of its epochs, of which there are {self.epochs}"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class LeoTrace(AdaptationTrace):
    """How far the sampled codes are from a standard normal, and how far the inner loop moved them; zero in tests."""

    divergence: Float[Tensor, " T"]
    moved: Float[Tensor, " T"]


@METHODS.register("leo")
class Leo(InnerLoopMethod):
    """Codes and weights are samples of Gaussians in training and their means in tests; features have length one.

    The first ``latent_steps`` epochs move codes, later ones the decoded weights, both by learned rates for each number,
    which the epoch's rate multiplies: 1 is the published step. The inner loss is a sum over the support. ``dropout``
    acts on features in the encoder, in the support scores of each epoch and in the query scores. Four weights are those
    of the loss: of ``divergence`` (KL), of the ``encoder_penalty``, of the ``decay`` and of the ``orthogonality``.
    """

    settings = LeoSettings

    def __init__(
        self,
        encoder: Encoder,
        *,
        latents: int = 64,
        latent_steps: int = 5,
        latent_rate: float = 1.0,
        weight_rate: float = 1e-3,
        dropout: float = 0.3,
        divergence: float = 0.1,
        encoder_penalty: float = 1e-6,
        decay: float = 1e-8,
        orthogonality: float = 0.1,
        second_order: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if latents < 1 or latent_steps < 0:
            raise SettingsError(
                "LEO needs at least 1 latent number and 0 or more latent steps; "
                f"found {latents} numbers and {latent_steps} steps."
            )
        if not 0.0 <= dropout < 1.0:
            raise SettingsError(f"LEO's dropout must be at least 0 and below 1, found {dropout}.")
        self.encoder = encoder
        self.coder = LatentCoder(encoder.feature_size, latents)
        self.latent_rates = nn.Parameter(torch.full((latents,), float(latent_rate)))
        self.weight_rates = nn.Parameter(torch.full((encoder.feature_size,), float(weight_rate)))
        self.latent_steps, self.dropout = latent_steps, dropout
        self.divergence, self.encoder_penalty = divergence, encoder_penalty
        self.decay, self.orthogonality = decay, orthogonality
        self.second_order, self.seed = second_order, seed

    @classmethod
    def from_settings(cls, settings: LeoSettings, parts: Parts) -> "Leo":
        return cls(
            parts.encoder,
            latents=settings.latents,
            latent_steps=settings.latent_steps,
            latent_rate=settings.latent_rate,
            weight_rate=settings.weight_rate,
            dropout=settings.dropout,
            divergence=settings.divergence,
            encoder_penalty=settings.encoder_penalty,
            decay=settings.decay,
            orthogonality=settings.orthogonality,
            second_order=settings.order == "second",
        )

    def begin(self, batch: TaskBatch) -> "LeoProblem":
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        noise = TaskNoise(self.seed, batch) if self.training else None
        return self.problem(batch, unit(support), unit(query), noise)

    def problem(
        self, batch: TaskBatch, support: Float[Tensor, "T S D"], query: Float[Tensor, "T Q D"], noise: "Noise | None"
    ) -> "LeoProblem":
        """The moves on features as they are; without noise codes and weights are their means."""
        return LeoProblem(self, batch, support, query, noise)

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """The loss of the queries with LEO's four terms; ``progress`` has no part in it."""
        assert isinstance(trace, LeoTrace)
        assert batch.query_labels is not None
        loss = meta_loss(trace.scores, batch.query_labels)
        loss = loss + self.divergence * trace.divergence.mean() + self.encoder_penalty * trace.moved.mean()
        return loss + self.decay * self.coder.half_squares() + self.orthogonality * self.coder.correlation()


class LeoState(NamedTuple):
    """A learner: copies of its codes, weights decoded from them or moved since, and their slope in the deviations."""

    updates: int
    latents: Float[Tensor, "T W C L"]
    weights: Float[Tensor, "T W C D"]
    slope: Float[Tensor, "T W C D"] | None


class LeoDirection(NamedTuple):
    """The step at rate 1, the mean loss's gradient by the class weights, and the logarithms of support predictions."""

    step: Float[Tensor, "T W C N"]
    gradient: Float[Tensor, "T W D"]
    log_probabilities: Float[Tensor, "T W S"]


class LeoProblem:
    """The moves of LEO on T tasks; a class has C copies of its code, as many as the largest class has examples."""

    def __init__(
        self,
        leo: Leo,
        batch: TaskBatch,
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        noise: "Noise | None",
    ) -> None:
        self._leo, self._noise, self._mask = leo, noise, batch.mask
        self.second_order, self.support, self.query = leo.second_order, support, query
        self.labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        shots = (self.labelled.class_share > 0).sum(-1, keepdim=True)  # T W 1
        copies = 1 if noise is None else int(shots.max())
        self._real: Float[Tensor, "T W C"] = (torch.arange(copies, device=shots.device) < shots).to(support)
        self._share = (self._real / self._real.sum(-1, keepdim=True)).unsqueeze(2)  # T W 1 C
        self._shots = shots.to(support)
        self._examples = batch.mask.sum(1).to(support).view(-1, 1, 1)
        self._sample = self._draw_codes(copies)
        self._start = self._decoded(0, self._sample.latents)
        self._read = self._dropped("query", 0, query)

    def basis(self) -> Basis:
        return Basis(None, lambda: self.support, lambda: self.query, self._mask)

    def start(self) -> LeoState:
        return self._start

    def empty(self) -> WeightedSum:
        return WeightedSum.nothing(self._start.weights[:, :, 0])

    def direction(self, state: LeoState) -> LeoDirection:
        leo, moves_codes = self._leo, state.updates < self._leo.latent_steps
        if self.second_order:
            gradient, found = self._gradient(state)
        else:
            with torch.no_grad():
                gradient, found = self._gradient(state)
        each = (gradient / self._shots).unsqueeze(2).expand_as(state.weights)
        if moves_codes:
            back = leo.coder.back(each, state.slope)
            step = leo.latent_rates * (back if self.second_order else back.detach())
        else:
            step = leo.weight_rates * each
        return LeoDirection(step, gradient / self._examples, found)

    def observe(self, state: LeoState, direction: LeoDirection) -> "LeoObservation":
        return LeoObservation(self, state, direction)

    def step(self, state: LeoState, direction: LeoDirection, rate: Float[Tensor, " T"]) -> LeoState:
        moved, updates = rate.view(-1, 1, 1, 1) * direction.step, state.updates + 1
        if state.updates < self._leo.latent_steps:
            return self._decoded(updates, state.latents - moved)
        return LeoState(updates, state.latents, state.weights - moved, None)

    def vote(self, ensemble: WeightedSum, state: LeoState, weight: Float[Tensor, " T"]) -> WeightedSum:
        return ensemble.plus(self.class_weights(state), weight)

    def scores(self, ensemble: WeightedSum) -> Float[Tensor, "T Q W"]:
        return self._read @ ensemble.settled().folded.mT

    def collapse(self, ensemble: WeightedSum) -> CollapsedHead:
        """The one matrix whose products with features of length one are the ensemble's scores."""
        weight = ensemble.settled().folded
        return CollapsedHead(weight, weight.new_zeros(weight.shape[:2]), unit_length=True)

    def remember(self, trace: AdaptationTrace, state: LeoState) -> LeoTrace:
        """The two terms of the loss that are made of codes; without noise there are none."""
        first, noise, deviation = self._sample
        divergence = moved = first.new_zeros(len(first))
        if noise is not None:
            share = self._real / self._real.sum((1, 2), keepdim=True)  # T W C
            # The sample's log density from the noise itself: at the smallest deviations a difference has no digits.
            logs = (first.square() - noise.square()) / 2 - deviation.log()
            divergence = (share * logs.mean(-1)).sum((1, 2))
            moved = (share * (state.latents.detach() - first).square().mean(-1)).sum((1, 2))
        return LeoTrace(**vars(trace), divergence=divergence, moved=moved)

    def class_weights(self, state: LeoState) -> Float[Tensor, "T W D"]:
        """The mean of a class's copies: its row of the linear classifier."""
        return (self._share @ state.weights).squeeze(2)

    def _draw_codes(self, copies: int) -> "Sample":
        mean, deviation = self._leo.coder.codes(self._dropped("encoder", 0, self.support), self.labelled)
        mean, deviation = mean.unsqueeze(2), deviation.unsqueeze(2)
        if self._noise is None:
            return Sample(mean, None, deviation)
        noise = self._normal("codes", 0, copies, mean.shape[-1])
        return Sample(mean + deviation * noise, noise, deviation)

    def _decoded(self, updates: int, latents: Float[Tensor, "T W C L"]) -> LeoState:
        coder, (_, _, copies, _) = self._leo.coder, latents.shape
        noise = None if self._noise is None else self._normal("weights", updates, copies, coder.features)
        return LeoState(updates, latents, *coder.decode(latents, noise))

    def _gradient(self, state: LeoState) -> tuple[Float[Tensor, "T W D"], Float[Tensor, "T W S"]]:
        """The gradient of the support's summed loss by the class weights, and log predictions."""
        examples = self._dropped("support", state.updates, self.support)
        found = (self.class_weights(state) @ examples.mT).log_softmax(1)
        return (self._examples * self.labelled.residual(found)) @ examples, found

    def _normal(self, use: str, number: int, copies: int, size: int) -> Float[Tensor, "T W C N"]:
        assert self._noise is not None
        # Copies come first: a task's numbers do not depend on how many copies other tasks need.
        return self._noise.normal(use, number, copies, self._real.shape[1], size).transpose(1, 2)

    def _dropped(self, use: str, number: int, features: Float[Tensor, "T N D"]) -> Float[Tensor, "T N D"]:
        if self._noise is None or not self._leo.dropout:
            return features
        return features * self._noise.kept(f"dropout/{use}", number, 1 - self._leo.dropout, *features.shape[1:])


class Sample(NamedTuple):
    """The codes before the first epoch, the noise in them if there is any, and their deviations."""

    latents: Float[Tensor, "T W C L"]
    noise: Float[Tensor, "T W C L"] | None
    deviation: Float[Tensor, "T W 1 L"]


class LeoObservation:
    """What a hyperprior may see of LEO at an epoch: the support's mean loss and its gradient by the class weights."""

    def __init__(self, problem: LeoProblem, state: LeoState, direction: LeoDirection) -> None:
        self._problem, self._state, self._direction = problem, state, direction

    def coefficients(self) -> Float[Tensor, "T D W"]:
        return self._direction.gradient.mT

    def squared_norm(self) -> Float[Tensor, " T"]:
        return self._direction.gradient.square().sum((1, 2))

    def loss(self) -> Float[Tensor, " T"]:
        return self._problem.labelled.loss(self._direction.log_probabilities)

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        scores = self._problem.query @ self._problem.class_weights(self._state).mT
        return scores if self._problem.second_order else scores.detach()  # all that is observed is a constant


class LatentCoder(nn.Module):
    """LEO's networks without biases, [inputs, outputs]: encoder, relation of pairs of examples, decoder."""

    def __init__(self, features: int, latents: int) -> None:
        super().__init__()
        self.features, self.latents = features, latents
        self.encoder = nn.Parameter(torch.empty(features, latents))
        self.relation = nn.ParameterList(torch.empty(2 * latents, 2 * latents) for _ in range(3))
        self.decoder = nn.Parameter(torch.empty(latents, 2 * features))
        for matrix in self.parameters():
            nn.init.xavier_uniform_(matrix)

    def codes(
        self, support: Float[Tensor, "T S D"], labelled: LabelledSupport
    ) -> tuple[Float[Tensor, "T W L"], Float[Tensor, "T W L"]]:
        """Mean and deviation of every class's code: the mean over its examples of their relations to all examples."""
        own, others = (support @ self.encoder) @ self.relation[0].view(2, self.latents, -1).unsqueeze(1)
        pairs = (own.unsqueeze(2) + others.unsqueeze(1)).relu()  # T S S 2L
        pairs = (pairs @ self.relation[1]).relu()
        # The last layer is linear: means first, so that it is applied to classes and not to pairs.
        related = (labelled.share.unsqueeze(2) @ pairs).squeeze(2)  # T S 2L
        mean, exponent = (labelled.class_share @ related @ self.relation[2]).chunk(2, -1)
        return mean, exponent.expm1().clamp_min(SMALLEST_DEVIATION)

    def decode(
        self, latents: Float[Tensor, "T W C L"], noise: Float[Tensor, "T W C D"] | None
    ) -> tuple[Float[Tensor, "T W C D"], Float[Tensor, "T W C D"] | None]:
        """Weights, and their slope in the decoder's second half; without noise they are the first half."""
        mean, exponent = (latents @ self.decoder).chunk(2, -1)
        if noise is None:
            return mean, None
        ways = latents.shape[1]
        deviation = exponent.expm1() + (2 / (ways + self.features)) ** 0.5
        slope = exponent.exp() * noise * (deviation > SMALLEST_DEVIATION)
        return mean + deviation.clamp_min(SMALLEST_DEVIATION) * noise, slope

    def back(
        self, gradient: Float[Tensor, "T W C D"], slope: Float[Tensor, "T W C D"] | None
    ) -> Float[Tensor, "T W C L"]:
        """The gradient by the codes, from that by the weights."""
        if slope is None:
            return gradient @ self.decoder[:, : self.features].mT
        return torch.cat([gradient, gradient * slope], -1) @ self.decoder.mT

    def half_squares(self) -> Float[Tensor, ""]:
        """Half the sum of squares of all matrices."""
        return torch.stack([matrix.square().sum() for matrix in self.parameters()]).sum() / 2

    def correlation(self) -> Float[Tensor, ""]:
        """How far the decoder's rows are from orthogonal: the mean square of their cosines minus the identity."""
        rows = nn.functional.normalize(self.decoder, dim=-1)
        one = torch.eye(self.latents, dtype=rows.dtype, device=rows.device)
        return (rows @ rows.mT - one).square().mean()


# Chance inside a model: what is drawn for a task is a function of the task, whatever else is in its batch.


@runtime_checkable
class Noise(Protocol):
    """Random numbers for a batch of tasks; the same use and number give the same again."""

    def normal(self, use: str, number: int, *shape: int) -> Float[Tensor, "T *shape"]:
        """Standard normal numbers for every task."""
        ...

    def kept(self, use: str, number: int, share: float, *shape: int) -> Float[Tensor, "T *shape"]:
        """Factors of dropout: 1/share with the probability share, else 0."""
        ...


class TaskNoise:
    """Numbers addressed by a seed, the task's support set, the use and its number.

    Tasks have no number of their own, so their examples stand for it; these are rounded to a few digits first, so that
    features computed on another machine lead to the same numbers. More rows never change the first ones.
    """

    def __init__(self, seed: int, batch: TaskBatch) -> None:
        support, mask = batch.support.detach(), batch.mask.cpu()
        self._like = support
        rounded = support.to(torch.bfloat16).cpu().view(torch.int16)
        self._keys = [
            hashlib.sha256(f"{seed}/".encode() + examples[real].numpy().tobytes()).digest()
            for examples, real in zip(rounded, mask, strict=True)
        ]

    def normal(self, use: str, number: int, *shape: int) -> Float[Tensor, "T *shape"]:
        return self._tensor([draw.standard_normal(shape) for draw in self._draws(use, number)])

    def kept(self, use: str, number: int, share: float, *shape: int) -> Float[Tensor, "T *shape"]:
        return self._tensor([(draw.random(shape) < share) / share for draw in self._draws(use, number)])

    def _draws(self, use: str, number: int) -> list[np.random.Generator]:
        digests = (hashlib.sha256(key + f"{use}/{number}".encode()).digest() for key in self._keys)
        return [np.random.Generator(np.random.Philox(key=int.from_bytes(each[:16], "little"))) for each in digests]

    def _tensor(self, rows: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(rows)).to(self._like)
