"""How far the epochs of an ensemble are from saying the same."""

import math

from jaxtyping import Float
from torch import Tensor

from e3bm.core.context import TINY


def epoch_disagreement(
    epoch_scores: Float[Tensor, "M N W"], votes: Float[Tensor, " M"], temperature: float
) -> Float[Tensor, " N"]:
    """Mean divergence of the epochs' predictions from their mean, in units of log W: 0 they agree, 1 they cannot less.

    Epochs count by the size of their votes; each one's scores are stretched as the sum is.
    """
    share = votes.abs() / (votes.abs().sum() + TINY)
    stretch = float(votes.sum()) / temperature
    logs = (epoch_scores * stretch).log_softmax(-1)
    mean = (share.view(-1, 1, 1) * logs.exp()).sum(0)
    divergences = (logs.exp() * (logs - (mean + TINY).log())).sum(-1)
    return (share @ divergences).clamp_min(0) / math.log(epoch_scores.shape[-1])
