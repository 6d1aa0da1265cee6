"""`e3bm test`: run folders in, one honest result each out, all on the same episodes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from e3bm.core.learner import DirectLearner, Learner
from e3bm.data.episodes.sampler import EpisodeSampler, episodes_hash
from e3bm.errors import CheckpointError, SettingsError
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.progress import Progress, Silent, stage
from e3bm.runs.assembly import DTYPES, build_backbone, build_learner, load_backbone, take_what_is_kept
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.calibration import fitted_factor
from e3bm.runs.evaluation.comparison import Measured, pair, seeds_together
from e3bm.runs.evaluation.ensemble import AveragedLearners
from e3bm.runs.evaluation.evaluate import Evaluation, TaskSource, evaluate
from e3bm.runs.evaluation.protocol import check_episodes, check_splits, seen_classes
from e3bm.runs.folder.answers import keep_result
from e3bm.runs.folder.checkpoint import Checkpoints, Which
from e3bm.runs.folder.environment import commit, is_leader
from e3bm.runs.folder.files import in_turn
from e3bm.runs.folder.relatives import with_relatives
from e3bm.runs.folder.run import EnsembleSettings, Run, beside, read_run
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.result import Result
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


def run_test(
    runs: Sequence[Path],
    settings: TestSettings,
    progress: Progress | None = None,
    *,
    places: Sequence[Path] = (),
) -> list[Result]:
    """Test every run on the same episodes; results carry paired differences, and there is one more per several seeds.

    Backbones that runs were trained with are looked for where they were, next to the run, and in ``places``.
    """
    progress = progress or Silent()
    if not runs:
        raise SettingsError("Name at least one run folder to test.")
    tested = pair([_test_one(read_run(path), settings, progress, places) for path in runs])
    if is_leader():
        for path, each in zip(runs, tested, strict=True):
            with in_turn(path / "config.json"):  # another test of the same run may end at this moment
                keep_result(path, each.result, _right_answers(each))
    return [each.result for each in tested] + seeds_together(tested)


@dataclass(frozen=True)
class Labels:
    """What is said of a model beside its numbers; the names are those of a result."""

    method: str
    setting: str
    hyperprior: str
    schedules: str
    batchnorm: str
    order: str
    epochs: int | None
    backbone: str
    trained_on: str
    parameters: int
    checkpoint: Which


@dataclass(frozen=True)
class Subject:
    """A trained model, the episodes it is asked, and the labels of its result."""

    learner: Learner
    tasks: TaskSource
    questions: "Questions"
    labels: Labels
    seed: int
    validation: Callable[[], TaskSource]
    """Tasks of the validation classes of the data that it was trained on, in the shape of the questions."""
    epochs: int | None = None
    """Another number of inner updates than in training."""


@dataclass(frozen=True)
class Questions:
    """A fixed list of episodes."""

    data: OpenData
    episode: EpisodeSettings
    sampler: EpisodeSampler
    digest: str
    seen: int


def _test_one(run: Run, settings: TestSettings, progress: Progress, places: Sequence[Path]) -> Measured:
    match run.settings:
        case PretrainSettings() as pretrain:
            engine = Engine.start(_machine(pretrain.machine, settings))
            subject = _pretrained(run, pretrain, settings, progress, engine)
        case EnsembleSettings() as ensemble:
            engine = Engine.start(_machine(MachineSettings(), settings))
            subject = _averaged(run, ensemble, settings, progress, engine, places)
        case TrainSettings():
            train = with_relatives(run, places)
            engine = Engine.start(_machine(train.machine, settings))
            subject = _meta_trained(run, train, settings, progress, engine)
        case None:
            raise CheckpointError(f"{run.path} holds a run of kind {run.kind}, which cannot be tested on episodes.")
    factor = None
    if settings.calibrate:
        factor = fitted_factor(
            subject.learner,
            subject.validation(),
            settings.calibrate,
            batch=settings.batch,
            engine=engine,
            epochs=subject.epochs,
        )
    with stage(progress, f"test {subject.labels.method}", settings.count):
        found = evaluate(
            subject.learner,
            subject.tasks,
            settings.count,
            batch=settings.batch,
            engine=engine,
            every_epoch=True,
            epochs=subject.epochs,
            factor=factor,
            advance=progress.advance,
        )
        progress.advance(settings.count, accuracy=float(found.accuracy.mean()))
    return Measured(_result(run, subject, settings, found), found.accuracy, found.metrics)


def _machine(trained: MachineSettings, settings: TestSettings) -> MachineSettings:
    """As in training, unless the test says otherwise."""
    return trained.but(device=settings.device or trained.device, threads=settings.threads or trained.threads)


def _meta_trained(
    run: Run, train: TrainSettings, settings: TestSettings, progress: Progress, engine: Engine
) -> Subject:
    trained_on = open_data(train.data)
    backbone = build_backbone(train.backbone, *trained_on.input_shape)
    RunFolder(run.path).check_inputs(
        run_inputs(train, trained_on, backbone)
    )  # a trained backbone is about to get other weights
    size = trained_on.input_shape[1]
    learner = build_learner(train, backbone, classes=trained_on.classes, image_size=size).to(engine.device)
    learner.check_ways(settings.ways or train.episode.ways)
    checkpoint = _checkpoint(run, settings, progress)
    Checkpoints(run.path).load_weights(learner, checkpoint)
    questions = _open_questions(run, trained_on, train.data, train.episode, settings, engine)
    dtype = DTYPES[train.machine.precision]
    hyperprior, batchnorm, learned = train.hyperprior, train.backbone.batchnorm, _size(learner)
    kept = backbone if train.backbone.adapt == "frozen" else take_what_is_kept(train, learner, size)

    def tasks(data: OpenData, sampler: EpisodeSampler) -> TaskSource:
        if kept is None:
            return image_tasks(data, sampler, augment=False, dtype=dtype)
        return feature_tasks(data, sampler, kept, progress, dtype, engine, needs=train.method.needs)

    sees_queries = train.method.transductive or (hyperprior.generated and hyperprior.setting == "transductive")
    inner = train.inner
    labels = Labels(
        method=train.title,
        setting="transductive" if sees_queries else "inductive",
        hyperprior=f"{hyperprior.generator} {hyperprior.setting}" if hyperprior.generated else "none",
        schedules="none" if inner is None else f"alpha {hyperprior.rate}, v {hyperprior.weight}",
        batchnorm="running" if batchnorm == "batch_then_running" else batchnorm,
        order="none" if inner is None else inner.order,
        epochs=0 if inner is None else inner.test_epochs or inner.epochs,
        backbone=train.backbone.title,
        trained_on=train.data.dataset,
        # A frozen backbone stands beside the learner, not inside it.
        parameters=learned + (_size(backbone) if train.backbone.adapt == "frozen" else 0),
        checkpoint=checkpoint,
    )
    return Subject(
        learner,
        tasks(questions.data, questions.sampler),
        questions,
        labels,
        train.seed,
        validation=lambda: tasks(trained_on, _validation_episodes(trained_on, questions)),
        epochs=train.test_epochs,
    )


def _averaged(
    run: Run,
    ensemble: EnsembleSettings,
    settings: TestSettings,
    progress: Progress,
    engine: Engine,
    places: Sequence[Path],
) -> Subject:
    """Independent models with the mean of their probabilities; all must take the same images."""
    members = [read_run(beside(run.path, path)) for path in ensemble.members]
    trained = [with_relatives(member, places) for member in members]
    frozen = any(train.backbone.adapt == "frozen" for train in trained)
    if frozen or any(member.system != members[0].system for member in members):
        raise SettingsError("The runs of an ensemble must differ in their seed only, and take images, not features.")
    subjects = [
        _meta_trained(member, train, settings, progress, engine) for member, train in zip(members, trained, strict=True)
    ]
    first = subjects[0]
    _note_use(run, first.questions, settings, engine)
    labels = replace(
        first.labels,
        method=f"{len(subjects)}x {first.labels.method}",
        parameters=sum(subject.labels.parameters for subject in subjects),
    )
    return replace(first, learner=AveragedLearners([subject.learner for subject in subjects]), labels=labels)


def _pretrained(
    run: Run, pretrain: PretrainSettings, settings: TestSettings, progress: Progress, engine: Engine
) -> Subject:
    """A pre-trained backbone is tested by the nearest class mean."""
    trained_on = open_data(pretrain.data)
    backbone = build_backbone(pretrain.backbone, *trained_on.input_shape)
    checkpoint = _checkpoint(run, settings, progress)
    load_backbone(backbone, run.path, checkpoint)
    questions = _open_questions(run, trained_on, pretrain.data, pretrain.episode, settings, engine)
    tasks = feature_tasks(questions.data, questions.sampler, backbone, progress, torch.float32, engine)
    labels = Labels(
        method=NearestMean.settings.title,
        setting="inductive",
        hyperprior="none",
        schedules="none",
        batchnorm="running",
        order="none",
        epochs=0,
        backbone=pretrain.backbone.title,
        trained_on=pretrain.data.dataset,
        parameters=_size(backbone),
        checkpoint=checkpoint,
    )
    learner = DirectLearner(NearestMean(ReadyFeatures(backbone.feature_size)))

    def validation() -> TaskSource:
        sampler = _validation_episodes(trained_on, questions)
        return feature_tasks(trained_on, sampler, backbone, progress, torch.float32, engine)

    return Subject(learner, tasks, questions, labels, pretrain.seed, validation)


def _validation_episodes(data: OpenData, questions: Questions) -> EpisodeSampler:
    """Episodes in the shape of the questions, of the validation classes of the data that a run was trained on."""
    return episode_sampler(data, "val", questions.episode, 0, "calibration")


def _open_questions(
    run: Run,
    trained_on: OpenData,
    trained: DataSettings,
    episode: EpisodeSettings,
    settings: TestSettings,
    engine: Engine,
) -> Questions:
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
    sampler = episode_sampler(data, settings.split, episode, settings.seed, "test", query_shares=settings.query_shares)
    check_episodes(sampler, settings.count)
    digest = episodes_hash(sampler, settings.count)
    questions = Questions(data, episode, sampler, digest, seen)
    _note_use(run, questions, settings, engine)
    return questions


def _note_use(run: Run, questions: Questions, settings: TestSettings, engine: Engine) -> None:
    """Write down that the test split was opened for a run."""
    if settings.split == "test" and engine.leads:
        asked = {"dataset": questions.data.images.name, "episodes": settings.count, "episodes_hash": questions.digest}
        RunFolder(run.path).append("test_log", {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **asked})


def _result(run: Run, subject: Subject, settings: TestSettings, found: Evaluation) -> Result:
    questions, numbers = subject.questions, found.summary()
    curve = lambda values: () if values is None else tuple(values.tolist())
    return Result(
        **vars(subject.labels),
        transductive_batchnorm=subject.labels.batchnorm == "batch",
        dataset=questions.data.images.name,
        split=settings.split,
        accuracy=numbers.pop("accuracy"),
        ci=numbers.pop("ci"),
        ece=numbers.pop("ece"),
        metrics=numbers,
        episodes=settings.count,
        episodes_hash=questions.digest,
        episodes_seed=settings.seed,
        data_digest=questions.data.images.digest,
        settings_digest=run.settings_digest,
        ways=questions.episode.ways,
        shots=questions.episode.shots,
        queries=questions.episode.queries,
        query_shares=settings.query_shares,
        seen_classes=questions.seen,
        seed=subject.seed,
        commit=commit(),
        seconds=found.seconds,
        train_seconds=_train_seconds(run),
        epoch_accuracy=curve(found.epoch_accuracy),
        reliability=found.reliability.bins(),
        rates=curve(found.rates),
        weights=curve(found.weights),
        run=run.name,
        system=run.system,
        baseline=run.baseline,
    )


def _checkpoint(run: Run, settings: TestSettings, progress: Progress) -> Which:
    """Which weights are tested; it is said, with their step."""
    checkpoints = Checkpoints(run.path)
    which: Which = "last" if settings.checkpoint == "last" else checkpoints.tested()
    progress.say(f"{run.name}: weights of its {which} checkpoint, step {checkpoints.pointer(which).step}")
    return which


def _right_answers(tested: Measured) -> list[int]:
    """Whole numbers: an accuracy is a share of the episode's queries."""
    assert tested.accuracy is not None
    queries = tested.result.ways * tested.result.queries
    return [round(share) for share in (tested.accuracy * queries / 100).tolist()]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _train_seconds(run: Run) -> float:
    """Seconds of all steps, from the mean of those logged; an ensemble has those of its members."""
    if isinstance(run.settings, EnsembleSettings):
        return sum(_train_seconds(read_run(beside(run.path, member))) for member in run.settings.members)
    timed = run.curve("train", "seconds")
    return float(sum(seconds for _, seconds in timed) / len(timed) * timed[-1][0]) if timed else 0.0
