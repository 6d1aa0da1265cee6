"""Robust20-dist (Dvornik, Schmid, Mairal, ICCV 2019): networks that cooperate and differ, distilled into one.

Several networks learn to classify the training classes side by side. A relation between their opinions about the
wrong classes is added to the loss: diversity asks that they differ, cooperation that they agree, and in the robust form
they shall agree although each sees the images in a way of its own and some are left out of a step at random. One
network then learns from the mean of their predictions. A few-shot task is answered by the nearest class mean.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from e3bm.backbones.base import Backbone
from e3bm.backbones.encode import TaskEncoder
from e3bm.core.adapt import Trace
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import ParameterKinds
from e3bm.errors import SettingsError
from e3bm.methods.base import (
    METHODS,
    DirectMethod,
    MethodSettings,
    Needs,
    Parts,
    check_memory,
    class_numbers,
    image_encoder,
    training_classes,
)
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.labelled import LabelledSupport

Relation = Literal["independent", "diversity", "cooperation", "robust"]
Annealing = Literal["none", "step", "cosine"]
KEPT = 3  # numbers of every weight in a training: itself, its gradient, and one of the optimiser or more
FALL_AT, FALL = 2 / 3, 0.1  # of the "step" annealing: where in a stage, and by which factor


class RobustEnsembleSettings(MethodSettings):
    """Robust20-dist: networks that learn the training classes side by side, distilled into one."""

    title = "Robust20-dist"
    needs = Needs(
        takes="images",
        backbone=("full",),
        batchnorm=("batch_then_running",),
        class_numbers=True,
        reasons={
            "backbone.adapt": "the networks of a robust ensemble are trained as a whole",
            "backbone.batchnorm": "the networks of a robust ensemble begin untrained and learn their running averages",
        },
    )

    name: Literal["robust_ensemble"] = "robust_ensemble"
    networks: int = Field(default=20, ge=1)
    """How many networks learn side by side."""
    distilled: bool = True
    """Whether one more network learns from them and then answers alone; otherwise all answer together."""
    relation: Relation = "robust"
    """How opinions about wrong classes relate: not at all, different, alike, or alike although views differ."""
    coefficient: float = Field(default=10.0, ge=0)
    """Factor of that relation in the loss; 1 was published for diversity."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of the opinions that are compared; 5 was published for diversity."""
    participation: float = Field(default=0.7, gt=0, le=1)
    """Probability with which a network takes part in a step of the robust form; at least one does."""
    moves: int = Field(default=2, ge=0)
    """Pixels by which each network's view is moved at most in the robust form; it may be mirrored as well."""
    distil_from: float = Field(default=0.5, gt=0, lt=1)
    """Share of the training after which the networks are frozen and the distilled one learns."""
    distillation_temperature: float = Field(default=5.0, gt=0)
    """Temperature of their predictions in the distillation."""
    distillation_share: float = Field(default=0.8, ge=0, le=1)
    """Weight of their predictions relative to the labels."""
    annealing: Annealing = "none"
    """How learning rates fall within each of the two stages: not, to a tenth after two thirds, or by a cosine."""
    scale: float = Field(default=20.0, gt=0)
    """Factor on the cosines to class means."""

    @property
    def label(self) -> str:
        return f"{self.relation.capitalize()}{self.networks}" + "-dist" * self.distilled


def other_classes(logits: Float[Tensor, "*K B C"], labels: Int[Tensor, " B"]) -> Float[Tensor, "*K B C-1"]:
    """The logits without that of each example's true class; their softmax is the prediction among the wrong ones."""
    places = torch.arange(logits.shape[-1] - 1, device=labels.device)
    index = places + (places >= labels.unsqueeze(1)).long()
    return logits.gather(-1, index.expand(*logits.shape[:-1], -1))


def cooperation(
    logits: Float[Tensor, "K B C"], labels: Int[Tensor, " B"], temperature: float = 1.0
) -> Float[Tensor, ""]:
    """How much opinions about the wrong classes disagree: symmetric KL divergence, mean over pairs and examples."""
    opinions = (other_classes(logits, labels) / temperature).log_softmax(-1)
    one, other = _pairs(opinions)
    return _mean((one.exp() - other.exp()).mul(one - other).sum(-1) / 2)


def diversity(logits: Float[Tensor, "K B C"], labels: Int[Tensor, " B"], temperature: float = 5.0) -> Float[Tensor, ""]:
    """How alike opinions about the wrong classes are, to be made small: their cosine, mean over pairs and examples."""
    opinions = unit((other_classes(logits, labels) / temperature).softmax(-1))
    one, other = _pairs(opinions)
    return _mean((one * other).sum(-1))


def distillation_loss(
    student: Float[Tensor, "B C"],
    teachers: Float[Tensor, "K B C"],
    labels: Int[Tensor, " B"],
    *,
    temperature: float = 5.0,
    share: float = 0.8,
) -> Float[Tensor, ""]:
    """Cross-entropy with the labels and, by ``share``, with the mean prediction of the teachers at a temperature."""
    targets = (teachers / temperature).softmax(-1).mean(0)
    soft = functional.cross_entropy(student / temperature, targets)
    return (1 - share) * functional.cross_entropy(student, labels) + share * temperature**2 * soft


def nearest_mean_scores(
    support: Float[Tensor, "T S D"], query: Float[Tensor, "T Q D"], labelled: LabelledSupport, scale: float = 20.0
) -> Float[Tensor, "T Q W"]:
    """Scaled cosines to the class means of features as they are, not of unit length first."""
    return scale * torch.bmm(unit(query), unit(labelled.class_means(support)).mT)


def mean_prediction(scores: Float[Tensor, "K T Q W"]) -> Float[Tensor, "T Q W"]:
    """Logarithm of the mean over networks of their probabilities."""
    return scores.log_softmax(-1).logsumexp(0) - math.log(len(scores))


class Classifier(nn.Module):
    """A network and the linear layer with which it classifies the training classes."""

    def __init__(self, encoder: TaskEncoder, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.feature_size, classes)

    def forward(
        self, images: Float[Tensor, "T N C H W"], real: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "B classes"]:
        """Scores of the training classes for the real images of all tasks."""
        features: Tensor = self.encoder(images, real)
        scores: Tensor = self.head(features.flatten(0, 1) if real is None else features[real])
        return scores


@METHODS.register("robust_ensemble")
class RobustEnsemble(DirectMethod):
    """K networks and the student that they are distilled into, on the images of episodes as training images.

    Up to the share ``distil_from`` of the training the networks learn, afterwards the student, from networks that rest.
    Without a student the networks answer together. Each step every network takes part with ``participation`` (at least
    one does) and sees all images moved by up to ``moves`` pixels and mirrored or not; what is drawn depends on the seed
    and on the training's progress only, not on how tasks are spread over processes.
    """

    settings = RobustEnsembleSettings

    def __init__(
        self,
        networks: Sequence[TaskEncoder],
        student: TaskEncoder | None,
        *,
        classes: int,
        relation: Relation = "robust",
        coefficient: float = 10.0,
        temperature: float = 1.0,
        participation: float = 0.7,
        moves: int = 2,
        distil_from: float = 0.5,
        distillation_temperature: float = 5.0,
        distillation_share: float = 0.8,
        annealing: Annealing = "none",
        scale: float = 20.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not networks or classes < 3:
            raise SettingsError(
                "A robust ensemble needs at least one network, and three training classes or more so that there are "
                f"wrong ones to compare; found {len(networks)} networks and {classes} classes."
            )
        if not 0.0 < participation <= 1.0 or not 0.0 <= distillation_share <= 1.0 or not 0.0 <= distil_from <= 1.0:
            raise SettingsError(
                "Shares of a robust ensemble lie between 0 and 1, its participation above 0; found participation "
                f"{participation}, distillation_share {distillation_share} and distil_from {distil_from}."
            )
        self.networks = nn.ModuleList(Classifier(network, classes) for network in networks)
        self.student = None if student is None else Classifier(student, classes)
        self.relation, self.coefficient, self.temperature = relation, coefficient, temperature
        robust = relation == "robust"
        self.participation, self.moves = (participation if robust else 1.0), (moves if robust else None)
        self.distil_from = distil_from
        self.distillation_temperature, self.distillation_share = distillation_temperature, distillation_share
        self.annealing, self.scale, self.seed = annealing, scale, seed
        self.classes = classes

    @classmethod
    def from_settings(cls, settings: RobustEnsembleSettings, parts: Parts) -> "RobustEnsemble":
        """The distilled network begins with the weights that the backbone was given, all others with new ones."""
        given, classes = image_encoder(settings.label, parts), training_classes(settings.label, parts)
        each = sum(own.numel() for own in given.backbone.parameters()) + classes * (given.feature_size + 1)
        check_memory(
            settings.networks * each * KEPT * 4,  # float32
            f"{settings.networks} networks of {each:,} weights",
            "use fewer networks (method.networks), or a backbone of less width",
            at_a_time=" with their gradients and the optimiser's momenta",
        )
        draws: list[int] = torch.randint(2**31, (settings.networks + 1,)).tolist()
        encoder = lambda backbone: TaskEncoder(backbone, given.batchnorm, autocast=given.autocast)
        return cls(
            [encoder(redrawn(given.backbone, draw)) for draw in draws[1:]],
            given if settings.distilled else None,
            classes=classes,
            relation=settings.relation,
            coefficient=settings.coefficient,
            temperature=settings.temperature,
            participation=settings.participation,
            moves=settings.moves,
            distil_from=settings.distil_from,
            distillation_temperature=settings.distillation_temperature,
            distillation_share=settings.distillation_share,
            annealing=settings.annealing,
            scale=settings.scale,
            seed=draws[0],
        )

    def parameter_kinds(self) -> ParameterKinds:
        """All of it is networks, and they have the learning rate of encoders."""
        return {"encoder": list(self.parameters())}

    def at(self, progress: float) -> None:
        """Whoever rests has no gradients: with zeros instead, momentum and weight decay would still move it."""
        distilling = self.distilling(progress)
        self.networks.requires_grad_(not distilling)
        if self.student is not None:
            self.student.requires_grad_(distilling)

    def outer_factor(self, progress: float) -> float:
        """Learning rates fall within each stage, and begin anew with the second."""
        done = progress
        if self.student is not None:
            begin, end = (self.distil_from, 1.0) if self.distilling(progress) else (0.0, self.distil_from)
            done = (progress - begin) / (end - begin)
        if self.annealing == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        return FALL if self.annealing == "step" and done >= FALL_AT else 1.0

    def distilling(self, progress: float) -> bool:
        """Whether that share of the training belongs to the student."""
        return self.student is not None and progress >= self.distil_from

    def forward(self, batch: TaskBatch) -> Trace:
        with torch.no_grad():  # nothing is learned from these scores
            return Trace(self.scores(batch))

    def scores(self, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        """The student's scores, or the logarithm of the networks' mean probability; by running statistics."""
        with _resting(self):
            if self.student is not None:
                return self._scores(self.student, batch)
            return mean_prediction(torch.stack([self._scores(network, batch) for network in self._classifiers()]))

    def training_loss(self, trace: Trace, batch: TaskBatch, progress: float) -> Float[Tensor, ""]:
        """The loss of the classifiers: all images of the tasks are training images, the queries too."""
        classes = torch.cat(class_numbers(self.settings.title, batch, self.classes), 1)
        images = torch.cat([batch.support, batch.query], 1)
        if batch.support_mask is None:
            return self.classification_loss(images, classes, progress)
        real = functional.pad(batch.support_mask, (0, batch.query.shape[1]), value=True)
        # Task by task: with uneven shots a mean over all images would depend on which tasks a process holds.
        tasks = range(len(batch))
        each = [self.classification_loss(images[[t]], classes[[t]], progress, real[[t]]) for t in tasks]
        return torch.stack(each).mean()

    def classification_loss(
        self,
        images: Float[Tensor, "T N C H W"],
        classes: Int[Tensor, "T N"],
        progress: float,
        real: Bool[Tensor, "T N"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of the networks, or later that of the student; ``classes`` are numbers in the training set."""
        labels = classes.flatten() if real is None else classes[real]
        if self.distilling(progress):
            return self.student_loss(images, labels, real)
        return self.ensemble_loss(images, labels, progress, real)

    def ensemble_loss(
        self,
        images: Float[Tensor, "T N C H W"],
        labels: Int[Tensor, " B"],
        progress: float = 0.0,
        real: Bool[Tensor, "T N"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy of the networks that take part, and the relation between them."""
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + round(progress * 1e9))
        chosen = self.participants(draw)
        networks = self._classifiers()
        views = [self.view(images, draw) for _ in networks]  # drawn for all: a view does not depend on who takes part
        logits = torch.stack([networks[number](views[number], real) for number in chosen])
        each = functional.cross_entropy(logits.flatten(0, 1), labels.repeat(len(chosen)))
        if self.relation == "independent":
            return each
        relation = diversity if self.relation == "diversity" else cooperation
        return each + self.coefficient * relation(logits, labels, self.temperature)

    def student_loss(
        self,
        images: Float[Tensor, "T N C H W"],
        labels: Int[Tensor, " B"],
        real: Bool[Tensor, "T N"] | None = None,
    ) -> Float[Tensor, ""]:
        """What the student learns by: labels, and what the resting networks say of the very same images."""
        if self.student is None:
            raise SettingsError("This ensemble was built without a student, so there is nothing to distil into.")
        with torch.no_grad(), _resting(self.networks):
            teachers = torch.stack([network(images, real) for network in self._classifiers()])
        return distillation_loss(
            self.student(images, real),
            teachers,
            labels,
            temperature=self.distillation_temperature,
            share=self.distillation_share,
        )

    def participants(self, draw: torch.Generator) -> list[int]:
        """The networks of one step: each with its probability, and one at random where none would be left."""
        count = len(self.networks)
        chosen = torch.rand(count, generator=draw).lt(self.participation).nonzero().flatten().tolist()
        instead = int(torch.randint(count, (), generator=draw))
        return chosen or [instead]

    def view(self, images: Float[Tensor, "T N C H W"], draw: torch.Generator) -> Float[Tensor, "T N C H W"]:
        """The images as one network sees them: moved, with their border repeated, and mirrored or not."""
        if self.moves is None:
            return images
        down, right = torch.randint(2 * self.moves + 1, (2,), generator=draw).tolist()
        mirrored = bool(torch.rand((), generator=draw) < 0.5)
        height, width = images.shape[-2:]
        wide = functional.pad(images.flatten(0, 1), [self.moves] * 4, mode="replicate")
        moved = wide[..., down : down + height, right : right + width].view_as(images)
        return moved.flip(-1) if mirrored else moved

    def _scores(self, classifier: Classifier, batch: TaskBatch) -> Float[Tensor, "T Q W"]:
        support, query = classifier.encoder(batch.support, batch.support_mask), classifier.encoder(batch.query)
        labelled = LabelledSupport(batch.support_labels, batch.mask, batch.ways, support.dtype)
        return nearest_mean_scores(support, query, labelled, self.scale)

    def _classifiers(self) -> list[Classifier]:
        return [network for network in self.networks if isinstance(network, Classifier)]


def redrawn(backbone: Backbone, seed: int) -> Backbone:
    """A copy with kernels drawn anew, as wide as they were, and BatchNorm at its start: networks must differ."""
    draw = torch.Generator().manual_seed(seed)
    copy = deepcopy(backbone)
    with torch.no_grad():
        for layer in copy.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                spread = layer.weight.square().mean().sqrt()
                layer.weight.copy_(spread * torch.randn(layer.weight.shape, generator=draw).to(layer.weight))
            elif isinstance(layer, nn.BatchNorm2d):
                layer.reset_parameters()
    return copy


@contextmanager
def _resting(module: nn.Module) -> Iterator[None]:
    """A module in evaluation mode for a while: running statistics, which stay as they are."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _pairs(opinions: Float[Tensor, "K B C"]) -> tuple[Float[Tensor, "P B C"], Float[Tensor, "P B C"]]:
    """Both sides of every pair of networks."""
    one, other = torch.triu_indices(len(opinions), len(opinions), 1, device=opinions.device)
    return opinions[one], opinions[other]


def _mean(values: Float[Tensor, "P B"]) -> Float[Tensor, ""]:
    """Zero where there is no pair: a network has no relation to itself."""
    return values.mean() if len(values) else values.sum()
