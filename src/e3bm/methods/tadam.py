"""TADAM (Oreshkin, Rodríguez López, Lacoste, NeurIPS 2018): ProtoNets with a scale and a task-conditioned network.

A first pass of the support gives the task's mean prototype t. From it two small networks for every convolution predict
a factor and a shift per channel, h <- (1 + gamma) h + beta between BatchNorm and activation (FiLM); a second pass takes
support and queries through the network so conditioned. Beside the few-shot task the network classifies among all
training classes, with a share that falls (co-training).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from e3bm.backbones.base import Backbone
from e3bm.backbones.encode import TaskEncoder
from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.errors import DataError, SettingsError
from e3bm.methods.base import (
    METHODS,
    DirectMethod,
    MethodSettings,
    Needs,
    Parts,
    class_numbers,
    image_encoder,
    training_classes,
)
from e3bm.methods.heads.labelled import LabelledSupport

Metric = Literal["euclidean", "cosine"]
START = 0.2  # variance of a linear layer's first weights, times its number of outputs
SHORTEST = 1e-6  # added to lengths by the cosine metric


class TadamSettings(MethodSettings):
    """TADAM: scaled distances to class means of features that the task itself conditions."""

    title = "TADAM"
    needs = Needs(
        takes="images",
        backbone=("full",),
        class_numbers=True,
        reasons={"backbone.adapt": "TADAM conditions the network for every task"},
    )

    name: Literal["tadam"] = "tadam"
    scale: float = Field(default=10.0, gt=0)
    """Factor on the distances (the metric scale)."""
    learned_scale: bool = False
    """Whether that factor is trained; published code keeps it fixed."""
    metric: Metric = "euclidean"
    """Euclidean distances, not squared, or squared ones between features of length one."""
    conditioned: int | None = Field(default=None, ge=0)
    """How many of the last convolutions the task conditions; unset: all."""
    co_training: bool = True
    """Whether the support is also classified among all training classes, with a decreasing weight."""
    weight_decay: float = Field(default=0.0005, ge=0)
    """Penalty on squares of kernels and of the embedding's weights; BatchNorm and biases have none."""
    film_decay: float = Field(default=0.01, ge=0)
    """Penalty on squares of the scalars that switch conditioning on."""


@dataclass(frozen=True)
class TadamTrace(Trace):
    """The scores, and the features of the first pass, which co-training classifies."""

    first: Float[Tensor, "T S D"]


class Film(NamedTuple):
    """A factor's difference from one and a shift for every channel of one layer, task by task."""

    gamma: Float[Tensor, "T F"]
    beta: Float[Tensor, "T F"]


class FilmNetwork(nn.Module):
    """Three linear layers with shortcuts from a task's mean prototype to one number per channel, which starts at 0."""

    def __init__(self, features: int, channels: int) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(size, channels) for size in (features, channels, channels))
        self.scale = nn.Parameter(torch.zeros(()))
        for layer in (self.first, self.second, self.third):
            nn.init.normal_(layer.weight, 0.0, math.sqrt(START / channels))
            nn.init.zeros_(layer.bias)

    def forward(self, task: Float[Tensor, "T D"]) -> Float[Tensor, "T F"]:
        hidden = functional.silu(self.first(task))
        hidden = functional.silu(self.second(hidden) + hidden)
        last: Tensor = self.third(hidden) + hidden
        return self.scale * last


class TaskEmbedding(nn.Module):
    """The task embedding network (TEN): two networks for each conditioned layer."""

    def __init__(self, features: int, channels: Mapping[str, int]) -> None:
        super().__init__()
        self.layers = tuple(channels)
        self.gamma = nn.ModuleList(FilmNetwork(features, size) for size in channels.values())
        self.beta = nn.ModuleList(FilmNetwork(features, size) for size in channels.values())

    def forward(self, task: Float[Tensor, "T D"]) -> dict[str, Film]:
        """What each layer is conditioned by, by the layer's name."""
        films = (Film(gamma(task), beta(task)) for gamma, beta in zip(self.gamma, self.beta, strict=True))
        return dict(zip(self.layers, films, strict=True))


@METHODS.register("tadam")
class Tadam(DirectMethod):
    """Scores are scaled distances to class means of conditioned features; t comes from the support alone.

    ``conditioned`` is how many of the last convolutions are conditioned (None: all). ``classes`` is the number of
    training classes for co-training (0: none). The published scale is fixed; with ``learned_scale`` it is trained.
    """

    settings = TadamSettings

    def __init__(
        self,
        encoder: TaskEncoder,
        *,
        classes: int = 0,
        scale: float = 10.0,
        learned_scale: bool = False,
        metric: Metric = "euclidean",
        conditioned: int | None = None,
        weight_decay: float = 0.0005,
        film_decay: float = 0.01,
    ) -> None:
        super().__init__()
        self.encoder, self.metric = encoder, metric
        self.weight_decay, self.film_decay = weight_decay, film_decay
        self.scale = nn.Parameter(torch.tensor(float(scale)), requires_grad=learned_scale)
        self.embedding = TaskEmbedding(encoder.feature_size, conditioned_layers(encoder.backbone, conditioned))
        self.auxiliary = nn.Linear(encoder.feature_size, classes) if classes else None

    @classmethod
    def from_settings(cls, settings: TadamSettings, parts: Parts) -> "Tadam":
        return cls(
            image_encoder(settings.title, parts),
            classes=training_classes(settings.title, parts) if settings.co_training else 0,
            scale=settings.scale,
            learned_scale=settings.learned_scale,
            metric=settings.metric,
            conditioned=settings.conditioned,
            weight_decay=settings.weight_decay,
            film_decay=settings.film_decay,
        )

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """Minus the scaled distances of conditioned queries to the means of conditioned support."""
        return self.forward(batch).scores

    def forward(self, batch: TaskBatch) -> TadamTrace:
        first: Tensor = self.encoder(batch.support, batch.support_mask)
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, first.dtype)
        films = self.embedding(labelled.class_means(first).mean(1))
        support = self.conditioned(batch.support, films, batch.support_mask)
        query = self.conditioned(batch.query, films)
        return TadamTrace(self.scale * -self.distances(query, labelled.class_means(support)), first)

    def conditioned(
        self, images: Float[Tensor, "T N *shape"], films: Mapping[str, Film], mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N D"]:
        """Features of the conditioned network; with running statistics all tasks pass together."""
        if self.encoder.mode == "running":
            return self._together(images, films, mask)
        features = []  # task by task: FiLM is a BatchNorm of other weight and bias
        for task in range(len(images)):
            part = slice(task, task + 1)
            values = dict(self._film_values(films, task))
            features.append(functional_call(self.encoder, values, (images[part], None if mask is None else mask[part])))
        return torch.cat(features)

    def unconditioned_stages(self) -> int:
        """How many stages come before the first conditioned layer: they see an image alike in any task."""
        inside = [set(stage.modules()) for stage in self.encoder.whole.stages()]
        layers = {self.encoder.whole.get_submodule(name) for name in self.embedding.layers}
        return next((number for number, modules in enumerate(inside) if modules & layers), 0)

    def _together(
        self, examples: Float[Tensor, "T N *shape"], films: Mapping[str, Film], mask: Bool[Tensor, "T N"] | None
    ) -> Float[Tensor, "T N D"]:
        """One pass of all tasks: what follows a conditioned BatchNorm is multiplied and shifted image by image."""
        tasks = torch.arange(len(examples), device=examples.device).unsqueeze(1).expand(examples.shape[:2])
        owners = tasks.flatten() if mask is None else tasks[mask]
        done = 0

        def network(images: Tensor) -> Tensor:
            nonlocal done
            own = owners[done : done + len(images)]
            done += len(images)
            with self._switched_on({name: Film(film.gamma[own], film.beta[own]) for name, film in films.items()}):
                return self.encoder.network(images)

        found: Tensor = self.encoder(examples, mask, network=network)
        return found

    @contextmanager
    def _switched_on(self, films: Mapping[str, Film]) -> Iterator[None]:
        """Layers of the network give (1 + gamma) h + beta for every image of the pass instead of h."""
        hooks = []
        for name, film in films.items():
            factor, shift = (value[:, :, None, None] for value in (1 + film.gamma, film.beta))
            put = lambda layer, inputs, output, factor=factor, shift=shift: torch.addcmul(shift, output, factor)
            hooks.append(self.encoder.whole.get_submodule(name).register_forward_hook(put))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def distances(self, query: Float[Tensor, "T Q D"], means: Float[Tensor, "T W D"]) -> Float[Tensor, "T Q W"]:
        """Lengths of the differences, not squared; the cosine metric squares them between vectors of length one."""
        if self.metric == "cosine":
            query, means = (each / (each.norm(dim=-1, keepdim=True) + SHORTEST) for each in (query, means))
            return (query.unsqueeze(2) - means.unsqueeze(1)).square().sum(-1)
        lengths: Tensor = torch.linalg.vector_norm(query.unsqueeze(2) - means.unsqueeze(1), dim=-1)
        return lengths  # at distance 0 the derivative of vector_norm is 0, not NaN

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """Cross-entropy of the queries, penalties and, unless it was built without, the co-training of the support.

        Published co-training is a step of its own on other images with a probability that falls; here its loss is added
        with that probability as its weight.
        """
        assert isinstance(trace, TadamTrace)
        assert batch.query_labels is not None
        loss = meta_loss(trace.scores, batch.query_labels) + self.penalty()
        if self.auxiliary is None:
            return loss
        classes, _ = class_numbers(self.settings.title, batch, self.auxiliary.out_features)
        # Task by task: with uneven shots a mean over all examples would depend on which tasks a process holds.
        each = zip(trace.first, classes, batch.mask, strict=True)
        auxiliary = torch.stack([self.auxiliary_loss(first[real], numbers[real]) for first, numbers, real in each])
        return loss + auxiliary_probability(progress) * auxiliary.mean()

    def auxiliary_scores(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N classes"]:
        """Scores of the training classes for images of no task, by the unconditioned network."""
        scores: Tensor = self._classifier()(self.encoder(images.unsqueeze(0)).squeeze(0))
        return scores

    def auxiliary_loss(self, features: Float[Tensor, "N D"], classes: Int[Tensor, " N"]) -> Float[Tensor, ""]:
        """Cross-entropy of unconditioned features among all training classes."""
        return functional.cross_entropy(self._classifier()(features), classes)

    def penalty(self) -> Float[Tensor, ""]:
        """Squares of kernels and linear weights, and with a larger factor of the scalars that switch FiLM on."""
        kernels = [layer.weight for layer in self.embedding.modules() if isinstance(layer, nn.Linear)]
        scales = [network.scale for network in self.embedding.modules() if isinstance(network, FilmNetwork)]
        film = sum((scale.square() for scale in scales), self.scale.new_zeros(()))
        return self.auxiliary_penalty() + self._decay(kernels) + self.film_decay / 2 * film

    def auxiliary_penalty(self) -> Float[Tensor, ""]:
        """The part of the penalty that the published auxiliary step has: the kernels of the extractor."""
        return self._decay([layer.weight for layer in self.encoder.modules() if isinstance(layer, nn.Conv2d)])

    def _decay(self, weights: list[Tensor]) -> Float[Tensor, ""]:
        squares = (weight.square().sum() for weight in weights if weight.requires_grad)
        return self.weight_decay / 2 * sum(squares, self.scale.new_zeros(()))

    def _film_values(self, films: Mapping[str, Film], task: int) -> Iterator[tuple[str, Tensor]]:
        """Weight and bias of every conditioned BatchNorm, by their names inside the encoder."""
        for name, film in films.items():
            norm = self.encoder.backbone.get_submodule(name)
            assert isinstance(norm, nn.BatchNorm2d)
            factor = 1 + film.gamma[task]
            yield f"backbone.{name}.weight", factor * norm.weight
            yield f"backbone.{name}.bias", factor * norm.bias + film.beta[task]

    def _classifier(self) -> nn.Linear:
        if self.auxiliary is None:
            raise DataError("This TADAM was built without training classes, so it cannot co-train; give `classes`.")
        return self.auxiliary


def auxiliary_probability(progress: float) -> float:
    """How likely an auxiliary step is at that share of the training: 0.9, then a factor 0.9 less every twentieth."""
    return float(0.9 ** (1 + math.floor(20 * progress + 1e-9)))  # t/N may lie a rounding error below its twentieth


def conditioned_layers(backbone: Backbone, last: int | None = None) -> dict[str, int]:
    """The BatchNorm layers that FiLM follows and their channels: after the last convolutions, not in shortcuts."""
    layers = {}
    for conv_name, norm_name in backbone.conv_norm_pairs():
        conv, norm = backbone.get_submodule(conv_name), backbone.get_submodule(norm_name)
        if (
            isinstance(conv, nn.Conv2d)
            and isinstance(norm, nn.BatchNorm2d)
            and norm.affine
            and conv.kernel_size > (1, 1)
        ):
            layers[norm_name] = norm.num_features
    if last is None:
        last = len(layers)
    if not layers or not 0 <= last <= len(layers):
        raise SettingsError(
            f"TADAM conditions BatchNorm layers that follow convolutions; {type(backbone).__name__} has {len(layers)} "
            f"of them, and {last} were asked for. Choose resnet12_tadam or resnet12, and at most as many layers."
        )
    return dict(list(layers.items())[len(layers) - last :])
