"""Minibatches for pretraining; order and augmentation depend on seed, epoch and place only, so a run can resume."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from e3bm.data.episodes.randomness import random_words, uniform_numbers
from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.store.image_set import ImageSet
from e3bm.errors import DataError, SettingsError


@dataclass(frozen=True)
class LabelledBatch:
    """Images with their class 0..C-1 among the classes of the split, and their positions in the data set."""

    images: Float[Tensor, "B C H W"]
    labels: Int64[Tensor, " B"]
    positions: Int64[np.ndarray, " B"]

    def __len__(self) -> int:
        return len(self.labels)


class ClassificationBatches:
    """All images of one split in minibatches, shuffled anew in every epoch.

    Batch b of epoch e is a pure function of (seed, e, b), and the augmentation of an image of (seed, e, its place in
    the epoch): a resumed run asks for the next batch, several processes each take their share of every batch.
    """

    def __init__(
        self,
        images: ImageSet,
        split: str,
        pipeline: Pipeline,
        batch_size: int,
        seed: int,
        *,
        rank: int = 0,
        processes: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not images.splits.get(split):
            named = ", ".join(name for name, members in images.splits.items() if members)
            raise DataError(f"There is no split '{split}' with classes in '{images.name}'; it has {named}.")
        self.images, self.pipeline, self.batch_size, self.seed = images, pipeline, batch_size, seed
        self.rank, self.processes, self.dtype = rank, processes, dtype
        self.classes = images.splits[split]
        members = [images.indices_of(number) for number in self.classes]
        self._positions = np.concatenate(members)
        self._labels = np.repeat(np.arange(len(members)), [len(positions) for positions in members]).astype(np.int64)
        if not 1 <= batch_size <= len(self._positions):
            raise SettingsError(
                f"The batch size must lie in 1..{len(self._positions)}, found {batch_size}: "
                f"the {split} split has no more images; set --batch."
            )
        if batch_size % processes:
            raise SettingsError(
                f"A batch of {batch_size} cannot be shared evenly by {processes} processes; make it a multiple."
            )
        self._order: tuple[int, Int64[np.ndarray, " n"]] | None = None

    def __len__(self) -> int:
        """Batches per epoch; the images left over after the last whole batch wait for another epoch's shuffle."""
        return len(self._positions) // self.batch_size

    def order(self, epoch: int) -> Int64[np.ndarray, " n"]:
        """The order in which an epoch visits the images of the split."""
        if self._order is None or self._order[0] != epoch:
            words = random_words(self.seed, "shuffle", [epoch], len(self._positions))[0]
            self._order = epoch, np.argsort(words, kind="stable").astype(np.int64)
        return self._order[1]

    def batch(self, epoch: int, index: int) -> LabelledBatch:
        """This process's share of minibatch ``index`` of an epoch."""
        if not 0 <= index < len(self):
            raise SettingsError(f"An epoch has batches 0..{len(self) - 1}, found {index}.")
        places = range(index * self.batch_size, (index + 1) * self.batch_size)
        share = slice(self.rank, None, self.processes)
        chosen = self.order(epoch)[places.start : places.stop][share]
        positions = self._positions[chosen]
        pixels = torch.from_numpy(self.images.gather(positions)).permute(0, 3, 1, 2)
        numbers = uniform_numbers(self.seed, f"augment/epoch/{epoch}", places, self.pipeline.draws)
        draws = torch.from_numpy(numbers[share])
        images = self.pipeline(pixels, draws, self.dtype)
        return LabelledBatch(images, torch.from_numpy(self._labels[chosen]), positions)
