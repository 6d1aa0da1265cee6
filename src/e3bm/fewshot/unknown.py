"""None of these: how much an example looks like any of the classes, and from where on it does not."""

import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.fewshot.leave_one_out import HeldOut
from e3bm.fewshot.trust_prior import TrustPrior


def known_threshold(
    held_out: HeldOut | None,
    temperature: float,
    facts: Float[Tensor, " F"],
    shots: float,
    trust: TrustPrior,
    recall: float,
) -> float:
    """The score that this share of examples of the classes should reach.

    Without left-out examples it is the prior's; they move its centre, and in numbers its spread as well.
    """
    level = 1 - recall
    expected = float(trust.known_centre(facts.unsqueeze(0))[0])
    if held_out is None:
        return expected + trust.spread_alone(level, shots)
    scores = known_scores(held_out.scores, held_out.distances, temperature, held_out.facts, trust)
    beside = scores - trust.known_centre(held_out.facts) - trust.left_out_shift(shots)
    share = len(held_out) / (len(held_out) + trust.trusted)
    own_spread = float(torch.quantile(beside.double() - beside.double().mean(), level))
    return expected + share * float(beside.mean()) + (1 - share) * trust.spread(level) + share * own_spread


def known_scores(
    scores: Float[Tensor, "N W"],
    distances: Float[Tensor, " N"],
    temperature: float,
    facts: Float[Tensor, "#N F"],
    trust: TrustPrior,
) -> Float[Tensor, " N"]:
    """How much examples look like any of the classes."""
    return trust.known_score((scores / temperature).logsumexp(-1), distances, facts)
