"""`e3bm pretrain`: settings in, run folder out."""

from pathlib import Path

import torch

from e3bm.assembly import build_backbone
from e3bm.backbones import Backbone
from e3bm.data.classification import ClassificationBatches
from e3bm.engine import Engine
from e3bm.evaluation.evaluate import evaluate
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.settings import PretrainSettings
from e3bm.tracking.progress import Progress, Silent
from e3bm.tracking.run_folder import RunFolder
from e3bm.training.pretrain import Classifier, pretrain
from e3bm.workflows.tasks import OpenData, episode_sampler, feature_tasks, open_data

VALIDATION_STREAM = "validation"


def run_pretrain(settings: PretrainSettings, folder: Path, progress: Progress | None = None) -> RunFolder:
    """Train a backbone on the meta-training classes; resumes when the folder holds the same run unfinished."""
    progress = progress or Silent()
    engine = Engine.start(settings.machine)
    run = RunFolder(folder)
    try:
        data = open_data(settings.data)
        torch.manual_seed(settings.seed)
        backbone = build_backbone(settings.backbone, *data.input_shape)
        model = Classifier(backbone, len(data.images.splits["train"]), settings.classifier)
        batches = ClassificationBatches(
            data.images,
            "train",
            data.training,
            settings.batch,
            settings.seed,
            rank=engine.rank,
            processes=engine.world,
        )
        if engine.leads:
            run.create("pretrain", settings)
        engine.wait()
        pretrain(
            model, batches, lambda net: few_shot_accuracy(net, data, settings, engine), settings, run, engine, progress
        )
    finally:
        engine.stop()
    return run


def few_shot_accuracy(
    backbone: Backbone, data: OpenData, settings: PretrainSettings, engine: Engine
) -> tuple[float, float]:
    """Nearest class mean on fixed validation episodes: what the best checkpoint is chosen by."""
    sampler = episode_sampler(data, "val", settings.episode, 0, VALIDATION_STREAM)
    # Weights change at every validation, so these features are not worth keeping.
    tasks = feature_tasks(data, sampler, backbone, Silent(), torch.float32, keep=False)
    found = evaluate(
        NearestMean(ReadyFeatures(backbone.feature_size)), tasks, settings.validation.episodes, engine=engine
    )
    summary = found.summary()
    return summary["accuracy"], summary["ci"]
