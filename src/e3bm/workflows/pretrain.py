"""`e3bm pretrain`: settings in, run folder out."""

from collections.abc import Callable
from pathlib import Path

import torch

from e3bm.assembly import DTYPES, build_backbone
from e3bm.backbones import Backbone, LevelledBackbone, level_of
from e3bm.data.classification import ClassificationBatches
from e3bm.data.sampler import EpisodeSampler
from e3bm.engine import Engine
from e3bm.evaluation.evaluate import evaluate
from e3bm.evaluation.protocol import check_selection, check_splits
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.settings import PretrainSettings
from e3bm.tracking.checkpoint import Checkpoints
from e3bm.tracking.progress import Progress, Silent
from e3bm.tracking.run_folder import RunFolder
from e3bm.training.pretrain import Classifier, pretrain
from e3bm.workflows.start import opened
from e3bm.workflows.tasks import OpenData, episode_sampler, feature_tasks, open_data

LEVELLED = "backbone.trunk."
Validation = Callable[[Backbone], tuple[float, float]]


def run_pretrain(
    settings: PretrainSettings, folder: Path, progress: Progress | None = None, *, tensorboard: bool = False
) -> RunFolder:
    """Train a backbone on the meta-training classes; resumes when the folder holds the same run unfinished."""
    progress = progress or Silent()
    check_selection(settings.validation.split)
    engine = Engine.start(settings.machine)
    data = open_data(settings.data)
    check_splits(data.images.splits)
    torch.manual_seed(settings.seed)
    dtype = DTYPES[settings.machine.precision]
    backbone = build_backbone(settings.backbone.but(levelled=False), *data.input_shape)
    model = Classifier(backbone, len(data.images.splits["train"]), settings.classifier).to(engine.device, dtype)
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
    sampler = episode_sampler(data, settings.validation.split, settings.episode, 0, "validation")
    validate = lambda net: few_shot_accuracy(net, data, sampler, settings.validation.episodes, engine)
    inputs = {"data set": data.images.digest}
    with opened(folder, "pretrain", settings, inputs, engine, tensorboard) as run:
        pretrain(model, batches, validate, settings, run, engine, progress)
        if settings.backbone.levelled:
            _level_best(model, run, settings, data, validate, engine, progress)
    return RunFolder(folder)


def _level_best(
    model: Classifier,
    run: RunFolder,
    settings: PretrainSettings,
    data: OpenData,
    validate: Validation,
    engine: Engine,
    progress: Progress,
) -> None:
    """After the last epoch: features of the best weights are levelled by all training images, unless they are."""
    checkpoints = Checkpoints(run.path)
    if any(name.startswith(LEVELLED) for name in checkpoints.weights("best")):
        return
    checkpoints.load_weights(model, "best")
    levelled = LevelledBackbone(model.backbone)
    sampler = episode_sampler(data, "train", settings.episode, settings.seed, "training")
    table = feature_tasks(data, sampler, levelled, progress, torch.float64, engine, keep=False)
    levelled.put(level_of(table.features))
    model.backbone = levelled
    if engine.leads:
        checkpoints.put_best(model)
    engine.wait()
    progress.say(f"With levelled features the validation accuracy is {validate(levelled)[0]:.2f} %.")


def few_shot_accuracy(
    backbone: Backbone, data: OpenData, sampler: EpisodeSampler, episodes: int, engine: Engine
) -> tuple[float, float]:
    """Nearest class mean on fixed validation episodes: what the best checkpoint is chosen by."""
    # Weights change at every validation, so these features are not worth keeping.
    tasks = feature_tasks(data, sampler, backbone, Silent(), torch.float32, engine, keep=False)
    learner = NearestMean(ReadyFeatures(backbone.feature_size))
    summary = evaluate(learner, tasks, episodes, engine=engine).summary()
    return summary["accuracy"], summary["ci"]
