"""MTL (Sun et al., CVPR 2019): a pre-trained encoder, scaled and shifted, and a head trained anew for each task."""

from typing import Literal

import torch
from torch import nn

from e3bm.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, Parts
from e3bm.methods.collapsed import centre, unit
from e3bm.methods.cosine_head import CosineHead
from e3bm.methods.initialisers import Initialiser, LearnedStart, PrototypeStart
from e3bm.methods.labelled import LabelledSupport
from e3bm.methods.linear_head import LinearHead
from e3bm.settings import TrainSettings


@METHODS.register("mtl")
class Mtl(nn.Module):
    """Inner loop on the head alone; the encoder (frozen, or with meta-learned scale and shift) is the outer loop's."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        head: Literal["linear", "cosine"] = "linear",
        start: Literal["learned", "prototype"] = "learned",
        ways: int = 5,
        temperature: float = 8.0,
        second_order: bool = True,
    ) -> None:
        super().__init__()
        if head not in ("linear", "cosine") or start not in ("learned", "prototype"):
            raise SettingsError(
                f"MTL has heads 'linear' and 'cosine' and starts 'learned' and 'prototype'; found {head}, {start}."
            )
        self.encoder, self.head, self.second_order = encoder, head, second_order
        self.initialiser: Initialiser = (
            LearnedStart(ways, encoder.feature_size)
            if start == "learned"
            else PrototypeStart(linear=head == "linear", constant=not second_order)
        )
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_buffer("no_bias", torch.tensor(0.0), persistent=False)

    temperature: torch.Tensor
    no_bias: torch.Tensor

    @classmethod
    def from_settings(cls, settings: TrainSettings, parts: Parts) -> "Mtl":
        method = settings.method
        return cls(
            parts.encoder,
            head=method.head,
            start=method.start,
            ways=settings.episode.ways,
            temperature=method.temperature,
            second_order=method.order == "second",
        )

    def begin(self, batch: TaskBatch) -> LinearHead | CosineHead:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        if self.head == "linear":
            weight, bias = self.initialiser(support, labelled)
            return LinearHead(support, query, labelled, batch.mask, weight, bias, second_order=self.second_order)
        # The cosine head works on features centred per sample; the hyperprior sees them before normalisation.
        centred = centre(support)
        weight, _ = self.initialiser(centred, labelled)
        examples = unit(centred)
        return CosineHead(
            examples,
            examples,
            unit(centre(query)),
            batch.mask,
            weight,
            self.temperature,
            self.no_bias,
            labelled.residual,
            labelled.loss,
            centred,
            second_order=self.second_order,
        )
