"""Labels that the other examples contradict."""

from dataclasses import dataclass

import torch

from e3bm.fewshot.leave_one_out import HeldOut
from e3bm.fewshot.trust_prior import TrustPrior

FEWEST = 3  # with two examples of a class, one that is left out has a single witness


@dataclass(frozen=True)
class Suspicion:
    """A support example that looks like another class: its position, both classes, the odds against its label."""

    position: int
    label: int
    looks_like: int
    odds: float


def suspicious_labels(held_out: HeldOut | None, temperature: float, trust: TrustPrior) -> list[Suspicion]:
    """The most doubtful first; classes with fewer than three examples are not judged."""
    if held_out is None:
        return []
    logs = (held_out.scores / temperature).log_softmax(-1)
    own = logs.gather(-1, held_out.labels.unsqueeze(-1)).squeeze(-1)
    others = logs.scatter(-1, held_out.labels.unsqueeze(-1), -torch.inf)
    best, looks_like = others.max(-1)
    counts = torch.bincount(held_out.labels, minlength=logs.shape[-1])[held_out.labels]
    against = torch.where(counts >= FEWEST, best - own, -torch.inf)
    found = torch.nonzero(against > trust.suspicion).view(-1).tolist()
    return sorted(
        (
            Suspicion(
                int(held_out.positions[row]),
                int(held_out.labels[row]),
                int(looks_like[row]),
                float(against[row].exp()),
            )
            for row in found
        ),
        key=lambda suspicion: -suspicion.odds,
    )
