"""From data settings to tasks: images with a pipeline, or cached features of a frozen backbone."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from e3bm.backbones import Backbone, encode, fold_batchnorm
from e3bm.core.episode import EpisodeSpec
from e3bm.data.episodes.loader import ImageTasks
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.pixels.recipes import RECIPES
from e3bm.data.source import data_folder, open_dataset
from e3bm.data.store.features import FeatureCache, FeatureTasks, embed_images, feature_key
from e3bm.data.store.image_set import ImageSet, RotatedClasses
from e3bm.progress import Progress, stage
from e3bm.runs.assembly import weights_digest
from e3bm.runs.engine import Engine
from e3bm.runs.settings import DataSettings, EpisodeSettings
from e3bm.settings import Needs


@dataclass(frozen=True)
class OpenData:
    """A data set and what its images go through."""

    images: ImageSet
    training: Pipeline
    evaluation: Pipeline
    folder: Path

    @property
    def classes(self) -> int:
        """Number of training classes."""
        return len(self.images.splits["train"])

    @property
    def input_shape(self) -> tuple[int, int]:
        """Channels and pixels of a side, as the model sees them."""
        channels, size, _ = self.evaluation.output_shape(self.images.image_shape)
        return channels, size


def open_data(settings: DataSettings, channels: int | None = None) -> OpenData:
    """The data set that the settings name, with its pipelines; ``channels`` makes grey of colours or the other way."""
    images: ImageSet = open_dataset(settings.dataset, settings.folder)
    recipe = RECIPES[settings.recipe](settings.image_size or images.image_shape[0])

    def adjusted(pipeline: Pipeline) -> Pipeline:
        steps, _, normalisation = str(pipeline).rpartition("normalise ")
        if channels not in (None, images.image_shape[2]):
            steps = f"channels {channels}, {steps}"
        return Pipeline.parse(f"{steps}normalise {settings.normalisation or normalisation}")

    evaluation = adjusted(recipe.evaluate)
    training = adjusted(recipe.train) if settings.augment else evaluation
    if settings.rotations:
        images = RotatedClasses(images)
    return OpenData(images, training, evaluation, data_folder(settings.folder))


def episode_sampler(
    data: OpenData, split: str, episode: EpisodeSettings, seed: int, stream: str, *, query_shares: int | None = None
) -> EpisodeSampler:
    """Episodes of one split; the stream keeps training, validation and test lists apart."""
    spec = EpisodeSpec(episode.ways, episode.shots, episode.queries, query_shares)
    return EpisodeSampler.of_split(data.images, split, spec, seed, stream=stream)


def image_tasks(data: OpenData, sampler: EpisodeSampler, *, augment: bool, dtype: torch.dtype) -> ImageTasks:
    """Tasks of images."""
    pipeline = data.training if augment else data.evaluation
    return ImageTasks(data.images, sampler, pipeline, seed=sampler.seed, dtype=dtype)


def feature_tasks(
    data: OpenData,
    sampler: EpisodeSampler,
    backbone: Backbone,
    progress: Progress,
    dtype: torch.dtype,
    engine: Engine,
    *,
    keep: bool = True,
    needs: Needs | None = None,
) -> FeatureTasks:
    """Tasks of features, or of maps where ``needs`` says so, computed once and then read from the cache.

    They are kept under their weights, data and pipeline. Every process computes its share of the images.
    """
    return FeatureTasks(
        *feature_table(data, sampler.classes, backbone, progress, engine, keep=keep, needs=needs), sampler, dtype
    )


def feature_table(
    data: OpenData,
    classes: Sequence[int],
    backbone: Backbone,
    progress: Progress,
    engine: Engine,
    *,
    keep: bool = True,
    needs: Needs | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Features, or maps, of all images of some classes, and the positions of these images in the data set."""
    maps = needs if needs is not None and needs.takes == "maps" else None
    positions = np.unique(np.concatenate([data.images.indices_of(number) for number in classes]))
    network = f"{backbone!r} {weights_digest(backbone)}"
    if maps is not None:
        network += " maps" if maps.last_pooling else " maps before the last pooling"
    cache = FeatureCache(data.folder / "features")
    key = feature_key(network, data.images.digest, str(data.evaluation), positions)
    features = cache.read(key) if keep else None
    if engine.any(features is None):
        mine = positions[engine.rank :: engine.world]
        embed = _embedder(backbone, data.evaluation, engine.device, maps)
        with stage(progress, f"features of {data.images.name}", len(positions)):
            found = embed_images(data.images, mine, embed, lambda done: progress.advance(done * engine.world))
            features = engine.gather(torch.from_numpy(found), len(positions)).numpy()
            progress.advance(len(positions))
        if keep and engine.leads:
            cache.keep(key, features)
    assert features is not None
    return features, positions


def _embedder(
    backbone: Backbone, pipeline: Pipeline, device: torch.device, maps: Needs | None
) -> Callable[[np.ndarray], Tensor]:
    # Folded on the CPU: the other devices have no float64.
    folded = fold_batchnorm(backbone if device.type == "cpu" else deepcopy(backbone).cpu()).to(device)
    dtype = next(folded.parameters()).dtype
    network = None if maps is None else partial(folded.maps, last_pooling=maps.last_pooling)

    def embed(pixels: np.ndarray) -> Tensor:
        with torch.inference_mode():
            images = pipeline(torch.from_numpy(pixels).permute(0, 3, 1, 2), dtype=dtype).to(device)
            return encode(folded, images.unsqueeze(0), "running", network=network).squeeze(0)

    return embed
