"""MAML++ (Antoniou et al., ICLR 2019): MAML with six changes, each of which can be had alone.

Multi-step loss: the loss of the queries after every inner step, annealed towards the last. Derivative order: first
order in the first epochs of training. BatchNorm statistics of every inner step. BatchNorm weights of every inner step.
Learning rates of every tensor and inner step. A cosine schedule of the outer rate. With all of them off it is MAML.
"""

import math
from typing import Literal, cast

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, InnerLoopMethod, InnerLoopSettings, Needs, Parts
from e3bm.methods.maml import Changes, Maml, MamlProblem
from e3bm.methods.networks.passes import Parameters, parameter_names
from e3bm.methods.networks.step_statistics import BatchNorm, Part, step_of

SMALLEST_SHARE = 0.03  # of 1/M: what the multi-step loss leaves to a step that is not the last


class MamlPlusPlusSettings(InnerLoopSettings):
    """MAML++: MAML with six changes; the sixth, statistics of every step, is backbone.batchnorm per_step."""

    title = "MAML++"
    needs = Needs(
        takes="images",
        backbone=("full",),
        batchnorm=("batch", "running", "batch_then_running", "per_step"),
        precision=("float32", "float64"),
        reasons={
            "backbone.adapt": "MAML++ adapts the whole network",
            "machine.precision": "MAML++'s second derivatives need float32 or float64",
        },
    )

    name: Literal["maml_plus_plus"] = "maml_plus_plus"
    epochs: int = Field(default=5, ge=1, le=1000)
    """M: inner updates in training and test."""
    rate: float = Field(default=0.1, gt=0)
    """alpha' of every epoch, and what the learned rates of tensors start at."""
    training_epochs: int = Field(default=100, ge=1)
    """Parts that the training is divided into; the changes below are counted in them."""
    multi_step_epochs: int = Field(default=15, ge=0)
    """Parts of the training in which the loss also includes earlier inner steps, with falling weights; 0: none."""
    first_order_epochs: int = Field(default=0, ge=0)
    """First parts of the training, in which inner gradients are constants (first order); 0: none."""
    step_weights: bool = True
    """Separate BatchNorm scales and shifts for each inner step."""
    step_rates: bool = True
    """A learned rate for each inner step and tensor."""
    lowest_outer_rate: float | None = Field(default=None, ge=0, le=1)
    """Share of the outer learning rates that a cosine over the training ends with; unset: no cosine."""
    start: Literal["learned", "zero"] = "learned"
    """Theta_0 of the head: meta-learned, or zero."""
    loss_scale: Literal["ways", "mean"] = "mean"
    """Inner loss: the mean cross-entropy, as published, or W times it."""
    checkpointed: bool = False
    """Recompute inner steps in the backward pass to save memory."""

    @model_validator(mode="after")
    def _consistent(self) -> "MamlPlusPlusSettings":
        for name in ("multi_step_epochs", "first_order_epochs"):
            if (found := getattr(self, name)) > self.training_epochs:
                raise ValueError(f"{name} is {found} and cannot be more than training_epochs, {self.training_epochs}")
        if self.order == "first" and self.first_order_epochs:
            raise ValueError("with order first all gradients are constants; leave out first_order_epochs")
        if self.test_epochs not in (None, self.epochs) and (self.step_weights or self.step_rates):
            raise ValueError(
                f"step_weights and step_rates are for {self.epochs} epochs; leave out test_epochs or switch both off"
            )
        return self


@METHODS.register("maml_plus_plus")
class MamlPlusPlus(InnerLoopMethod):
    """Training is counted in ``training_epochs``, as published, of which the method knows the number by ``at``.

    The multi-step loss is annealed over the first ``multi_step_epochs`` and inner gradients are constants during
    ``first_order_epochs``; 0 switches either off. ``step_weights`` and ``step_rates`` give BatchNorm's weights and the
    rates of all tensors (which start at ``rate``) to each of the ``epochs`` inner steps; ``batchnorm`` "per_step" does
    so with statistics, "batch" is what the published code computes. ``lowest_outer_rate`` is the share of the outer
    rate that a cosine ends with; None: no such schedule.
    """

    settings = MamlPlusPlusSettings

    def __init__(
        self,
        backbone: nn.Module,
        *,
        ways: int = 5,
        epochs: int = 5,
        rate: float = 0.1,
        multi_step_epochs: int = 15,
        first_order_epochs: int = 0,
        training_epochs: int = 100,
        step_weights: bool = True,
        step_rates: bool = True,
        batchnorm: BatchNorm = "batch",
        lowest_outer_rate: float | None = None,
        second_order: bool = True,
        loss_scale: Literal["ways", "mean"] = "mean",
        start: Literal["learned", "zero"] = "learned",
        checkpointed: bool = False,
        fast: bool = True,
    ) -> None:
        super().__init__()
        if (
            min(multi_step_epochs, first_order_epochs) < 0
            or max(multi_step_epochs, first_order_epochs) > training_epochs
        ):
            raise SettingsError(
                "MAML++'s multi-step loss and first-order gradients last from 0 to all epochs of training; found "
                f"{multi_step_epochs} and {first_order_epochs} of {training_epochs}."
            )
        if epochs < 1 or not rate:
            raise SettingsError(
                f"MAML++ needs at least 1 inner epoch and a rate other than 0; found {epochs} epochs at rate {rate}."
            )
        self.maml = Maml(
            backbone,
            ways=ways,
            second_order=second_order,
            loss_scale=loss_scale,
            start=start,
            batchnorm=batchnorm,
            epochs=epochs if batchnorm == "per_step" else None,
            led=True,
            checkpointed=checkpointed,
            fast=fast,
        )
        tensors = len(parameter_names(backbone).adapted) + 2  # the head's two
        self.step_rates = StepRates(tensors, epochs, rate) if step_rates else None
        self.step_norms = StepNorms(backbone, epochs) if step_weights else None
        self.multi_step_epochs, self.first_order_epochs = multi_step_epochs, first_order_epochs
        self.training_epochs, self.lowest_outer_rate = training_epochs, lowest_outer_rate
        self.progress = 0.0

    @classmethod
    def from_settings(cls, settings: MamlPlusPlusSettings, parts: Parts) -> "MamlPlusPlus":
        if parts.backbone is None:
            raise SettingsError("MAML++ adapts the whole network; set backbone.adapt to full.")
        return cls(
            parts.backbone,
            ways=parts.ways,
            epochs=settings.epochs,
            rate=settings.rate,
            multi_step_epochs=settings.multi_step_epochs,
            first_order_epochs=settings.first_order_epochs,
            training_epochs=settings.training_epochs,
            step_weights=settings.step_weights,
            step_rates=settings.step_rates,
            batchnorm=cast(BatchNorm, parts.batchnorm),
            lowest_outer_rate=settings.lowest_outer_rate,
            second_order=settings.order == "second",
            loss_scale=settings.loss_scale,
            start=settings.start,
            checkpointed=settings.checkpointed,
        )

    @property
    def batchnorm(self) -> BatchNorm:
        """Whose statistics normalise; every result states it."""
        return self.maml.batchnorm

    @property
    def transductive(self) -> bool:
        """Whether a prediction depends in fact on the other queries, whatever the hyperprior sees."""
        return self.maml.transductive

    def at(self, progress: float) -> None:
        """Training says before each step which part of it is done: what is annealed is a function of that alone."""
        self.progress = progress

    def begin(self, batch: TaskBatch) -> MamlProblem:
        epoch = self._epoch(self.progress)
        changes = Changes(
            fixed=self.step_norms,
            rates=self.step_rates,
            first_order=epoch < self.first_order_epochs,
            every_epoch=self.training and epoch < self.multi_step_epochs,
        )
        return self.maml.problem(batch, changes)

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """The multi-step loss while it is annealed, then that of the scores.

        The last step's place is the ensemble's: with the last vote they are the same, and with others the loss moves
        towards the one that is trained from then on.
        """
        assert isinstance(trace, AdaptationTrace)
        assert batch.query_labels is not None
        loss, epoch, told = (
            meta_loss(trace.scores, batch.query_labels),
            self._epoch(progress),
            self._epoch(self.progress),
        )
        other_order = (epoch < self.first_order_epochs) != (told < self.first_order_epochs)
        if (epoch < self.multi_step_epochs and trace.epoch_scores is None) or (self.training and other_order):
            raise SettingsError(
                f"MAML++ anneals its loss and its order, and this forward pass was made for {self.progress:.0%} of "
                f"training where its loss is asked for at {progress:.0%}; call at() before every training step."
            )
        if epoch >= self.multi_step_epochs:
            return loss
        assert trace.epoch_scores is not None
        *shares, last = step_importance(epoch, trace.epoch_scores.shape[1], self.multi_step_epochs)
        loss = last * loss
        for number, share in enumerate(shares):
            loss = loss + share * meta_loss(trace.epoch_scores[:, number], batch.query_labels)
        return loss

    def outer_factor(self, progress: float) -> float:
        """What the outer rate is multiplied by."""
        if self.lowest_outer_rate is None:
            return 1.0
        return cosine_factor(self._epoch(progress), self.training_epochs, self.lowest_outer_rate)

    def _epoch(self, progress: float) -> int:
        # A hair more: a step that begins an epoch must not fall into the one before by rounding.
        return math.floor(progress * self.training_epochs + 1e-9)


def step_importance(epoch: int, steps: int, annealed: int) -> list[float]:
    """The shares of the inner steps in the multi-step loss at an epoch of training; they sum to one."""
    moved = epoch / (steps * annealed)
    others, smallest = steps - 1, SMALLEST_SHARE / steps
    each, last = max(1 / steps - moved, smallest), min(1 / steps + others * moved, 1 - others * smallest)
    return [each] * others + [last]


def cosine_factor(epoch: int, epochs: int, lowest: float) -> float:
    """From 1 to the lowest share of the outer rate over all epochs of training."""
    return lowest + (1 - lowest) * (1 + math.cos(math.pi * epoch / epochs)) / 2


# Parameters for every inner step: learning rates of each tensor, and BatchNorm's scales and shifts.


class StepRates(nn.Module):
    """A learned rate for every inner step and tensor, in units of rates; all start at the base rate.

    An epoch's rate divided by the base rate multiplies them: a constant schedule leaves them as they are, and rates
    that are learned or generated for a task raise or lower them together.
    """

    base: Tensor

    def __init__(self, tensors: int, epochs: int, rate: float) -> None:
        super().__init__()
        self.register_buffer("base", torch.tensor(float(rate)))
        self.values = nn.Parameter(torch.full((epochs, tensors), float(rate)))

    def forward(self, updates: int, rate: Float[Tensor, " T"]) -> Float[Tensor, "T L"]:
        values = self.values[check_step(updates, len(self.values), "learning rates")]
        return (rate / self.base).unsqueeze(1) * values


class StepNorms(nn.Module):
    """BatchNorm's scales and shifts for every inner step, which start as the backbone has them.

    The backbone's own are then used by nobody and are not trained.
    """

    def __init__(self, backbone: nn.Module, epochs: int) -> None:
        super().__init__()
        own = dict(backbone.named_parameters())
        fixed = [own[name] for name in parameter_names(backbone).fixed]
        self.epochs = epochs
        self.values = nn.ParameterList(each.detach().expand(epochs, -1).clone() for each in fixed)
        for each in fixed:
            each.requires_grad_(False)

    def forward(self, part: Part, updates: int) -> Parameters:
        step = check_step(step_of(part, updates), self.epochs, "BatchNorm weights")
        return tuple(each[step] for each in self.values)


def check_step(step: int, epochs: int, what: str) -> int:
    """Refuse a step that has no parameters of its own."""
    if step >= epochs:
        raise SettingsError(
            f"MAML++ has {what} for {epochs} inner epochs but epoch {step + 1} was asked for; train and test with the "
            "same number, or switch its per-step parameters off."
        )
    return step
