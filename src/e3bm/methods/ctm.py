"""CTM (Li, Eigen, Dodge, Zeiler, Wang, CVPR 2019): a metric learner that looks across the categories first.

A concentrator finds what the shots of a class share, a projector reads all classes side by side and answers with a soft
mask over channels, a reshaper brings examples into the mask's shape; masked support and queries are compared by a
metric. The projector binds a model to its number of ways and to the order of classes.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from e3bm.backbones.base import Backbone
from e3bm.backbones.encode import MapEncoder, TaskEncoder
from e3bm.backbones.layers import ConvNorm, activate
from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.errors import DataError, SettingsError
from e3bm.methods.base import METHODS, DirectMethod, Encoder, MethodSettings, Needs, Parts, check_ways
from e3bm.methods.heads.labelled import LabelledSupport

BatchNorm = Literal["batch", "running", "batch_then_running"]
Masked = Literal["examples", "classes"]
Metric = Literal["euclidean", "relation"]
OverShots = Literal["mean", "sum"]
GAP = 1e-6  # added to every difference of two features, as published: keeps distances away from zero
EXPANSION = 4
RELATION_CHANNELS = 64


class CtmSettings(MethodSettings):
    """CTM: distances of feature maps under a mask that depends on all classes of the task."""

    title = "CTM"
    needs = Needs(takes="maps")

    name: Literal["ctm"] = "ctm"
    widths: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(10, 10, 10, 10), min_length=1)
    """Bottleneck widths of the blocks of each net; the mask has four times the last width as channels."""
    masked: Masked = "examples"
    """What is compared with queries: every support example, or one concentrated map for each class."""
    metric: Metric = "euclidean"
    """Minus the distance of masked maps, or a small network's number for each pair (relation)."""
    over_shots: OverShots = "mean"
    """How the shots of a class make its score: their mean, or their sum, as in the published code."""
    batchnorm: Literal["running", "batch_then_running"] = "batch_then_running"
    """Statistics of CTM's own nets: running averages, frozen; or each task's own in training and averages at test."""
    scale: float = Field(default=1.0, gt=0)
    """Factor on the scores, which the mask makes small; published: 1."""


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1 beside a shortcut, which is a 1x1 convolution where channels change; ReLU."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.residual = nn.Sequential(
            ConvNorm(inputs, width, kernel=1, slope=0.0),
            ConvNorm(width, width, slope=0.0),
            ConvNorm(width, outputs, kernel=1),
        )
        self.shortcut = nn.Identity() if inputs == outputs else ConvNorm(inputs, outputs, kernel=1)

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C2 H W"]:
        total: Tensor = self.residual(maps)
        return activate(total.add_(self.shortcut(maps)))


class Bottlenecks(Backbone):
    """A chain of bottleneck blocks on feature maps: the form of all three nets."""

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__(channels=channels, feature_size=EXPANSION * widths[-1])
        sizes = [channels, *(EXPANSION * width for width in widths)]
        self.blocks = nn.Sequential(*(Bottleneck(*sizes) for sizes in zip(sizes[:-1], widths, strict=True)))
        _initialise(self)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        return self.maps(images).mean((2, 3))

    def maps(self, images: Float[Tensor, "N C H W"], *, last_pooling: bool = True) -> Float[Tensor, "N C2 H W"]:
        """The maps after the last block; there is no pooling."""
        maps: Tensor = self.blocks(images)
        return maps


class Relation(Backbone):
    """The relation metric: two convolutions and two linear layers from a pair of stacked maps to one number."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__(channels=channels, feature_size=1)
        if side < 2:
            raise SettingsError(f"CTM's relation metric halves its maps and needs 2x2 or more, found {side}x{side}.")
        self.blocks = nn.Sequential(
            ConvNorm(channels, RELATION_CHANNELS, bias=True, slope=0.0),
            nn.MaxPool2d(2),
            ConvNorm(RELATION_CHANNELS, RELATION_CHANNELS, bias=True, slope=0.0),
        )
        flat = RELATION_CHANNELS * (side // 2) ** 2
        self.head = nn.Sequential(nn.Linear(flat, flat // 2), nn.ReLU(), nn.Linear(flat // 2, 1))
        _initialise(self)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N 1"]:
        numbers: Tensor = self.head(self.blocks(images).flatten(1))
        return numbers


@METHODS.register("ctm")
class Ctm(DirectMethod):
    """Scores of queries by masked feature maps; ``encoder`` gives maps of ``channels``.

    ``widths`` are the bottlenecks of the blocks of each net; the mask has four times the last of them as channels. What
    is ``masked`` and compared are the support ``examples``, reshaped (the paper's option 1), or the concentrated
    ``classes`` (option 2). The published score of a class is the sum over its shots; with their ``mean`` uneven shots
    are fair. ``side`` is that of the maps, for the relation metric only.
    """

    settings = CtmSettings

    def __init__(
        self,
        encoder: Encoder,
        channels: int,
        *,
        ways: int,
        widths: Sequence[int] = (10, 10, 10, 10),
        masked: Masked = "examples",
        metric: Metric = "euclidean",
        side: int | None = None,
        batchnorm: BatchNorm = "batch_then_running",
        over_shots: OverShots = "mean",
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        if not widths or min(widths) < 1:
            raise SettingsError(f"CTM's nets need one block or more, each of width 1 or more; found {tuple(widths)}.")
        self.encoder, self.channels, self.ways = encoder, channels, ways
        self.masked, self.over_shots, self.scale = masked, over_shots, scale
        size = EXPANSION * widths[-1]
        self.concentrator = MapEncoder(Bottlenecks(channels, widths), batchnorm)
        self.projector = MapEncoder(Bottlenecks(ways * size, widths), batchnorm)
        self.reshaper = MapEncoder(Bottlenecks(channels, widths), batchnorm)
        self.relation: TaskEncoder | None = None
        if metric == "relation":
            if side is None:
                raise SettingsError("CTM's relation metric has linear layers of the maps' size; say the maps' `side`.")
            self.relation = TaskEncoder(Relation(2 * size, side), batchnorm)

    @classmethod
    def from_settings(cls, settings: CtmSettings, parts: Parts) -> "Ctm":
        if parts.map_shape is None:
            raise SettingsError("CTM takes feature maps; build it with the shape of the maps that its encoder gives.")
        channels, height, width = parts.map_shape
        if height * width == 1 and settings.batchnorm != "running":
            raise SettingsError(
                "CTM's projector sees one map for each task, and a map of 1x1 has no batch statistics; take larger "
                "images or another backbone, or set method.batchnorm to running."
            )
        return cls(
            parts.encoder,
            channels,
            ways=parts.ways,
            widths=settings.widths,
            masked=settings.masked,
            metric=settings.metric,
            side=height,
            batchnorm=settings.batchnorm,
            over_shots=settings.over_shots,
            scale=settings.scale,
        )

    def check_ways(self, ways: int) -> None:
        check_ways(self.ways, ways, "projector, which reads all classes side by side")

    def forward(self, batch: TaskBatch) -> Trace:
        return Trace(self.scores(batch))

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Minus the scaled distances (or the relations) of masked queries and masked support, by class."""
        self.check_ways(batch.ways)
        support, query = self._maps(batch.support, batch.support_mask), self._maps(batch.query)
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        classes = self.concentrated(support, labelled, batch.support_mask)
        mask = self.mask(classes)
        asked = self.reshaper(query) * mask
        if self.masked == "classes":
            return self.scale * self._compare(asked, classes * mask)
        known = self.reshaper(support, batch.support_mask) * mask
        share = labelled.class_share if self.over_shots == "mean" else labelled.class_share.sign()
        return self.scale * self._compare(asked, known, batch.support_mask) @ share.mT

    def concentrated(
        self, support: Float[Tensor, "T S C H W"], labelled: LabelledSupport, mask: Bool[Tensor, "T S"] | None = None
    ) -> Float[Tensor, "T ways M H W"]:
        """What the shots of each class share: the mean of their concentrated maps."""
        maps: Tensor = self.concentrator(support, mask)
        return labelled.class_means(maps.flatten(2)).view(len(maps), self.ways, *maps.shape[2:])

    def mask(self, classes: Float[Tensor, "T ways M H W"]) -> Float[Tensor, "T 1 M H W"]:
        """Which channels matter at each position for telling these classes apart: shares that sum to one."""
        projected: Tensor = self.projector(classes.flatten(1, 2).unsqueeze(1))
        return projected.softmax(2)

    def _maps(
        self, examples: Float[Tensor, "T N *shape"], mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N C H W"]:
        maps: Tensor = self.encoder(examples, mask)
        if maps.ndim != 5 or maps.shape[2] != self.channels:
            raise DataError(
                f"CTM takes feature maps [tasks, examples, {self.channels} channels, height, width]; found "
                f"{tuple(maps.shape)}. Use an encoder that gives maps with this number of channels."
            )
        return maps

    def _compare(
        self,
        query: Float[Tensor, "T Q C H W"],
        known: Float[Tensor, "T N C H W"],
        mask: Bool[Tensor, "T N"] | None = None,
    ) -> Float[Tensor, "T Q N"]:
        """How well every query fits every known map; padding fits nobody, and enters no statistics."""
        if self.relation is None:
            difference = known.flatten(2).unsqueeze(1) - query.flatten(2).unsqueeze(2)
            lengths: Tensor = torch.linalg.vector_norm(difference + GAP, dim=-1)
            return -lengths
        shape = (len(query), query.shape[1], known.shape[1])
        pairs = torch.cat(
            [known.unsqueeze(1).expand(*shape, *known.shape[2:]), query.unsqueeze(2).expand(*shape, *query.shape[2:])],
            3,
        )
        real = None if mask is None else mask.unsqueeze(1).expand(shape).flatten(1)
        relations: Tensor = self.relation(pairs.flatten(1, 2), real)
        return relations.view(shape)


def _initialise(network: nn.Module) -> None:
    """Xavier-uniform convolutions, linear layers N(0, 0.01), zero biases."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
