"""MTL (Sun et al., CVPR 2019): a pre-trained encoder, scaled and shifted, and a head trained anew for each task."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.heads.collapsed import unit, unit_centred
from e3bm.methods.heads.cosine import CosineHead, CosineStart
from e3bm.methods.heads.labelled import Initialiser, LabelledSupport, LearnedStart, PrototypeStart
from e3bm.methods.heads.linear import LinearHead


class MtlSettings(InnerLoopSettings):
    """MTL: a new head trained for each task."""

    title = "MTL"

    name: Literal["mtl"] = "mtl"
    head: Literal["linear", "cosine"] = "linear"
    """Its classifier."""
    start: Literal["learned", "prototype"] = "learned"
    """Theta_0 of the head: meta-learned, or the class means."""
    temperature: float = Field(default=8.0, gt=0)
    """Factor on the cosines of the cosine head."""
    feature_length: float | None = Field(default=None, gt=0)
    """Linear head: scale every feature vector to this length; unset: as the backbone gives them."""

    @property
    def tied_to_features(self) -> str | None:
        start = "the learned start of MTL's head belongs to the features of one backbone; set method.start to prototype"
        return None if self.start == "prototype" else start


@METHODS.register("mtl")
class Mtl(InnerLoopMethod):
    """Inner loop on the head alone; the encoder (frozen, or with meta-learned scale and shift) is the outer loop's."""

    settings = MtlSettings

    def __init__(
        self,
        encoder: Encoder,
        *,
        head: Literal["linear", "cosine"] = "linear",
        start: Literal["learned", "prototype"] = "learned",
        ways: int = 5,
        temperature: float = 8.0,
        feature_length: float | None = None,
        second_order: bool = True,
    ) -> None:
        """``feature_length`` scales the linear head's examples to that length, so that rates mean the same anywhere."""
        super().__init__()
        if head not in ("linear", "cosine") or start not in ("learned", "prototype"):
            raise SettingsError(
                f"MTL has heads 'linear' and 'cosine' and starts 'learned' and 'prototype'; found {head}, {start}."
            )
        self.encoder, self.head, self.second_order = encoder, head, second_order
        self.feature_length = feature_length
        self.initialiser: Initialiser | None = None  # None: the class means, in the head's own terms
        if start == "learned":
            self.initialiser = LearnedStart(ways, encoder.feature_size)
        elif head == "linear":
            self.initialiser = PrototypeStart(constant=not second_order)
        self.register_buffer("temperature", torch.tensor(float(temperature)))

    temperature: Tensor

    @classmethod
    def from_settings(cls, settings: MtlSettings, parts: Parts) -> "Mtl":
        return cls(
            parts.encoder,
            head=settings.head,
            start=settings.start,
            ways=parts.ways,
            temperature=settings.temperature,
            feature_length=settings.feature_length,
            second_order=settings.order == "second",
        )

    def begin(self, batch: TaskBatch) -> LinearHead | CosineHead:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        if self.head == "linear":
            assert self.initialiser is not None
            length = self.feature_length
            if length is not None:
                support, query = length * unit(support), length * unit(query)
            weight, bias = self.initialiser(support, labelled)
            return LinearHead(
                support, query, labelled, batch.mask, weight, bias, second_order=self.second_order, length=length
            )
        return self._cosine_problem(batch, support, query, labelled)

    def _cosine_problem(
        self,
        batch: TaskBatch,
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        labelled: LabelledSupport,
    ) -> CosineHead:
        """The cosine head works on features centred per sample; the hyperprior sees them before normalisation."""
        examples, queries = unit_centred(support, self.temperature), unit_centred(query, self.temperature)
        if self.initialiser is None:
            # Class means of centred features as coefficients over the examples; a feature times its example is s times
            # the centred length.
            lengths = torch.linalg.vecdot(examples, support) / self.temperature**2
            start = CosineStart(labelled.class_share * lengths.unsqueeze(1), None)
        else:
            start = CosineStart.outside(examples, self.initialiser(support, labelled)[0])

        def drive(scores: Tensor) -> tuple[Tensor, Tensor | None]:
            log_probabilities = scores.log_softmax(1)
            return labelled.residual(log_probabilities), log_probabilities

        return CosineHead(
            examples,
            examples,
            queries,
            batch.mask,
            labelled,
            start,
            drive,
            (support, query),
            scale=self.temperature,
            shift=None,
            centred=True,
            second_order=self.second_order,
        )
