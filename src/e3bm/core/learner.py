"""MetaLearner: a method, a hyperprior and a number of epochs; the whole episode sits inside forward."""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from e3bm.core.adapt import AdaptationTrace, InnerProblem, adapt_and_keep
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.errors import DivergenceError


@runtime_checkable
class Method(Protocol):
    """A published few-shot method: it owns what is meta-learned and opens a batch of tasks for learning."""

    def begin(self, batch: TaskBatch) -> InnerProblem[Any, Any, Any]:
        """Encode the tasks and hand out the moves."""
        ...


class MetaLearner(nn.Module):
    """Wrapping this module in DistributedDataParallel is correct in second order: nothing of an episode is outside."""

    def __init__(self, method: Method, hyperprior: Hyperprior, epochs: int) -> None:
        super().__init__()
        self.method, self.hyperprior, self.epochs = method, hyperprior, epochs

    def forward(self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None) -> AdaptationTrace:
        """Adapt to each task and predict its queries."""
        return self.adapt(batch, every_epoch=every_epoch, epochs=epochs)[0]

    def adapt(
        self, batch: TaskBatch, *, every_epoch: bool = False, epochs: int | None = None
    ) -> tuple[AdaptationTrace, Any]:
        """The same, with the summed ensemble in the method's own form."""
        problem, epochs = self.method.begin(batch), self.epochs if epochs is None else epochs
        trace, ensemble = adapt_and_keep(problem, self.hyperprior, epochs, every_epoch=every_epoch)
        if not bool(torch.isfinite(trace.scores).all()):
            task = int(torch.nonzero(~torch.isfinite(trace.scores).flatten(1).all(1))[0])
            epoch = torch.nonzero(~torch.isfinite(trace.losses[task]))
            where = f"; its training loss broke at epoch {int(epoch[0]) + 1}" if len(epoch) else ""
            raise DivergenceError(
                f"The scores of task {task} are not finite{where}. "
                f"Rates reach {float(trace.rates[task].detach().abs().max()):.3g}: "
                "lower the inner learning rate or the features' scale."
            )
        return trace, ensemble


# The meta-loss (Eq. 13) and the KL term of Eq. 4 for a point estimate.


def meta_loss(scores: Float[Tensor, "T Q W"], labels: Int[Tensor, "T Q"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the ensemble's query scores over all tasks."""
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def kl_to_base(trace: AdaptationTrace, hyperprior: Hyperprior) -> Float[Tensor, ""]:
    """KL( N(value, s^2) || N(base, s^2) ) = (value - base)^2 / (2 s^2), summed over epochs and both schedules.

    s = 1e-2 |base| + 1e-3 is taken as a constant: otherwise a large base value would buy freedom.
    """
    epochs = trace.rates.shape[1]
    total = trace.rates.new_zeros(())
    for values, schedule in ((trace.rates, hyperprior.rate), (trace.weights, hyperprior.weight)):
        base = schedule.base(epochs)
        scale = (1e-2 * base.abs() + 1e-3).detach()
        total = total + ((values - base) / scale).square().sum(1).mean() / 2
    return total
