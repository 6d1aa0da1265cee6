"""From data settings to tasks: what features are kept under, and which pipeline images go through."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from e3bm.backbones import build
from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.store.packed import PackedImages
from e3bm.progress import Silent
from e3bm.runs.engine import Engine
from e3bm.runs.tasks import episode_sampler, feature_tasks, image_tasks, open_data
from small_runs import settings


def opened(folder):
    wanted = settings(folder, "maml", data__augment=True)
    data = open_data(wanted.data)
    return wanted, data, episode_sampler(data, "val", wanted.episode, 0, "validation")


def backbone(seed=0):
    torch.manual_seed(seed)
    return build("conv4", width=0.25, image_size=16)


CHANGES = {
    "weights": lambda data: (data, backbone(1)),
    "pixels": lambda data: (replace(data, images=inverted(data.images)), backbone()),
    "pipeline": lambda data: (replace(data, evaluation=Pipeline.parse("resize 16, normalise none")), backbone()),
}


def inverted(images):
    """Other pixels under the same name."""
    pixels = 255 - np.asarray(images.images)
    return PackedImages.from_arrays(pixels, images.labels, images.class_names, images.splits, name=images.name)


@pytest.mark.parametrize("change", CHANGES)
def test_kept_features_are_those_of_these_weights_pixels_and_pipeline(small_data, tmp_path, change):
    _, data, sampler = opened(small_data)
    data = replace(data, folder=tmp_path)
    compute = lambda data, network, **options: (
        feature_tasks(data, sampler, network, Silent(), torch.float32, Engine(), **options).features
    )
    first = compute(data, backbone())
    assert torch.equal(compute(data, backbone()), first)
    assert len(list((tmp_path / "features").iterdir())) == 1  # read from the cache
    changed = CHANGES[change](data)
    found = compute(*changed)
    assert not torch.allclose(found, first)
    assert torch.equal(found, compute(*changed, keep=False))


def test_only_what_is_said_to_be_augmented_is(small_data):
    wanted, data, sampler = opened(small_data)
    plain, augmented = (
        image_tasks(data, sampler, augment=augment, dtype=torch.float32).load(range(2)) for augment in (False, True)
    )
    rows = sampler.batch(range(2))
    for task, episode in enumerate(rows):
        pixels = torch.from_numpy(data.images.gather(np.array(episode.query))).permute(0, 3, 1, 2)
        assert torch.equal(plain.query[task], data.evaluation(pixels))
        assert not torch.equal(augmented.query[task], plain.query[task])
    assert open_data(wanted.data.but(augment=False)).training == data.evaluation
