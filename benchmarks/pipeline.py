"""Data rows: episodes from packed bytes against a DataLoader that opens every picture with Pillow."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.pipeline_reference import PictureFiles, Transform, episodes
from benchmarks.rows import Row
from benchmarks.timing import Work, compare
from e3bm.core.episode import EpisodeSpec
from e3bm.data.episodes.loader import ImageTasks
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.pixels.pipeline import NORMALISATIONS, Pipeline
from e3bm.data.store.packed import PackedImages, PackedWriter

WAYS, SHOTS, QUERIES = 5, 1, 15
CLASSES, PER_CLASS, SIZE = 20, 40, 84
RESIZED, CROPPED = 92, 88  # MTL's sizes
EVALUATE = f"resize {RESIZED}, centre_crop {SIZE}, normalise mtl"
TRAIN = f"resize {RESIZED}, random_resized_crop {CROPPED}, centre_crop {SIZE}, flip, normalise mtl"
EPISODES = 4  # per call of ours
TARGETS = {"evaluation": 6.0, "training": 2.5}


@dataclass(frozen=True)
class Pictures:
    """The same pictures as files and packed."""

    paths: tuple[Path, ...]
    packed: PackedImages


@contextmanager
def pictures(classes: int = CLASSES, per_class: int = PER_CLASS, size: int = SIZE) -> Iterator[Pictures]:
    """Smooth noise with some grain, which compresses about as photos do, in JPEG files of the usual size."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        paths, pixels = [], []
        for number in range(classes * per_class):
            coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float64)
            image = np.clip(smooth + rng.normal(0, 10, smooth.shape), 0, 255).astype(np.uint8)
            paths.append(Path(place) / f"{number}.jpg")
            Image.fromarray(image).save(paths[-1], quality=90)
            with Image.open(paths[-1]) as opened:
                pixels.append(np.array(opened))
        writer = PackedWriter(Path(place) / "packed", (size, size, 3), "pictures")
        writer.append(np.stack(pixels), np.repeat(np.arange(classes), per_class))
        splits = {"train": range(classes), "val": (), "test": ()}
        yield Pictures(tuple(paths), writer.finish([str(number) for number in range(classes)], splits))


def transform(text: str, size: int = SIZE) -> Transform:
    """The plain side of a pipeline."""
    normalisation = NORMALISATIONS["mtl"]
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in (normalisation.mean, normalisation.std))
    return Transform(RESIZED, size, mean, std, CROPPED if "random" in text else None)


def sides(data: Pictures, text: str) -> tuple[Work, Work]:
    """The next episode from the DataLoader, and a few of ours."""
    packed = data.packed
    by_class = [torch.from_numpy(packed.indices_of(number)) for number in packed.splits["train"]]
    plain = episodes(PictureFiles(data.paths, transform(text)), by_class, WAYS, SHOTS + QUERIES)
    sampler = EpisodeSampler.of_split(packed, "train", EpisodeSpec(WAYS, SHOTS, QUERIES), 0)
    tasks = ImageTasks(packed, sampler, Pipeline.parse(text))
    numbers = iter(range(0, 10**9, EPISODES))

    def ours() -> None:
        first = next(numbers)
        tasks.load(range(first, first + EPISODES))

    return lambda: next(plain), ours


def rows(quick: bool) -> list[Row]:
    """Episodes for evaluation, and with a random resized crop and flip for training."""
    found = []
    with pictures(*((5, 20) if quick else (CLASSES, PER_CLASS))) as data:
        for kind, text in (("evaluation", EVALUATE), ("training", TRAIN)):
            slow, fast = sides(data, text)
            result = compare(slow, fast, fast_units=EPISODES, repeats=5 if quick else 15)
            found.append(Row.of(f"episodes for {kind}, {SIZE} px: against a Pillow DataLoader", result, TARGETS[kind]))
    return found
