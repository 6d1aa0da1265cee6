"""`e3bm train`: settings in, run folder out."""

from pathlib import Path

import torch

from e3bm.backbones import Backbone
from e3bm.core.learner import Learner, MetaLearner
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.errors import SettingsError
from e3bm.progress import Progress, Silent
from e3bm.runs.assembly import DTYPES, build_backbone, build_learner, weights_digest
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import TaskSource
from e3bm.runs.evaluation.protocol import check_selection, check_splits
from e3bm.runs.folder.checkpoint import Checkpoints, misfit
from e3bm.runs.folder.run_folder import RunFolder, opened
from e3bm.runs.local_copy import on_local_disk
from e3bm.runs.settings import TrainSettings
from e3bm.runs.tasks import OpenData, episode_sampler, feature_tasks, image_tasks, open_data
from e3bm.runs.training.cross_fitting import CrossFitted, check_free_of_coordinates
from e3bm.runs.training.meta_train import meta_train


def run_train(
    settings: TrainSettings, folder: Path, progress: Progress | None = None, *, tensorboard: bool = False
) -> RunFolder:
    """Meta-train; resumes when the folder holds the same run unfinished."""
    progress = progress or Silent()
    check_selection(settings.validation.split)
    engine = Engine.start(settings.machine)
    data = open_data(on_local_disk(settings.data, engine))
    check_splits(data.images.splits)
    torch.manual_seed(settings.seed)
    backbone = build_backbone(settings.backbone, *data.input_shape)
    inputs = run_inputs(settings, data, backbone)  # before a learner may take the backbone into another precision
    learner = build_learner(settings, backbone, classes=data.classes, image_size=data.input_shape[1]).to(engine.device)
    if settings.hyperprior.start_from is not None:
        inputs["hyperprior"] = take_hyperprior(learner, settings.hyperprior.start_from)
    # Before the folder is made: data that cannot serve these episodes leave nothing behind.
    trained = [parameter for parameter in learner.parameters() if parameter.requires_grad]
    fitted = CrossFitted.of(settings, data) if settings.tasks == "cross-fitted" else None
    if fitted is None:
        shares = settings.query_shares
        training = episode_sampler(data, "train", settings.episode, settings.seed, "training", query_shares=shares)
    else:
        check_free_of_coordinates(settings, fitted.folds, trained)
        inputs |= fitted.inputs(settings)
    validated = settings.validation.episode(settings.episode)
    learner.check_ways(validated.ways)
    validating = episode_sampler(data, settings.validation.split, validated, 0, "validation")
    with opened(folder, "train", settings, inputs, engine, tensorboard, data.input_shape) as run:
        validation = build_tasks(settings, data, backbone, validating, progress, engine)
        tasks = validation  # where nothing is trained, features of the training classes need not be computed
        if trained and fitted is not None:
            tasks = fitted.tasks(settings, data, progress, engine)
        elif trained:
            tasks = build_tasks(settings, data, backbone, training, progress, engine, augment=settings.data.augment)
        meta_train(learner, tasks, validation, settings, run, engine, progress)
    return RunFolder(folder)


def run_inputs(settings: TrainSettings, data: OpenData, backbone: Backbone) -> dict[str, str]:
    """Digests of what a run reads under a name: its data set and, where it was trained elsewhere, its backbone."""
    found = {"data set": data.images.digest}
    if settings.backbone.pretrained is not None:
        found["pre-trained backbone"] = weights_digest(backbone)
    return found


def take_hyperprior(learner: Learner, source: Path) -> str:
    """Put alpha', v' and Psi of another run into a learner, and give the digest of their weights."""
    assert isinstance(learner, MetaLearner)
    if not Checkpoints(source).has("best"):
        raise SettingsError(f"hyperprior.start_from: {source} holds no trained run; train its hyperprior first.")
    inside = "hyperprior."
    weights = Checkpoints(source).weights("best")
    found = {name.removeprefix(inside): value for name, value in weights.items() if name.startswith(inside)}
    try:
        learner.hyperprior.load_state_dict(found)
    except RuntimeError as error:
        raise SettingsError(
            f"hyperprior.start_from: the hyperprior of {source} is of another form than this one: {misfit(error)}"
        ) from None
    return weights_digest(learner.hyperprior)


def build_tasks(
    settings: TrainSettings,
    data: OpenData,
    backbone: Backbone,
    sampler: EpisodeSampler,
    progress: Progress,
    engine: Engine,
    *,
    augment: bool = False,
) -> TaskSource:
    """Tasks in the form that the model takes: features where the backbone is frozen, images elsewhere."""
    dtype = DTYPES[settings.machine.precision]
    if settings.backbone.adapt == "frozen":
        return feature_tasks(data, sampler, backbone, progress, dtype, engine, needs=settings.method.needs)
    return image_tasks(data, sampler, augment=augment, dtype=dtype)
