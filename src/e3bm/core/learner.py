"""What training and evaluation work with: a learner takes a batch of tasks and gives a trace.

A method with an inner loop opens the tasks as an InnerProblem, and MetaLearner runs Algorithm 2 on it with a
hyperprior. A method without one answers directly, and then alpha, v and M do not exist.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import AdaptationTrace, InnerProblem, Trace, adapt_and_keep
from e3bm.core.episode import BoundToWays, TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.errors import DataError, DivergenceError, SettingsError

ParameterKinds = dict[str, list[nn.Parameter]]


class Method(nn.Module, ABC):
    """A published few-shot method: what the outer loop trains of it, and by which loss."""

    def parameter_kinds(self) -> ParameterKinds:
        """Its parameters by the learning rate they have: those of its encoder, and the rest ("theta")."""
        encoder = self._modules.get("encoder")
        inside = [] if encoder is None else list(encoder.parameters())
        known = {id(parameter) for parameter in inside}
        return {"encoder": inside, "theta": [each for each in self.parameters() if id(each) not in known]}

    def at(self, progress: float) -> None:  # most methods have nothing to do
        """Told before every training step how far the training is, from 0 to 1; most methods do not care."""

    def outer_factor(self, progress: float) -> float:
        """What the outer learning rates are multiplied by beside the optimiser's own schedule."""
        return 1.0

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """What the outer loop minimises; ``progress`` goes from 0 to 1 over the training."""
        assert batch.query_labels is not None
        return meta_loss(trace.scores, batch.query_labels)


class InnerLoopMethod(Method):
    """A method that learns each task by steps: E3BM chooses their rates and votes."""

    @abstractmethod
    def begin(self, batch: TaskBatch) -> InnerProblem[Any, Any, Any]:
        """Encode the tasks and hand out the moves."""


class DirectMethod(Method):
    """A method that answers without steps of its own."""

    @abstractmethod
    def forward(self, batch: TaskBatch) -> Trace:
        """Predict the queries of each task."""


class Learner(nn.Module, ABC):
    """A method ready for tasks. Wrapping it in DistributedDataParallel is correct: nothing of an episode is outside."""

    method: Method

    @property
    @abstractmethod
    def epochs(self) -> int | None:
        """M, or None where there is no inner loop."""

    @abstractmethod
    def forward(self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None) -> Trace:
        """Adapt to each task and predict its queries; the two options are for learners with an inner loop."""

    def check_precision(self, batch: TaskBatch) -> None:
        """Refuse tasks of other numbers than the learner's own, before a product of matrices does."""
        own = next((each.dtype for each in self.parameters() if each.is_floating_point()), batch.support.dtype)
        if batch.support.dtype != own:
            raise DataError(
                f"The tasks are {batch.support.dtype} and the learner is {own}; convert one of them to the type of "
                f"the other."
            )

    def check_ways(self, ways: int) -> None:
        """Refuse tasks of another number of classes than any part of it is made for, before there are any tasks."""
        for part in self.modules():
            if part is not self and isinstance(part, BoundToWays):
                part.check_ways(ways)

    def parameter_kinds(self) -> ParameterKinds:
        """Every parameter once, by the learning rate it has."""
        return self.method.parameter_kinds()

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """What the outer loop minimises."""
        return self.method.training_loss(trace, batch, progress)


class DirectLearner(Learner):
    """A method without an inner loop."""

    def __init__(self, method: DirectMethod) -> None:
        super().__init__()
        self.method: DirectMethod = method

    @property
    def epochs(self) -> None:
        return None

    def forward(self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None) -> Trace:
        """Predict the queries of each task."""
        if epochs is not None:
            raise SettingsError(
                f"{type(self.method).__name__} has no inner epochs, but {epochs} were asked for; leave the number out."
            )
        self.check_precision(batch)
        trace: Trace = self.method(batch)
        check_finite(trace)
        return trace


class MetaLearner(Learner):
    """A method with an inner loop, a hyperprior and a number of epochs; the whole episode sits inside forward."""

    def __init__(self, method: InnerLoopMethod, hyperprior: Hyperprior, epochs: int, *, kl: float = 0.0) -> None:
        """``kl`` is the coefficient of the KL term in the training loss."""
        super().__init__()
        self.method: InnerLoopMethod = method
        self.hyperprior, self.kl = hyperprior, kl
        self._epochs = epochs

    @property
    def epochs(self) -> int:
        return self._epochs

    def forward(self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None) -> AdaptationTrace:
        """Adapt to each task and predict its queries."""
        return self.adapt(batch, every_epoch=every_epoch, epochs=epochs)[0]

    def adapt(
        self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None
    ) -> tuple[AdaptationTrace, Any]:
        """The same, with the summed ensemble in the method's own form."""
        self.check_precision(batch)
        problem, epochs = self.method.begin(batch), self.epochs if epochs is None else epochs
        trace, ensemble = adapt_and_keep(problem, self.hyperprior, epochs, every_epoch=every_epoch)
        check_finite(trace)
        return trace, ensemble

    def parameter_kinds(self) -> ParameterKinds:
        return {**self.method.parameter_kinds(), **self.hyperprior.parameter_kinds()}

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """The method's loss and, where it has a coefficient, the KL term."""
        loss = self.method.training_loss(trace, batch, progress)
        if self.kl:
            assert isinstance(trace, AdaptationTrace)
            loss = loss + self.kl * kl_to_base(trace, self.hyperprior)
        return loss


def meta_loss(scores: Float[Tensor, "T Q W"], labels: Int[Tensor, "T Q"]) -> Float[Tensor, ""]:
    """Eq. 13: mean cross-entropy of the ensemble's query scores over all tasks."""
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def kl_to_base(trace: AdaptationTrace, hyperprior: Hyperprior) -> Float[Tensor, ""]:
    """KL( N(value, s^2) || N(base, s^2) ) = (value - base)^2 / (2 s^2), summed over epochs and both schedules.

    This is the KL term of Eq. 4 for a point estimate. s = 1e-2 |base| + 1e-3 is taken as a constant: otherwise a large
    base value would buy freedom.
    """
    epochs = trace.rates.shape[1]
    total = trace.rates.new_zeros(())
    for values, schedule in ((trace.rates, hyperprior.rate), (trace.weights, hyperprior.weight)):
        base = schedule.base(epochs)
        scale = (1e-2 * base.abs() + 1e-3).detach()
        total = total + ((values - base) / scale).square().sum(1).mean() / 2
    return total


def check_finite(trace: Trace) -> None:
    """Refuse scores that are not finite, and say where the numbers broke."""
    if bool(torch.isfinite(trace.scores).all()):
        return
    task = int(torch.nonzero(~torch.isfinite(trace.scores).flatten(1).all(1))[0])
    if not isinstance(trace, AdaptationTrace):
        raise DivergenceError(f"The scores of task {task} are not finite: lower the features' scale.")
    epoch = torch.nonzero(~torch.isfinite(trace.losses[task]))
    where = f"; its training loss broke at epoch {int(epoch[0]) + 1}" if len(epoch) else ""
    raise DivergenceError(
        f"The scores of task {task} are not finite{where}. "
        f"Rates reach {float(trace.rates[task].detach().abs().max()):.3g}: "
        "lower the inner learning rate or the features' scale."
    )
