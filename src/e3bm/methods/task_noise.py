"""Chance inside a model: what is drawn for a task is a function of the task, whatever else is in its batch."""

import hashlib
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.core.episode import TaskBatch


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
