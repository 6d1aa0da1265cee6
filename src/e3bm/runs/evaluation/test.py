"""`e3bm test`: run folders in, one row of honest numbers each out, all on the same episodes."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from e3bm.backbones import Backbone
from e3bm.core.learner import DirectLearner, Learner
from e3bm.data.episodes.sampler import EpisodeSampler, episodes_hash
from e3bm.errors import SettingsError
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.progress import Progress, Silent, stage
from e3bm.runs.assembly import DTYPES, build_backbone, build_learner, load_backbone, ready_encoder
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.comparison import NOT_PAIRED, Row, Tested, aggregate, baseline_group_of, group_of, pair
from e3bm.runs.evaluation.ensemble import AveragedLearners, EnsembleSettings, beside, settings_beside
from e3bm.runs.evaluation.evaluate import TaskSource, evaluate
from e3bm.runs.evaluation.protocol import check_episodes, check_row, check_splits, seen_classes
from e3bm.runs.folder.answers import keep_answers
from e3bm.runs.folder.checkpoint import Checkpoints, Which
from e3bm.runs.folder.environment import commit
from e3bm.runs.folder.files import in_turn
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import (
    DataSettings,
    EpisodeSettings,
    MachineSettings,
    PretrainSettings,
    TestSettings,
    TrainSettings,
)
from e3bm.runs.tasks import OpenData, episode_sampler, feature_tasks, image_tasks, open_data
from e3bm.runs.training.train import run_inputs
from e3bm.settings import read_settings

__all__ = ["Row", "run_test"]


def run_test(runs: list[Path], settings: TestSettings, progress: Progress | None = None) -> list[Row]:
    """Test every run on the same episodes; rows carry paired differences, and one more row per group of seeds."""
    progress = progress or Silent()
    if not runs:
        raise SettingsError("Name at least one run folder to test.")
    tested = [_test_one(RunFolder(path), settings, progress) for path in runs]
    pair(tested)
    rows = [result.row for result in tested] + aggregate(tested)
    for row in rows:
        check_row(row)
    if Engine.is_leader():
        for path, result in zip(runs, tested, strict=True):
            with in_turn(path / "config.json"):  # another test of the same run may end at this moment
                RunFolder(path).add_result(result.row)
                keep_answers(path, result.row, _right_answers(result))
    return rows


@dataclass(frozen=True)
class Subject:
    """A trained model, the tasks it is asked, and the labels of its result."""

    learner: Learner
    tasks: TaskSource
    exam: "Exam"
    labels: Row
    seed: int
    group: str
    baseline: str
    epochs: int | None = None


@dataclass(frozen=True)
class Exam:
    """A fixed list of episodes."""

    data: OpenData
    episode: EpisodeSettings
    sampler: EpisodeSampler
    digest: str
    seen: int


def _test_one(run: RunFolder, settings: TestSettings, progress: Progress) -> Tested:
    config = run.config()
    if config["kind"] == "pretrain":
        pretrain = read_settings(PretrainSettings, config["settings"])
        engine = Engine.start(_machine(pretrain.machine, settings))
        return _examine(run, _pretrained(run, pretrain, settings, progress, engine), settings, progress, engine)
    if config["kind"] == "ensemble":
        ensemble = read_settings(EnsembleSettings, config["settings"])
        engine = Engine.start(_machine(MachineSettings(), settings))
        return _examine(run, _averaged(run, ensemble, settings, progress, engine), settings, progress, engine)
    train = settings_beside(run)
    engine = Engine.start(_machine(train.machine, settings))
    return _examine(run, _meta_trained(run, train, settings, progress, engine), settings, progress, engine)


def _machine(trained: MachineSettings, settings: TestSettings) -> MachineSettings:
    """As in training, unless the test says otherwise."""
    return trained.but(device=settings.device or trained.device, threads=settings.threads or trained.threads)


def _meta_trained(
    run: RunFolder, train: TrainSettings, settings: TestSettings, progress: Progress, engine: Engine
) -> Subject:
    trained_on = open_data(train.data)
    backbone = build_backbone(train.backbone, *trained_on.input_shape)
    run.check_inputs(run_inputs(train, trained_on, backbone))  # a trained backbone is about to get other weights
    size = trained_on.input_shape[1]
    learner = build_learner(train, backbone, classes=trained_on.classes, image_size=size).to(engine.device)
    Checkpoints(run.path).load_weights(learner, _checkpoint(run))
    exam = _open_exam(run, trained_on, train.data, train.episode, settings, engine)
    dtype = DTYPES[train.machine.precision]
    hyperprior, batchnorm, learned = train.hyperprior, train.backbone.batchnorm, _size(learner)
    fixed = train.backbone.adapt == "scale_shift" and batchnorm in ("running", "batch_then_running")
    if fixed:
        # With running statistics an image has the same features in every episode, so they are computed once.
        encoder = learner.get_submodule("method.encoder.backbone")
        assert isinstance(encoder, Backbone)
        backbone = encoder.to(DTYPES[train.machine.precision])
        learner.set_submodule("method.encoder", ready_encoder(train, backbone, size))
    tasks: TaskSource = (
        feature_tasks(exam.data, exam.sampler, backbone, progress, dtype, engine, needs=train.method.needs)
        if fixed or train.backbone.adapt == "frozen"
        else image_tasks(exam.data, exam.sampler, augment=False, dtype=dtype)
    )
    sees_queries = train.method.transductive or (hyperprior.generated and hyperprior.setting == "transductive")
    inner = train.inner
    labels = {
        "method": train.title,
        "setting": "transductive" if sees_queries else "inductive",
        "hyperprior": f"{hyperprior.generator} {hyperprior.setting}" if hyperprior.generated else "none",
        "schedules": "none" if inner is None else f"alpha {hyperprior.rate}, v {hyperprior.weight}",
        "batchnorm": "running" if batchnorm == "batch_then_running" else batchnorm,
        "transductive_batchnorm": batchnorm == "batch",
        "order": "none" if inner is None else inner.order,
        "epochs": 0 if inner is None else inner.test_epochs or inner.epochs,
        "backbone": train.backbone.title,
        "trained_on": train.data.dataset,
        # A frozen backbone stands beside the learner, not inside it.
        "parameters": learned + (_size(backbone) if train.backbone.adapt == "frozen" else 0),
    }
    groups = group_of(train), baseline_group_of(train)
    return Subject(learner, tasks, exam, labels, train.seed, *groups, epochs=train.test_epochs)


def _averaged(
    run: RunFolder, ensemble: EnsembleSettings, settings: TestSettings, progress: Progress, engine: Engine
) -> Subject:
    """Independent models with the mean of their probabilities; all must take the same images."""
    members = [RunFolder(beside(run.path, path)) for path in ensemble.members]
    trained = [settings_beside(member) for member in members]
    if any(train.backbone.adapt == "frozen" or group_of(train) != group_of(trained[0]) for train in trained):
        raise SettingsError("An ensemble is of runs that differ in their seed only and that take images, not features.")
    subjects = [
        _meta_trained(member, train, settings, progress, engine) for member, train in zip(members, trained, strict=True)
    ]
    first, count = subjects[0], len(subjects)
    labels = first.labels | {"method": f"{count}x {first.labels['method']}"}
    labels["parameters"] = sum(subject.labels["parameters"] for subject in subjects)
    learner = AveragedLearners([subject.learner for subject in subjects])
    group = f"{count}x {first.group}"
    return Subject(learner, first.tasks, first.exam, labels, first.seed, group, first.group, epochs=first.epochs)


def _pretrained(
    run: RunFolder, pretrain: PretrainSettings, settings: TestSettings, progress: Progress, engine: Engine
) -> Subject:
    """A pre-trained backbone is tested by the nearest class mean."""
    trained_on = open_data(pretrain.data)
    backbone = build_backbone(pretrain.backbone, *trained_on.input_shape)
    load_backbone(backbone, run.path)
    exam = _open_exam(run, trained_on, pretrain.data, pretrain.episode, settings, engine)
    tasks = feature_tasks(exam.data, exam.sampler, backbone, progress, torch.float32, engine)
    labels = {
        "method": NearestMean.settings.title,
        "setting": "inductive",
        "hyperprior": "none",
        "schedules": "none",
        "batchnorm": "running",
        "transductive_batchnorm": False,
        "order": "none",
        "epochs": 0,
        "backbone": pretrain.backbone.title,
        "trained_on": pretrain.data.dataset,
        "parameters": _size(backbone),
    }
    group = group_of(pretrain)
    learner = DirectLearner(NearestMean(ReadyFeatures(backbone.feature_size)))
    return Subject(learner, tasks, exam, labels, pretrain.seed, group, group)


def _open_exam(
    run: RunFolder,
    trained_on: OpenData,
    trained: DataSettings,
    episode: EpisodeSettings,
    settings: TestSettings,
    engine: Engine,
) -> Exam:
    """The list of episodes and its hash; that the test split was opened is written down."""
    channels, size = trained_on.input_shape
    changed = trained.but(
        dataset=settings.dataset or trained.dataset,
        folder=settings.folder or trained.folder,
        recipe=settings.recipe or trained.recipe,
        image_size=size,
        augment=False,
        rotations=False,
    )
    data = open_data(changed, channels)
    wanted = {name: getattr(settings, name) for name in ("ways", "shots", "queries")}
    episode = episode.but(**{name: value for name, value in wanted.items() if value is not None})
    check_splits(data.images.splits)
    other = changed.dataset != trained.dataset
    seen = seen_classes(trained_on.images, data.images, settings.split, settings.allow_seen) if other else 0
    sampler = episode_sampler(data, settings.split, episode, settings.seed, "test")
    check_episodes(sampler, settings.episodes)
    digest = episodes_hash(sampler, settings.episodes)
    if settings.split == "test" and engine.leads:
        line = {"dataset": data.images.name, "episodes": settings.episodes, "episodes_hash": digest}
        run.append("test_log", {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **line})
    return Exam(data, episode, sampler, digest, seen)


def _examine(run: RunFolder, subject: Subject, settings: TestSettings, progress: Progress, engine: Engine) -> Tested:
    exam, learner = subject.exam, subject.learner
    with stage(progress, f"test {subject.labels['method']}", settings.episodes):
        found = evaluate(
            learner,
            subject.tasks,
            settings.episodes,
            batch=settings.batch,
            engine=engine,
            every_epoch=True,
            epochs=subject.epochs,
            advance=progress.advance,
        )
        progress.advance(settings.episodes, accuracy=float(found.accuracy.mean()))
    assert found.epoch_accuracy is not None
    row: Row = {
        **subject.labels,
        "dataset": exam.data.images.name,
        "split": settings.split,
        **found.summary(),
        "episodes": settings.episodes,
        "episodes_hash": exam.digest,
        "episodes_seed": settings.seed,
        "data_digest": exam.data.images.digest,
        "settings_digest": run.settings_digest(),
        **NOT_PAIRED,
        "ways": exam.episode.ways,
        "shots": exam.episode.shots,
        "queries": exam.episode.queries,
        "seen_classes": exam.seen,
        "seed": subject.seed,
        "seeds": None,
        "commit": commit(),
        "seconds": found.seconds,
        "train_seconds": _train_seconds(run),
        "epoch_accuracy": found.epoch_accuracy.tolist(),
        "reliability": found.reliability.as_json(),
        "rates": found.rates.tolist(),
        "weights": found.weights.tolist(),
        "run": run.path.resolve().name,
        "checkpoint": _checkpoint(run),
    }
    return Tested(row, found.accuracy, subject.group, subject.baseline)


def _checkpoint(run: RunFolder) -> Which:
    """The best on the validation classes; the last of a training that was stopped before its first validation."""
    checkpoints = Checkpoints(run.path)
    return "last" if checkpoints.has("last") and not checkpoints.has("best") else "best"


def _right_answers(result: Tested) -> list[int]:
    """Whole numbers: an accuracy is a share of the episode's queries."""
    queries = result.row["ways"] * result.row["queries"]
    return [round(share) for share in (result.accuracy * queries / 100).tolist()]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _train_seconds(run: RunFolder) -> float:
    """Seconds of all steps, from the mean of those logged."""
    lines = [line for line in run.lines("metrics") if line["split"] == "train"]
    if not lines:
        return 0.0
    mean = sum(line["seconds"] for line in lines) / len(lines)
    return float(mean * lines[-1]["step"])
