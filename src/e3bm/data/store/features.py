"""Features of a frozen backbone: computed once, kept in a cache, and gathered into tasks."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from e3bm.core.episode import EpisodeIndex, TaskBatch
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.store.image_set import ImageSet
from e3bm.errors import DataError
from e3bm.storage import sweep, write_whole

CHUNK = 256
DIGEST_BYTES = 32


def feature_key(network: str, images: str, pipeline: str, positions: Int64[np.ndarray, " N"]) -> str:
    """The name under which features are kept: another network, data, preprocessing or choice of images has another."""
    digest = hashlib.sha256(json.dumps([network, images, pipeline]).encode())
    digest.update(positions.astype("<i8").tobytes())
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class FeatureCache:
    """A folder of feature tables: NumPy files with their own sha256 as the last bytes."""

    folder: Path

    def read(self, key: str) -> Float32[np.ndarray, "N D"] | None:
        """The features of that name; None if there are none, or none that are whole."""
        try:
            content = self._path(key).read_bytes()
            if hashlib.sha256(content[:-DIGEST_BYTES]).digest() != content[-DIGEST_BYTES:]:
                return None
            features: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return features

    def keep(self, key: str, features: Float32[np.ndarray, "N D"]) -> None:
        """Store features; a cache that cannot be written costs time, not the run."""
        path = self._path(key)
        buffer = io.BytesIO()
        np.save(buffer, features)
        content = buffer.getvalue()
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, content, hashlib.sha256(content).digest())
            sweep(self.folder)  # what other writers were killed over

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npy"


def embed_images(
    images: ImageSet,
    positions: Int64[np.ndarray, " N"],
    embed: Callable[[np.ndarray], Float[Tensor, "n D"]],
    advance: Callable[[int], None] = lambda done: None,
) -> Float32[np.ndarray, "N D"]:
    """The features of the images at these positions."""
    parts = []
    for start in range(0, len(positions), CHUNK):
        parts.append(embed(images.gather(positions[start : start + CHUNK])).to("cpu", torch.float32).numpy())
        advance(min(start + CHUNK, len(positions)))
    features = np.concatenate(parts)
    if not np.isfinite(features).all():
        raise DataError("The backbone gives features that are not finite; its weights cannot be used.")
    return features


class FeatureTasks:
    """Tasks whose examples are rows of a feature table."""

    prefetch = 0  # gathering rows is cheaper than handing them between threads

    def __init__(
        self,
        features: Float32[np.ndarray, "N D"],
        positions: Int64[np.ndarray, " N"],
        sampler: EpisodeSampler,
        dtype: torch.dtype,
    ) -> None:
        """Row i of the features belongs to the image at ``positions[i]``."""
        if len(features) != len(positions):
            raise DataError(f"There are features of {len(features)} images, but {len(positions)} are asked for.")
        self.features = torch.from_numpy(features).to(dtype)
        self._row_of = torch.zeros(int(positions.max()) + 1, dtype=torch.long)
        self._row_of[torch.from_numpy(positions)] = torch.arange(len(positions))
        self.sampler = sampler

    def load(self, numbers: Sequence[int]) -> TaskBatch:
        """The tasks with these numbers; the support of tasks with fewer examples is padded and masked."""
        episodes = self.sampler.batch(numbers)
        longest = max(len(episode.support) for episode in episodes)
        padded = any(len(episode.support) < longest for episode in episodes)
        labels = torch.tensor([_padded_to(episode.support_labels, longest) for episode in episodes])
        query_labels = torch.tensor([episode.query_labels for episode in episodes])
        classes = self.sampler.split_classes(episodes)
        return TaskBatch(
            self._rows([_padded_to(episode.support, longest) for episode in episodes]),
            labels,
            self._rows([episode.query for episode in episodes]),
            query_labels,
            episodes[0].ways,
            _mask(episodes, longest) if padded else None,
            classes.gather(1, labels),
            classes.gather(1, query_labels),
        )

    def _rows(self, positions: Sequence[Sequence[int]]) -> Float[Tensor, "T N D"]:
        return self.features[self._row_of[torch.tensor(positions)]]


def _padded_to(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return values + values[:1] * (length - len(values))


def _mask(episodes: Sequence[EpisodeIndex], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor([len(episode.support) for episode in episodes])[:, None]
