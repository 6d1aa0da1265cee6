"""Features of a frozen backbone, computed once: tasks are then gathered from them at head speed."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.data.image_set import ImageSet
from e3bm.data.sampler import EpisodeSampler
from e3bm.episode import EpisodeIndex, TaskBatch
from e3bm.errors import DataError

CHUNK = 256


def feature_key(weights: str, images: str, pipeline: str) -> str:
    """The name under which features are kept: other weights, data or preprocessing have another."""
    return hashlib.sha256(json.dumps([weights, images, pipeline]).encode()).hexdigest()[:32]


def cached_features(
    images: ImageSet,
    positions: Sequence[int] | np.ndarray,
    embed: Callable[[np.ndarray], Float[Tensor, "N D"]],
    key: str,
    folder: Path | None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Float[np.ndarray, "N D"]:
    """Features of the images at these positions (others are zero rows never to be read), from the cache or computed.

    Without a folder nothing is kept.
    """
    chosen = np.unique(np.asarray(positions, dtype=np.int64))
    name = hashlib.sha256(key.encode() + chosen.astype("<i8").tobytes()).hexdigest()[:32]
    path = None if folder is None else folder / f"{name}.npy"
    if path is not None and path.exists():
        try:
            stored = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
        else:
            return _spread(stored, chosen, len(images))
    parts = []
    for start in range(0, len(chosen), CHUNK):
        parts.append(embed(images.gather(chosen[start : start + CHUNK])).to("cpu", torch.float32).numpy())
        advance(min(start + CHUNK, len(chosen)), len(chosen))
    features = np.concatenate(parts)
    if not np.isfinite(features).all():
        raise DataError("The backbone gives features that are not finite; its weights cannot be used.")
    if path is not None:
        _keep(path, features)
    return _spread(features, chosen, len(images))


class FeatureTasks:
    """Tasks whose examples are rows of a feature table."""

    prefetch = 0  # gathering rows is cheaper than handing them between threads

    def __init__(self, features: Float[np.ndarray, "N D"], sampler: EpisodeSampler, dtype: torch.dtype) -> None:
        self.features = torch.from_numpy(np.ascontiguousarray(features)).to(dtype)
        self.sampler = sampler

    def load(self, numbers: Sequence[int]) -> TaskBatch:
        """The tasks with these numbers."""
        return _stack(self.sampler.batch(numbers), self.features)


def _stack(episodes: Sequence[EpisodeIndex], features: Float[Tensor, "N D"]) -> TaskBatch:
    """Episodes as one batch; the support of tasks with fewer examples is padded and masked."""
    longest = max(len(episode.support) for episode in episodes)
    padded = any(len(episode.support) < longest for episode in episodes)
    fill = lambda values: list(values) + [values[0]] * (longest - len(values))
    support = torch.tensor([fill(episode.support) for episode in episodes])
    labels = torch.tensor([fill(episode.support_labels) for episode in episodes])
    mask = torch.tensor([[i < len(episode.support) for i in range(longest)] for episode in episodes])
    query = torch.tensor([episode.query for episode in episodes])
    return TaskBatch(
        features[support],
        labels,
        features[query],
        torch.tensor([episode.query_labels for episode in episodes]),
        episodes[0].ways,
        mask if padded else None,
    )


def _spread(features: np.ndarray, chosen: np.ndarray, total: int) -> np.ndarray:
    if len(chosen) == total:
        return np.asarray(features)
    table = np.zeros((total, features.shape[1]), np.float32)
    table[chosen] = features
    return table


def _keep(path: Path, features: np.ndarray) -> None:
    """A cache that cannot be written costs time, not the run."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        with os.fdopen(handle, "wb") as file:
            np.save(file, features)
        os.replace(temporary, path)
    except OSError:
        return
