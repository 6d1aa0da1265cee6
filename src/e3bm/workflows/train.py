"""`e3bm train`: settings in, run folder out."""

from pathlib import Path

from e3bm.assembly import DTYPES, build_backbone, build_learner
from e3bm.backbones import Backbone
from e3bm.engine import Engine
from e3bm.evaluation.evaluate import TaskSource
from e3bm.settings import EpisodeSettings, TrainSettings
from e3bm.tracking.progress import Progress, Silent
from e3bm.tracking.run_folder import RunFolder
from e3bm.training.meta_train import meta_train
from e3bm.workflows.tasks import OpenData, episode_sampler, feature_tasks, image_tasks, open_data


def run_train(settings: TrainSettings, folder: Path, progress: Progress | None = None) -> RunFolder:
    """Meta-train; resumes when the folder holds the same run unfinished."""
    progress = progress or Silent()
    engine = Engine.start(settings.machine)
    run = RunFolder(folder)
    try:
        data = open_data(settings.data)
        backbone = build_backbone(settings.backbone, *data.input_shape)
        learner = build_learner(settings, backbone)
        if engine.leads:
            run.create("train", settings)
        engine.wait()
        build = lambda split, seed, stream: build_tasks(
            settings, data, backbone, split, settings.episode, seed, stream, progress, engine
        )
        tasks, validation = build("train", settings.seed, "training"), build("val", 0, "validation")
        meta_train(learner, tasks, validation, settings, run, engine, progress)
    finally:
        engine.stop()
    return run


def build_tasks(
    settings: TrainSettings,
    data: OpenData,
    backbone: Backbone,
    split: str,
    episode: EpisodeSettings,
    seed: int,
    stream: str,
    progress: Progress,
    engine: Engine,
) -> TaskSource:
    """Tasks in the form that the model takes: features where the backbone is frozen, images elsewhere."""
    sampler = episode_sampler(data, split, episode, seed, stream)
    dtype = DTYPES[settings.machine.precision]
    if settings.backbone.adapt != "frozen":
        return image_tasks(data, sampler, augment=settings.data.augment and split == "train", dtype=dtype)
    if not engine.leads:
        engine.wait()  # the leader fills the cache
    tasks = feature_tasks(data, sampler, backbone, progress, dtype)
    if engine.leads:
        engine.wait()
    return tasks
