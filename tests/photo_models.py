"""Photos that are made up, and a network so small that a whole fit takes milliseconds."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from e3bm.backbones import build
from e3bm.fewshot.few_shot_classifier import FewShotClassifier

PIPELINE = "resize 32, centre_crop 32, normalise imagenet"
CLASSES = ("brick", "grass", "sky")
COLOURS = {"brick": (180, 60, 40), "grass": (60, 160, 50), "sky": (90, 150, 230), "sand": (220, 200, 140)}


def picture(name: str, number: int) -> np.ndarray:
    """A photo of a class: its colour, with stripes and noise of its own."""
    random = np.random.default_rng([sum(map(ord, name)), number])
    pixels = np.empty((40, 48, 3))
    pixels[:] = COLOURS[name]
    pixels[:: random.integers(2, 6)] *= 0.8
    return np.clip(pixels + random.normal(0, 45, pixels.shape), 0, 255).astype(np.uint8)


def pictures(name: str, count: int, first: int = 0) -> list[np.ndarray]:
    return [picture(name, number) for number in range(first, first + count)]


def support(count: int = 4, names: tuple[str, ...] = CLASSES) -> dict[str, list[np.ndarray]]:
    return {name: pictures(name, count) for name in names}


def network() -> nn.Module:
    torch.manual_seed(0)
    return build("conv4", width=0.25, image_size=32)


def unfitted(**settings: object) -> FewShotClassifier:
    return FewShotClassifier(network(), pipeline=PIPELINE, **settings)


def write_folder(folder: Path, count: int = 4, names: tuple[str, ...] = CLASSES) -> Path:
    """The same photos as files."""
    for name in names:
        (folder / name).mkdir(parents=True)
        for number, pixels in enumerate(pictures(name, count)):
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def same_fit(first: FewShotClassifier, second: FewShotClassifier) -> bool:
    """Whether two classifiers are equal to the last bit, whatever the order of their photos was."""
    rows = [
        {name: sorted(row.tobytes() for row in shots.features) for name, shots in model.fitted.support.shots.items()}
        for model in (first, second)
    ]
    return rows[0] == rows[1] and first.to_bytes(keep_support=False) == second.to_bytes(keep_support=False)
