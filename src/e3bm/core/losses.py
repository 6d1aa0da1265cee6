"""The meta-loss (Eq. 13) and the KL term of Eq. 4 for a point estimate."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from e3bm.core.hyperprior import Hyperprior
from e3bm.core.trace import AdaptationTrace


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
