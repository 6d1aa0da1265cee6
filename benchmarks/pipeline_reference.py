"""Episodes from a DataLoader as they are usually made: every image opened, decoded and transformed by itself.

Pillow does the pictures; what a transformation library would add is written out. Nothing is done that could be left
out; a test holds the tensors equal to the package's to within what resizing may differ.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

Draw = Callable[[], float]
BILINEAR = Image.Resampling.BILINEAR


@dataclass(frozen=True)
class Transform:
    """Resize, crop and normalise; with ``crop`` also a random resized crop before, and a flip after."""

    resize: int
    centre: int
    mean: Tensor
    std: Tensor
    crop: int | None = None
    draw: Draw = random.random

    def __call__(self, image: Image.Image) -> Tensor:
        image = image.resize((self.resize, self.resize), BILINEAR)
        if self.crop is not None:
            left, top, width, height = resized_crop_box(self.resize, self.draw)
            image = image.resize((self.crop, self.crop), BILINEAR, box=(left, top, left + width, top + height))
        margin = round((image.width - self.centre) / 2)
        image = image.crop((margin, margin, margin + self.centre, margin + self.centre))
        if self.crop is not None and self.draw() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().sub_(self.mean).div_(self.std)


def resized_crop_box(size: int, draw: Draw) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random part: 8 to 100 % of the area, proportions 3:4 to 4:3."""
    for _ in range(10):
        area = size * size * (0.08 + 0.92 * draw())
        ratio = (4 / 3) ** (2 * draw() - 1)
        width, height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < width <= size and 0 < height <= size:
            top, left = int(draw() * (size - height + 1)), int(draw() * (size - width + 1))
            return left, top, width, height
    return 0, 0, size, size


class PictureFiles(Dataset[Tensor]):
    """Images by number, each from a file of its own."""

    def __init__(self, paths: Sequence[Path], transform: Transform) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Tensor:
        with Image.open(self.paths[number]) as image:
            return self.transform(image)


@dataclass(frozen=True)
class EpisodeBatches:
    """Numbers of the images of one episode after another, classes and images drawn anew."""

    by_class: Sequence[Tensor]
    ways: int
    per_class: int

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            classes = torch.randperm(len(self.by_class))[: self.ways].tolist()
            members = [self.by_class[c] for c in classes]
            yield torch.stack([m[torch.randperm(len(m))[: self.per_class]] for m in members]).flatten().tolist()


def episodes(files: PictureFiles, by_class: Sequence[Tensor], ways: int, per_class: int) -> Iterator[Tensor]:
    """Episodes without end; the loader works in this process, so that its CPU time can be seen."""
    return iter(DataLoader(files, batch_sampler=EpisodeBatches(by_class, ways, per_class)))  # type: ignore[arg-type]
