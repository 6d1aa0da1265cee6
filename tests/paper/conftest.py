"""A made-up FC100 and presets so small that every row of a table is trained in seconds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from e3bm.data.store.packed import PackedWriter
from e3bm.paper import presets
from e3bm.runs.settings import TestSettings

CLASSES = {"train": 6, "val": 5, "test": 6}
IMAGES, SIZE = 8, 16
EPISODES = 12


def write_fc100(folder: Path) -> None:
    """Noisy pictures around one picture per class, under the name of a data set of the paper."""
    rng = np.random.default_rng(1)
    total = sum(CLASSES.values())
    centres = rng.integers(40, 216, (total, SIZE, SIZE, 3))
    labels = np.repeat(np.arange(total), IMAGES)
    pixels = np.clip(centres[labels] + rng.normal(0, 50, (len(labels), SIZE, SIZE, 3)), 0, 255).astype(np.uint8)
    numbers = iter(range(total))
    splits = {split: [next(numbers) for _ in range(count)] for split, count in CLASSES.items()}
    with PackedWriter(folder / "fc100", (SIZE, SIZE, 3), "fc100") as writer:
        writer.append(pixels, labels)
        writer.finish([f"class {number}" for number in range(total)], splits)


def tiny_preset(name: str) -> presets.Preset:
    """The preset of that name with everything that takes time made small."""
    found = presets.find_preset(name)
    train = found.train.but(
        episode__queries=2, optimiser__steps=4, optimiser__tasks=2, validation__every=2, validation__episodes=4,
        checkpoint_every=2, backbone__width=0.125, **({"method__epochs": 3} if found.train.inner else {}),
    )  # fmt: skip
    pretrain = found.pretrain
    if pretrain is not None:
        pretrain = pretrain.but(
            epochs=1, batch=12, backbone__width=0.125, episode__queries=2, validation__episodes=4
        )  # fmt: skip
    return replace(
        found, train=train, pretrain=pretrain, test=TestSettings(episodes=EPISODES, queries=2, shots=found.test.shots)
    )


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A folder to work in, with the made-up data in E3BM_DATA and tiny presets in place of the real ones."""
    folder = tmp_path_factory.mktemp("house")
    write_fc100(folder / "data")
    (folder / "results").mkdir()  # so that no test depends on another having kept something
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("E3BM_DATA", str(folder / "data"))
        patch.chdir(folder)
        for module in ("run_missing", "reproduce"):
            patch.setattr(f"e3bm.paper.{module}.find_preset", tiny_preset)
        yield folder
