"""`e3bm test`: run folders in, one row of honest numbers each out, all on the same episodes."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from e3bm.assembly import DTYPES, build_backbone, build_learner, load_backbone
from e3bm.data.sampler import EpisodeSampler, episodes_hash
from e3bm.engine import Engine
from e3bm.errors import SettingsError
from e3bm.evaluation.evaluate import Evaluation, TaskSource, evaluate
from e3bm.evaluation.metrics import mean_and_interval, paired_difference
from e3bm.evaluation.protocol import check_episode, check_row, check_splits
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.settings import EpisodeSettings, PretrainSettings, TestSettings, TrainSettings, read_settings
from e3bm.tracking.checkpoint import Checkpoints
from e3bm.tracking.environment import commit
from e3bm.tracking.progress import Progress, Silent
from e3bm.tracking.run_folder import RunFolder
from e3bm.workflows.tasks import OpenData, episode_sampler, feature_tasks, image_tasks, open_data

Row = dict[str, Any]


@dataclass(frozen=True)
class Tested:
    """A model's row and its accuracy on every episode."""

    row: Row
    accuracy: Tensor
    group: str  # runs that differ only in their seed are one group
    baseline: str  # the group that this one is compared with, if it was tested too


def run_test(runs: list[Path], settings: TestSettings, progress: Progress | None = None) -> list[Row]:
    """Test every run on the same episodes; rows carry paired differences, and one more row per group of seeds."""
    progress = progress or Silent()
    if not runs:
        raise SettingsError("Name at least one run folder to test.")
    tested = [_test_one(RunFolder(path), settings, progress) for path in runs]
    _pair(tested)
    for path, result in zip(runs, tested, strict=True):
        check_row(result.row)
        if Engine.is_leader():
            RunFolder(path).add_result(result.row)
    return [result.row for result in tested] + _aggregate(tested)


def _test_one(run: RunFolder, settings: TestSettings, progress: Progress) -> Tested:
    config = run.config()
    if config["kind"] == "pretrain":
        return _test_features(run, read_settings(PretrainSettings, config["settings"]), settings, progress)
    train = read_settings(TrainSettings, config["settings"])
    engine = Engine.start(train.machine)
    trained_on = open_data(train.data)
    channels, size = trained_on.input_shape
    data = _test_data(train.data, settings, channels, size)
    episode = _test_episode(train.episode, settings)
    backbone = build_backbone(train.backbone, channels, size)
    learner = build_learner(train, backbone)
    Checkpoints(run.path).load_weights(learner, "best")
    sampler, digest = _open_split(run, data, settings, episode, engine)
    dtype = DTYPES[train.machine.precision]
    tasks: TaskSource = (
        feature_tasks(data, sampler, backbone, progress, dtype)
        if train.backbone.adapt == "frozen"
        else image_tasks(data, sampler, augment=False, dtype=dtype)
    )
    found = _evaluate(learner, tasks, settings, engine, progress, train.title, train.method.test_epochs)
    batchnorm = train.backbone.batchnorm
    hyperprior = train.hyperprior
    sees_queries = train.method.name == "sib" or (hyperprior.generated and hyperprior.setting == "transductive")
    labels = {
        "method": train.title,
        "setting": "transductive" if sees_queries else "inductive",
        "hyperprior": f"{hyperprior.generator} {hyperprior.setting}" if hyperprior.generated else "none",
        "schedules": f"alpha {hyperprior.rate}, v {hyperprior.weight}",
        "batchnorm": "running" if batchnorm == "batch_then_running" else batchnorm,
        "transductive_batchnorm": batchnorm == "batch",
        "order": train.method.order,
        "epochs": train.method.test_epochs or train.method.epochs,
        "backbone": f"{train.backbone.name} x{train.backbone.width:g}",
        "trained_on": train.data.dataset,
        "train_seconds": _train_seconds(run),
    }
    plain = train.but(hyperprior=type(hyperprior)(), name="")
    return _finish(
        run, found, data, settings, episode, digest, labels, learner, train.seed, _group(train), _group(plain)
    )


def _test_features(run: RunFolder, pretrain: PretrainSettings, settings: TestSettings, progress: Progress) -> Tested:
    """A pre-trained backbone is tested by the nearest class mean."""
    engine = Engine.start(pretrain.machine)
    channels, size = open_data(pretrain.data).input_shape
    data = _test_data(pretrain.data, settings, channels, size)
    episode = _test_episode(pretrain.episode, settings)
    backbone = build_backbone(pretrain.backbone, channels, size)
    load_backbone(backbone, run.path)
    sampler, digest = _open_split(run, data, settings, episode, engine)
    tasks = feature_tasks(data, sampler, backbone, progress, torch.float32)
    learner = NearestMean(ReadyFeatures(backbone.feature_size))
    found = _evaluate(learner, tasks, settings, engine, progress, "nearest class mean", None)
    labels = {
        "method": "nearest class mean",
        "setting": "inductive",
        "hyperprior": "none",
        "schedules": "none",
        "batchnorm": "running",
        "transductive_batchnorm": False,
        "order": "none",
        "epochs": 0,
        "backbone": f"{pretrain.backbone.name} x{pretrain.backbone.width:g}",
        "trained_on": pretrain.data.dataset,
        "train_seconds": _train_seconds(run),
    }
    group = pretrain.but(seed=0).digest()
    return _finish(run, found, data, settings, episode, digest, labels, learner, pretrain.seed, group, group)


def _test_data(trained: Any, settings: TestSettings, channels: int, size: int) -> OpenData:
    changed = trained.but(
        dataset=settings.dataset or trained.dataset,
        folder=settings.folder or trained.folder,
        recipe=settings.recipe or trained.recipe,
        image_size=size,
        augment=False,
        rotations=False,
    )
    return open_data(changed, channels)


def _test_episode(trained: EpisodeSettings, settings: TestSettings) -> EpisodeSettings:
    wanted = {name: getattr(settings, name) for name in ("ways", "shots", "queries")}
    return trained.but(**{name: value for name, value in wanted.items() if value is not None})


def _open_split(
    run: RunFolder, data: OpenData, settings: TestSettings, episode: EpisodeSettings, engine: Engine
) -> tuple[EpisodeSampler, str]:
    """The list of episodes and its hash; that the test split was opened is written down."""
    check_splits(data.images.splits)
    sampler = episode_sampler(data, settings.split, episode, settings.seed, "test")
    for number, found in enumerate(sampler.batch(range(min(settings.episodes, 50)))):
        check_episode(found, number)
    digest = episodes_hash(sampler, settings.episodes)
    if settings.split == "test" and engine.leads:
        line = {"dataset": data.images.name, "episodes": settings.episodes, "episodes_hash": digest}
        run.append("test_log", {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **line})
    return sampler, digest


def _evaluate(
    learner: nn.Module,
    tasks: TaskSource,
    settings: TestSettings,
    engine: Engine,
    progress: Progress,
    title: str,
    epochs: int | None,
) -> Evaluation:
    progress.begin(f"test {title}", settings.episodes)
    found = evaluate(
        learner,
        tasks,
        settings.episodes,
        batch=settings.batch,
        engine=engine,
        every_epoch=True,
        epochs=epochs,
        advance=progress.advance,
    )
    progress.advance(settings.episodes, accuracy=float(found.accuracy.mean()))
    progress.end()
    return found


def _finish(
    run: RunFolder,
    found: Evaluation,
    data: OpenData,
    settings: TestSettings,
    episode: EpisodeSettings,
    digest: str,
    labels: Row,
    learner: nn.Module,
    seed: int,
    group: str,
    baseline: str,
) -> Tested:
    assert found.epoch_accuracy is not None
    row: Row = {
        **labels,
        "dataset": data.images.name,
        "split": settings.split,
        **found.summary(),
        "episodes": settings.episodes,
        "episodes_hash": digest,
        "paired_with": None,
        "paired_difference": None,
        "paired_ci": None,
        "ways": episode.ways,
        "shots": episode.shots,
        "queries": episode.queries,
        "seed": seed,
        "commit": commit(),
        "seconds": found.seconds,
        "parameters": sum(parameter.numel() for parameter in learner.parameters() if parameter.requires_grad),
        "epoch_accuracy": found.epoch_accuracy.tolist(),
        "reliability": found.reliability.as_json(),
        "rates": found.rates.tolist(),
        "weights": found.weights.tolist(),
        "run": run.path.name,
        "checkpoint": "best",
    }
    return Tested(row, found.accuracy, group, baseline)


def _pair(tested: list[Tested]) -> None:
    """Compare each model with its own plain method, or else with the first model, on the same episodes."""
    for result in tested:
        alike = [other for other in tested if other is not result and _same_episodes(other, result)]
        seed = result.row["seed"]
        plain = [other for other in alike if other.group == result.baseline != result.group]
        with_seed = [other for other in plain if other.row["seed"] == seed]
        partner = next(iter(with_seed or plain or [other for other in alike if other is tested[0]]), None)
        if partner is None:
            continue
        difference, interval = paired_difference(result.accuracy, partner.accuracy)
        name = f"{partner.row['method']} ({partner.row['run']})"
        result.row.update(paired_with=name, paired_difference=difference, paired_ci=interval)


def _same_episodes(one: Tested, other: Tested) -> bool:
    return bool(one.row["episodes_hash"] == other.row["episodes_hash"])


def _aggregate(tested: list[Tested]) -> list[Row]:
    """One row per group of seeds: accuracies are averaged over seeds episode by episode, then compared."""
    groups: dict[str, list[Tested]] = {}
    for result in tested:
        groups.setdefault(result.group, []).append(result)
    rows = []
    for members in groups.values():
        if len(members) < 2 or not all(_same_episodes(member, members[0]) for member in members):
            continue
        mean = torch.stack([member.accuracy for member in members]).mean(0)
        accuracy, interval = mean_and_interval(mean)
        row: Row = {key: value for key, value in members[0].row.items() if key not in ("run", "seed")}
        average = lambda key, members=members: sum(member.row[key] for member in members) / len(members)
        row |= {"accuracy": accuracy, "ci": interval, "nll": average("nll"), "ece": average("ece")}
        row |= {"seeds": [member.row["seed"] for member in members], "seed": "mean"}
        row["seed_std"] = float(torch.tensor([member.row["accuracy"] for member in members]).std(correction=1))
        row |= {"paired_with": None, "paired_difference": None, "paired_ci": None}
        others = groups.get(members[0].baseline, [])
        if others and others is not members:
            other = torch.stack([member.accuracy for member in others]).mean(0)
            difference, spread = paired_difference(mean, other)
            row |= {"paired_with": others[0].row["method"], "paired_difference": difference, "paired_ci": spread}
        rows.append(row)
    return rows


def _group(settings: TrainSettings) -> str:
    # Seeds have backbones of their own: which one is part of the seed.
    return settings.but(seed=0, name="", backbone__pretrained=None).digest()


def _train_seconds(run: RunFolder) -> float:
    """Seconds of all steps, from the mean of those logged."""
    lines = [line for line in run.lines("metrics") if line["split"] == "train"]
    if not lines:
        return 0.0
    mean = sum(line["seconds"] for line in lines) / len(lines)
    return float(mean * lines[-1]["step"])
