"""What an adaptation leaves behind."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class AdaptationTrace:
    """The ensemble's query scores and, epoch by epoch, how it came to them.

    ``rates`` and ``weights`` keep their graph (the KL term needs it); ``losses`` are detached training losses before
    each update. ``epoch_scores`` holds every single learner's scores when they were asked for.
    """

    scores: Float[Tensor, "T Q W"]
    rates: Float[Tensor, "T M"]
    weights: Float[Tensor, "T M"]
    losses: Float[Tensor, "T M"]
    epoch_scores: Float[Tensor, "T M Q W"] | None = None
