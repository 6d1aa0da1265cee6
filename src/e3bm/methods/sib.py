"""SIB (Hu et al., ICLR 2020): a cosine head moved by synthetic gradients that a network reads off the query scores."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from e3bm.core.episode import TaskBatch
from e3bm.core.learner import ParameterKinds
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Needs, Parts, check_ways
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.cosine import CosineHead, CosineStart
from e3bm.methods.heads.labelled import LabelledSupport

BATCHNORM_EPS = 1e-5


class SibSettings(InnerLoopSettings):
    """SIB: synthetic gradients of the queries move a cosine head."""

    title = "SIB"
    transductive = True
    needs = Needs(
        backbone=("frozen",),
        batchnorm=("running",),
        reasons={"backbone.adapt": "SIB trains on frozen features"},
    )

    name: Literal["sib"] = "sib"
    gradient_net: Literal["published", "equivariant", "counting"] = "published"
    """The synthetic-gradient network: as published; one for any number of ways; or one that also sees each class's
    share of the queries."""
    gradient_net_rate: float = Field(default=1e-3, ge=0)
    """Learning rate of the synthetic-gradient network."""
    feature_weight: bool = True
    """Whether a learned factor scales every feature of the class means at the start, as published."""

    @property
    def tied_to_features(self) -> str | None:
        weight = "SIB's learned factors belong to the features of one backbone; set method.feature_weight off"
        return weight if self.feature_weight else None

    def learning_rates(self) -> dict[str, float]:
        return {"gradient_net": self.gradient_net_rate}


@METHODS.register("sib")
class Sib(InnerLoopMethod):
    """Transductive: queries are used together, their labels never. The encoder is frozen."""

    settings = SibSettings

    def __init__(
        self,
        encoder: Encoder,
        *,
        ways: int = 5,
        gradient_net: Literal["published", "equivariant", "counting"] = "published",
        feature_weight: bool = True,
        second_order: bool = True,
    ) -> None:
        """``feature_weight`` scales the features of the start, as published; without it nothing has their size."""
        super().__init__()
        if gradient_net not in GRADIENT_NETS:
            raise SettingsError(f"SIB's gradient net is one of {', '.join(GRADIENT_NETS)}, found '{gradient_net}'.")
        self.encoder, self.second_order = encoder, second_order
        self.initial_weight = nn.Parameter(torch.ones(encoder.feature_size)) if feature_weight else None
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.bias = nn.Parameter(torch.tensor(0.0))
        self.gradient_net: nn.Module = GRADIENT_NETS[gradient_net](ways)

    @classmethod
    def from_settings(cls, settings: SibSettings, parts: Parts) -> "Sib":
        return cls(
            parts.encoder,
            ways=parts.ways,
            gradient_net=settings.gradient_net,
            feature_weight=settings.feature_weight,
            second_order=settings.order == "second",
        )

    def parameter_kinds(self) -> ParameterKinds:
        net = list(self.gradient_net.parameters())
        kinds, known = super().parameter_kinds(), {id(parameter) for parameter in net}
        theta = [parameter for parameter in kinds["theta"] if id(parameter) not in known]
        return {**kinds, "theta": theta, "gradient_net": net}

    def begin(self, batch: TaskBatch) -> CosineHead:
        with torch.no_grad():
            support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        return self.problem(batch, support, query)

    def problem(
        self,
        batch: TaskBatch,
        support: Float[Tensor, "T S D"],
        query: Float[Tensor, "T Q D"],
        start: Float[Tensor, "T W D"] | None = None,
    ) -> CosineHead:
        """The moves on features whose gradients are wanted; the head starts at the class means unless ``start`` is
        given."""
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        support, query = unit(support), unit(query)
        if start is None:
            start = labelled.class_means(support)
        if self.initial_weight is not None:
            start = self.initial_weight * start
        return CosineHead(
            query,
            support,
            query,
            batch.mask,
            labelled,
            CosineStart.outside(query, start),
            lambda scores: (self.gradient_net(scores.mT).mT, None),
            (support, query),
            scale=self.scale,
            shift=self.scale * self.bias,
            centred=False,
            second_order=self.second_order,
            factor=self.scale,
        )


class PublishedNet(nn.Module):
    """Linear(W, 8W)-ReLU-BatchNorm twice, then Linear(8W, W), on each query's scores: bound to W and to class order."""

    def __init__(self, ways: int) -> None:
        super().__init__()
        self.ways = ways
        hidden = 8 * ways
        self.first, self.second, self.third = (
            nn.Linear(ways, hidden),
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, ways),
        )
        self.first_norm, self.second_norm = TaskNorm(hidden), TaskNorm(hidden)

    def forward(self, scores: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        self.check_ways(scores.shape[-1])
        # Queries come first in memory: so each layer hands to the next what it needs without a copy.
        hidden = self.first_norm(self.first(scores.transpose(0, 1)).relu().transpose(0, 1))
        hidden = self.second_norm(self.second(hidden.transpose(0, 1)).relu().transpose(0, 1))
        out: Tensor = self.third(hidden.transpose(0, 1))
        return out.transpose(0, 1)

    def check_ways(self, ways: int) -> None:
        check_ways(self.ways, ways, "published synthetic-gradient net")


class EquivariantNet(nn.Module):
    """Each class's score with summaries over the classes, weights shared by all classes: any number of ways."""

    def __init__(self, hidden: int = 40, *, contrasts: bool = False, counts: bool = False) -> None:
        """With ``contrasts`` a class moves by what tells queries apart, not by what all of them have in common; with
        ``counts`` the net also sees the share of the queries that each class has, and can learn which shares to expect.
        """
        super().__init__()
        self.contrasts, self.counts = contrasts, counts
        inputs = 5 if counts else 4
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(2 * hidden, hidden)
        self.third = nn.Linear(hidden, 1)
        self.first_norm, self.second_norm = TaskNorm(hidden), TaskNorm(hidden)

    def forward(self, scores: Float[Tensor, "T Q W"]) -> Float[Tensor, "T Q W"]:
        tasks, queries, ways = scores.shape
        mean = scores.mean(-1, keepdim=True)
        inputs = [scores - mean, scores.softmax(-1), mean, scores.logsumexp(-1, keepdim=True) - mean]
        if self.counts:
            log_share = scores.log_softmax(-1).logsumexp(1, keepdim=True) + math.log(ways / queries)
            inputs.append(log_share)  # zero where every class has as many queries as the others
        hidden = self.first(torch.stack([part.expand_as(scores) for part in inputs], -1)).relu()
        hidden = self.first_norm(hidden.flatten(1, 2)).view(tasks, queries, ways, -1)
        # What the other classes say enters as their mean.
        hidden = torch.cat([hidden, hidden.mean(2, keepdim=True).expand_as(hidden)], -1)
        hidden = self.second_norm(self.second(hidden).relu().flatten(1, 2)).view(tasks, queries, ways, -1)
        out: Tensor = self.third(hidden).squeeze(-1)
        return out - out.mean(1, keepdim=True) if self.contrasts else out


class TaskNorm(nn.Module):
    """BatchNorm over each task's own queries; it has no running statistics, in training and test alike."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, values: Float[Tensor, "T N H"]) -> Float[Tensor, "T N H"]:
        tasks, examples, _ = values.shape
        # Every feature of every task is a channel of its own, in torch's one operation.
        channels = values.transpose(0, 1).reshape(examples, -1)
        weight, bias = self.weight.repeat(tasks), self.bias.repeat(tasks)
        normalised = torch.batch_norm(channels, weight, bias, None, None, True, 0.0, BATCHNORM_EPS, False)
        return normalised.view(examples, tasks, -1).transpose(0, 1)


GRADIENT_NETS: dict[str, Callable[[int], nn.Module]] = {
    "published": PublishedNet,
    "equivariant": lambda _: EquivariantNet(),
    "counting": lambda _: EquivariantNet(counts=True),
}
