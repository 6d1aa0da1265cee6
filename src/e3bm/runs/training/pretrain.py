"""`e3bm pretrain`: settings in, run folder out."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from e3bm.backbones import Backbone, WhitenedBackbone, whitening_of
from e3bm.core.learner import DirectLearner
from e3bm.data.episodes.classification import ClassificationBatches, LabelledBatch
from e3bm.data.episodes.folds import SomeTrainingClasses, class_folds
from e3bm.data.episodes.loader import prefetched
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.interruption import stop_politely
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.progress import Progress, Silent, stage
from e3bm.runs.assembly import DTYPES, build_backbone
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import evaluate
from e3bm.runs.evaluation.protocol import check_selection, check_splits
from e3bm.runs.folder.checkpoint import Checkpoints, Continuation
from e3bm.runs.folder.run_folder import RunFolder, opened
from e3bm.runs.local_copy import on_local_disk
from e3bm.runs.settings import PretrainSettings
from e3bm.runs.tasks import OpenData, episode_sampler, feature_tasks, open_data
from e3bm.runs.training.optimisers import check_gradients
from e3bm.runs.training.teacher import Lesson, Pupil, Teacher, full_precision

LOG_EVERY = 10
PREFETCH = 2
ONE_CYCLE_RISE = 0.3  # share of the steps in which the learning rate rises
ONE_CYCLE_START = 25.0  # the peak over the first learning rate


class Classifier(nn.Module):
    """A backbone and a head over the training classes; the cosine head has a learned scale and no bias.

    With a teacher's lesson, ``predict`` maps the features of the backbone to those of the teacher.
    """

    def __init__(self, backbone: Backbone, classes: int, kind: str, lesson: Lesson | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.weight = nn.Parameter(torch.empty(classes, backbone.feature_size))
        nn.init.normal_(self.weight, std=backbone.feature_size**-0.5)
        self.bias = nn.Parameter(torch.zeros(classes)) if kind == "linear" else None
        self.scale = nn.Parameter(torch.tensor(10.0)) if kind == "cosine" else None
        self.predict = Pupil(backbone.feature_size, lesson) if lesson is not None else None

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N classes"]:
        return self.scores(self.backbone(images))

    def scores(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N classes"]:
        """Scores of the classes from the features of images."""
        if self.scale is not None:
            return self.scale * functional.linear(functional.normalize(features), functional.normalize(self.weight))
        return functional.linear(features, self.weight, self.bias)


def rate_at(settings: PretrainSettings, step: int, per_epoch: int) -> float:
    """The learning rate of a step: a pure function, so that a resumed run takes the same."""
    total = settings.epochs * per_epoch
    if settings.schedule == "one_cycle":
        rise = max(1.0, ONE_CYCLE_RISE * total)
        if step < rise:
            low = 1 / ONE_CYCLE_START
            return settings.rate * (low + (1 - low) * 0.5 * (1 - math.cos(math.pi * step / rise)))
        return settings.rate * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, total - rise)))
    rate = settings.rate * settings.step_factor ** (step // per_epoch // settings.step_every)
    if settings.schedule == "warmup_step" and step < settings.warmup:
        return rate * (step + 1) / settings.warmup
    return rate


def pretrain(
    model: Classifier,
    batches: ClassificationBatches,
    validate: Callable[[Backbone], tuple[float, float]],
    settings: PretrainSettings,
    run: RunFolder,
    engine: Engine,
    progress: Progress,
) -> None:
    """Train until the last epoch, from wherever the run folder stands; best few-shot accuracy on validation is kept."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain}]
    optimiser = torch.optim.SGD(groups, lr=settings.rate, momentum=0.9, nesterov=True)
    per_epoch = len(batches)
    total = settings.epochs * per_epoch
    place = Continuation(model, optimiser, run, engine, total)
    ahead = prefetched((batches.batch(*divmod(number, per_epoch)) for number in range(place.step, total)), PREFETCH)
    model.train()
    with stop_politely() as request, stage(progress, f"pretrain {settings.backbone.name}", total, place.step):
        while place.step < total:
            started = time.perf_counter()
            epoch = place.step // per_epoch
            torch.manual_seed(settings.seed * 1_000_003 + place.step)
            for group in optimiser.param_groups:
                group["lr"] = rate_at(settings, place.step, per_epoch)
            loss, accuracy = _step(model, next(ahead), optimiser, settings, place.step, engine)
            step = place.advance()
            seconds = time.perf_counter() - started
            numbers = {"loss": loss, "accuracy": accuracy, "images_per_second": settings.batch / seconds}
            progress.advance(step, **numbers)
            if engine.leads and (step % LOG_EVERY == 0 or step == total):
                run.append("metrics", {"step": step, "epoch": epoch, "split": "train", **numbers, "seconds": seconds})
            epochs_done, rest = divmod(step, per_epoch)
            validated = step == total or (rest == 0 and epochs_done % settings.validation.every == 0)
            if validated:
                started = time.perf_counter()
                found, interval = validate(model.backbone)
                model.train()
                best, seconds = place.judge(found), time.perf_counter() - started
                if engine.leads:
                    line = {"step": step, "epoch": epoch, "split": "val", "accuracy": found, "ci": interval}
                    run.append("metrics", {**line, "best": best, "seconds": seconds})
                progress.advance(step, validation=found)
            if validated or step % settings.checkpoint_every == 0:
                place.save()
            if engine.any(request.made):
                place.stop()


def _step(
    model: Classifier,
    batch: LabelledBatch,
    optimiser: torch.optim.Optimizer,
    settings: PretrainSettings,
    step: int,
    engine: Engine,
) -> tuple[float, float]:
    """One step on this process's rows of a batch; they are normalised by themselves, the leader's statistics stay."""
    images, labels = batch.images.to(engine.device), batch.labels.to(engine.device)
    optimiser.zero_grad(set_to_none=True)
    with torch.autocast(engine.device.type, torch.bfloat16, enabled=settings.machine.precision == "bfloat16"):
        features = model.backbone(images)
        scores = full_precision(model.scores(features))
        loss = functional.cross_entropy(scores, labels, label_smoothing=settings.label_smoothing)
        if model.predict is not None:
            loss = loss + settings.teacher_weight * model.predict.disagreement(features, batch.positions)
    with engine.summed_gradients(model.parameters()):
        (loss / engine.world).backward()
    check_gradients(optimiser, step)
    optimiser.step()
    engine.share_buffers(model)
    right = (scores.argmax(1) == labels).float().mean()
    figures = torch.stack([loss.detach().float(), 100.0 * right]).unsqueeze(0)
    mean_loss, accuracy = engine.gather(figures, engine.world).mean(0).tolist()
    return mean_loss, accuracy


WHITENED = "backbone.trunk."
FOLDS = "folds"  # folder of a run that holds the backbones of its folds
Validation = Callable[[Backbone], tuple[float, float]]


def run_pretrain(
    settings: PretrainSettings,
    folder: Path,
    progress: Progress | None = None,
    *,
    tensorboard: bool = False,
    folds: int = 0,
) -> RunFolder:
    """Train a backbone on the meta-training classes; resumes when the folder holds the same run unfinished.

    ``folds`` that shall follow by `run_folds` are refused now, not after hours, where the classes cannot be so divided.
    """
    progress = progress or Silent()
    check_selection(settings.validation.split)
    engine = Engine.start(settings.machine)
    data = open_data(on_local_disk(settings.data, engine))
    check_splits(data.images.splits)
    if folds:
        class_folds(data.images, folds)
    if settings.left_out is not None:
        part, count = settings.left_out
        without = class_folds(data.images, count)[part - 1]
        used = tuple(number for number in data.images.splits["train"] if number not in without)
        data = replace(data, images=SomeTrainingClasses(data.images, used))
    teacher = None if settings.teacher is None else Teacher.of(settings, data)
    torch.manual_seed(settings.seed)
    dtype = DTYPES[settings.machine.precision]
    backbone = build_backbone(settings.backbone.but(whitened=False), *data.input_shape)
    batches = ClassificationBatches(
        data.images,
        "train",
        data.training,
        settings.batch,
        settings.seed,
        rank=engine.rank,
        processes=engine.world,
        dtype=dtype,
    )
    # Before the folder is made: data that cannot serve these episodes leave nothing behind.
    validated = settings.validation.episode(settings.episode)
    sampler = episode_sampler(data, settings.validation.split, validated, 0, "validation")
    validate = lambda net: few_shot_accuracy(net, data, sampler, settings.validation.episodes, engine)
    inputs = {"data set": data.images.digest} | ({} if teacher is None else {"teacher": teacher.digest})
    with opened(folder, "pretrain", settings, inputs, engine, tensorboard, data.input_shape) as run:
        lesson = None if teacher is None else teacher.lesson(progress, engine)
        classes = len(data.images.splits["train"])
        model = Classifier(backbone, classes, settings.classifier, lesson).to(engine.device, dtype)
        pretrain(model, batches, validate, settings, run, engine, progress)
        if settings.backbone.whitened:
            _whiten_best(model, run, settings, data, validate, engine, progress)
    return RunFolder(folder)


def run_folds(
    settings: PretrainSettings, folder: Path, count: int, progress: Progress | None = None, *, tensorboard: bool = False
) -> list[RunFolder]:
    """Train ``count`` more backbones, each without one part of the training classes; they are kept with the run."""
    progress = progress or Silent()
    found = []
    for part in range(1, count + 1):
        progress.say(f"Fold {part} of {count}: a backbone without part {part} of the training classes.")
        place = folder / FOLDS / f"{part}-of-{count}"
        found.append(run_pretrain(settings.but(left_out=(part, count)), place, progress, tensorboard=tensorboard))
    return found


def _whiten_best(
    model: Classifier,
    run: RunFolder,
    settings: PretrainSettings,
    data: OpenData,
    validate: Validation,
    engine: Engine,
    progress: Progress,
) -> None:
    """After the last epoch: features of the best weights are whitened by all training images, unless they are."""
    checkpoints = Checkpoints(run.path)
    if any(name.startswith(WHITENED) for name in checkpoints.weights("best")):
        return
    checkpoints.load_weights(model, "best")
    whitened = WhitenedBackbone(model.backbone)
    sampler = episode_sampler(data, "train", settings.episode, settings.seed, "training")
    table = feature_tasks(data, sampler, whitened, progress, torch.float64, engine, keep=False)
    whitened.put(whitening_of(table.features))
    model.backbone = whitened
    if engine.leads:
        checkpoints.put_best(model)
    engine.wait()
    progress.say(f"With whitened features the validation accuracy is {validate(whitened)[0]:.2f} %.")


def few_shot_accuracy(
    backbone: Backbone, data: OpenData, sampler: EpisodeSampler, episodes: int, engine: Engine
) -> tuple[float, float]:
    """Nearest class mean on fixed validation episodes: what the best checkpoint is chosen by."""
    # Weights change at every validation, so these features are not worth keeping.
    tasks = feature_tasks(data, sampler, backbone, Silent(), torch.float32, engine, keep=False)
    learner = DirectLearner(NearestMean(ReadyFeatures(backbone.feature_size)))
    summary = evaluate(learner, tasks, episodes, engine=engine).summary()
    return summary["accuracy"], summary["ci"]
