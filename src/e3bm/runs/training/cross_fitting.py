"""Cross-fitted tasks: every training episode is of classes that the backbone of its features was trained without.

A hyperprior that learns on classes which its backbone knows sees features far better than those of new classes, and
learns to trust them too much. Here it learns on features as a test has them, and is then used on the backbone of all
classes; so what it learns must not depend on which number of a feature vector means what.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from e3bm.backbones import Backbone
from e3bm.core.episode import EpisodeSpec
from e3bm.data.episodes.folds import FoldSampler, class_folds
from e3bm.data.store.features import FeatureTasks
from e3bm.errors import E3BMError, SettingsError
from e3bm.progress import Progress
from e3bm.runs.assembly import DTYPES, build_backbone, weights_digest
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import TaskSource
from e3bm.runs.folder.run import read_run
from e3bm.runs.settings import PretrainSettings, TrainSettings
from e3bm.runs.tasks import OpenData, feature_table, image_tasks
from e3bm.runs.training.pretrain import FOLDS

FREE_SUMMARY = "stats"
SAYS_HOW = "train its folds with `e3bm pretrain --folds K` and the settings of that run"


@dataclass(frozen=True)
class Fold:
    """A backbone and the training classes that it has not seen."""

    folder: Path
    unseen: tuple[int, ...]


def find_folds(settings: TrainSettings, data: OpenData) -> list[Fold]:
    """The folds kept with the pre-trained run, or that run itself where it left classes out.

    Where some parts have no fold, tasks come from the classes of the others.
    """
    source = settings.backbone.pretrained
    if source is None:
        raise SettingsError("Cross-fitted tasks need a pre-trained backbone; set backbone.pretrained.")
    own = _left_out(source) if (source / "config.json").is_file() else None
    if own is not None:
        return [Fold(source, class_folds(data.images, own[1])[own[0] - 1])]
    found = {path: left for path in sorted(source.glob(f"{FOLDS}/*")) if (left := _left_out(path)) is not None}
    counts = {count for _, count in found.values()}
    if len(counts) != 1:
        if settings.backbone.adapt == "frozen":
            _refuse_what_is_tied(settings)  # before anyone trains folds for what cannot use them
        elif not found:
            raise SettingsError(
                "A backbone that is trained further begins with one network, so its cross-fitted tasks need one fold, "
                "and there is none; train one with `e3bm pretrain --left-out 1 K` and the settings of "
                f"{source}, and set backbone.pretrained to it."
            )
        there = ", ".join(path.name for path in found) or "none"
        raise SettingsError(
            f"Cross-fitted tasks need folds of {source}, parts of one division (there: {there}); {SAYS_HOW}."
        )
    if settings.backbone.adapt != "frozen":
        raise SettingsError(
            "A backbone that is trained further begins with one network, so its tasks can be new to one fold only; "
            f"set backbone.pretrained to one of them, such as {next(iter(found))}, or tasks to all."
        )
    divided = class_folds(data.images, counts.pop())
    return [Fold(path, divided[part - 1]) for path, (part, _) in found.items()]


def _left_out(folder: Path) -> tuple[int, int] | None:
    try:
        run = read_run(folder)
    except E3BMError as error:
        raise SettingsError(f"The fold {folder} cannot be read: {error}") from None
    if not isinstance(run.settings, PretrainSettings) or run.settings.left_out is None:
        return None
    if not run.finished:
        raise SettingsError(f"The fold {folder} has not finished its training; {SAYS_HOW}, which continues it.")
    return run.settings.left_out


def check_free_of_coordinates(settings: TrainSettings, folds: Sequence[Fold], trained: Sequence[nn.Parameter]) -> None:
    """Refuse to train on several backbones what only means something on one."""
    if trained and not _alone(settings, folds):
        _refuse_what_is_tied(settings)


def _refuse_what_is_tied(settings: TrainSettings) -> None:
    reason = settings.method.tied_to_features
    hyperprior = settings.hyperprior
    if reason is None and hyperprior.generated and (hyperprior.summary != FREE_SUMMARY or hyperprior.embedding):
        reason = f"the hyperprior reads features one by one; set hyperprior.summary to {FREE_SUMMARY}, embedding off"
    if reason is not None:
        raise SettingsError(f"Cross-fitted tasks have features of other backbones than the test, but {reason}.")


def _alone(settings: TrainSettings, folds: Sequence[Fold]) -> bool:
    """Whether the one fold is the very backbone that is used afterwards."""
    return [fold.folder for fold in folds] == [settings.backbone.pretrained]


@dataclass(frozen=True)
class CrossFitted:
    """The folds with their backbones, and the episodes that are drawn from them."""

    folds: Sequence[Fold]
    backbones: Sequence[Backbone]
    sampler: FoldSampler

    @classmethod
    def of(cls, settings: TrainSettings, data: OpenData) -> "CrossFitted":
        folds, episode = find_folds(settings, data), settings.episode
        backbones = [build_backbone(settings.backbone.but(pretrained=fold.folder), *data.input_shape) for fold in folds]
        spec = EpisodeSpec(episode.ways, episode.shots, episode.queries, settings.query_shares)
        unseen, stream = [fold.unseen for fold in folds], "training/cross-fitted"
        sampler = FoldSampler(data.images, unseen, spec, settings.seed, stream, related=settings.related)
        return cls(folds, backbones, sampler)

    def inputs(self, settings: TrainSettings) -> dict[str, str]:
        """Digests of the folds' weights, as a run notes what it reads."""
        if _alone(settings, self.folds):
            return {}  # the pre-trained backbone is noted anyway
        named = {fold.folder.name: backbone for fold, backbone in zip(self.folds, self.backbones, strict=True)}
        return {"folds": ", ".join(f"{name} {weights_digest(backbone)}" for name, backbone in named.items())}

    def tasks(self, settings: TrainSettings, data: OpenData, progress: Progress, engine: Engine) -> TaskSource:
        """Tasks of images, or of features: every image has those of a backbone that has not seen its class."""
        dtype = DTYPES[settings.machine.precision]
        if settings.backbone.adapt != "frozen":
            return image_tasks(data, self.sampler, augment=settings.data.augment, dtype=dtype)
        tables = [
            feature_table(data, fold.unseen, backbone, progress, engine, needs=settings.method.needs)
            for fold, backbone in zip(self.folds, self.backbones, strict=True)
        ]
        features, positions = (np.concatenate(parts) for parts in zip(*tables, strict=True))
        return FeatureTasks(features, positions, self.sampler, dtype)
