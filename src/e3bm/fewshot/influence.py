"""Which labelled photos a prediction rests on.

The collapsed head is a sum of the support features, so a score is a sum of one part per labelled photo: its
coefficient times how alike it is to the new one. The parts and a constant of the class add up to the score exactly.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from e3bm.fewshot.adapted import AdaptedHead
from e3bm.fewshot.support_set import SupportSet


@dataclass(frozen=True)
class Influence:
    """How much one labelled photo spoke for the predicted class, or against it."""

    name: str
    label: str
    number: int
    """The photo's place among those of its class, from 0."""
    amount: float
    """Its part of the predicted class's score, compared with the mean of all classes."""


def support_coefficients(head: AdaptedHead, support: Float[Tensor, "S D"]) -> Float[Tensor, "W S"]:
    """The head's weights as sums of support features; of all such sums the one with the smallest coefficients."""
    placed = head.space(support)
    inverse: Tensor = torch.linalg.pinv(placed)
    return head.weight @ inverse


def influences(
    head: AdaptedHead, temperature: float, support: SupportSet, features: Float32[np.ndarray, " D"]
) -> tuple[Influence, ...]:
    """One part per labelled photo, the largest first; with a constant they sum to the calibrated score."""
    examples = torch.from_numpy(support.features)
    query = head.space(torch.from_numpy(features).unsqueeze(0))
    best = int(head.scores(query).argmax())
    coefficients = support_coefficients(head, examples)
    against_mean = coefficients[best] - coefficients.mean(0)
    amounts = (against_mean * (head.space(examples) @ query[0]) / temperature).tolist()
    places = [
        (label, number, name) for label, shots in support.shots.items() for number, name in enumerate(shots.names)
    ]
    found = [
        Influence(name, label, number, amount) for (label, number, name), amount in zip(places, amounts, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.amount)))
