"""`e3bm pretrain`: settings in, run folder out."""

from pathlib import Path

import torch

from e3bm.assembly import DTYPES, build_backbone
from e3bm.backbones import Backbone
from e3bm.data.classification import ClassificationBatches
from e3bm.data.sampler import EpisodeSampler
from e3bm.engine import Engine
from e3bm.evaluation.evaluate import evaluate
from e3bm.evaluation.protocol import check_selection, check_splits
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.settings import PretrainSettings
from e3bm.tracking.progress import Progress, Silent
from e3bm.tracking.run_folder import RunFolder
from e3bm.training.pretrain import Classifier, pretrain
from e3bm.workflows.start import opened
from e3bm.workflows.tasks import OpenData, episode_sampler, feature_tasks, open_data


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
    backbone = build_backbone(settings.backbone, *data.input_shape)
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
    return RunFolder(folder)


def few_shot_accuracy(
    backbone: Backbone, data: OpenData, sampler: EpisodeSampler, episodes: int, engine: Engine
) -> tuple[float, float]:
    """Nearest class mean on fixed validation episodes: what the best checkpoint is chosen by."""
    # Weights change at every validation, so these features are not worth keeping.
    tasks = feature_tasks(data, sampler, backbone, Silent(), torch.float32, engine, keep=False)
    learner = NearestMean(ReadyFeatures(backbone.feature_size))
    summary = evaluate(learner, tasks, episodes, engine=engine).summary()
    return summary["accuracy"], summary["ci"]
