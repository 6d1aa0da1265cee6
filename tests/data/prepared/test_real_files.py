"""The real files, where E3BM_TEST_DATA names a folder that has them."""

import os
from pathlib import Path

import numpy as np
import pytest

from e3bm.data.inspect.doctor import doctor
from e3bm.data.read.archives import open_tree
from e3bm.data.read.plan import find_listing
from e3bm.data.read.prepare import prepare
from e3bm.data.source import open_dataset, registered_sources
from e3bm.data.store.packed import PackedImages

FOLDER = os.environ.get("E3BM_TEST_DATA")
pytestmark = pytest.mark.skipif(not FOLDER, reason="E3BM_TEST_DATA names no folder with the real files")


def real(name: str) -> Path:
    path = Path(FOLDER or "") / name
    if not path.exists():
        pytest.skip(f"{name} is not in the folder that E3BM_TEST_DATA names")
    return path


@pytest.fixture(scope="module")
def fc100(tmp_path_factory) -> PackedImages:
    return PackedImages.open(prepare("fc100", real("fc100.zip"), out=tmp_path_factory.mktemp("real") / "fc100").path)


def test_fc100_is_complete_and_right(fc100):
    assert {split: len(members) for split, members in fc100.splits.items()} == {"train": 60, "val": 20, "test": 20}
    assert set(fc100.class_counts.tolist()) == {600}
    assert fc100.image_shape == (32, 32, 3)
    red = fc100.images[..., 0]
    assert red.mean() / 255 == pytest.approx(0.50736, abs=1e-5)
    train = np.isin(fc100.labels, fc100.splits["train"])
    assert red[train].mean() / 255 == pytest.approx(0.51821, abs=1e-5)


def test_the_statistics_of_cifars_own_training_part(fc100):
    tree = open_tree(real("fc100.zip"))
    records = find_listing(registered_sources()["fc100"](), tree).records
    chosen = [place for place in range(len(records)) if records.name_of(place).split("/")[-1].startswith("train_")]
    tree.close()
    assert len(chosen) == 50_000
    levels = np.arange(256) / 255
    counts = np.stack(
        [np.bincount(fc100.images[chosen, ..., channel].reshape(-1), minlength=256) for channel in range(3)]
    )
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ levels
    np.testing.assert_allclose(mean, [0.50708, 0.48655, 0.44092], atol=1e-5)
    np.testing.assert_allclose(np.sqrt(shares @ levels**2 - mean**2), [0.26733, 0.25644, 0.27615], atol=1e-5)


def test_the_duplicates_of_fc100(fc100):
    report = doctor(fc100.path).as_json()
    assert (report["duplicate_groups"], report["duplicate_groups_across_splits"]) == (26, 3)
    assert report["splits"]["train"] == {"classes": 60, "images": 36_000}


@pytest.mark.slow
def test_the_doctor_knows_fc100_from_its_zip():
    report = doctor(real("fc100.zip"))
    assert report.variant == "fc100: split folders (zip)"
    assert (report.duplicate_groups, report.duplicate_groups_across_splits) == (26, 3)
    assert report.as_json()["unreadable"] == []
    assert any("as published" in finding for finding in report.findings)


def test_omniglot_is_complete(tmp_path):
    zips = [real("omniglot_images_background.zip"), real("omniglot_images_evaluation.zip")]
    packed = PackedImages.open(prepare("omniglot", zips, out=tmp_path / "omniglot").path)
    assert {split: len(members) for split, members in packed.splits.items()} == {"train": 1028, "val": 172, "test": 423}
    assert set(packed.class_counts.tolist()) == {20}
    assert packed.image_shape == (28, 28, 1)
    # Ink covers a small part of the paper and is light.
    assert 0.04 < packed.images.mean() / 255 < 0.15


def test_mini_imagenet_train_and_val(tmp_path):
    result = prepare("miniimagenet", real("miniimagenet_trainval_100.zip"), folder=tmp_path)
    assert result.splits == {"train": {"classes": 64, "images": 6_400}, "val": {"classes": 16, "images": 1_600}}
    packed = open_dataset("miniImageNet", tmp_path)
    assert packed.image_shape == (84, 84, 3)
    assert packed.images.mean() / 255 == pytest.approx(0.453, abs=0.01)


def test_the_doctor_knows_mini_imagenet_from_its_tables():
    report = doctor(real("miniimagenet_trainval_100.zip"))
    assert report.variant == "miniimagenet: csv + images (zip)"
    assert report.as_json()["splits"] == {
        "train": {"classes": 64, "images": 6_400},
        "val": {"classes": 16, "images": 1_600},
    }


def test_bird_photos(tmp_path):
    path = real("birds_photos.zip")
    assert doctor(path).as_json()["splits"] == {"all": {"classes": 12, "images": 360}}
    result = prepare("birds", path, folder=tmp_path)
    assert sum(count["images"] for count in result.splits.values()) == 360
    assert {split: count["classes"] for split, count in result.splits.items()} == {"train": 8, "val": 2, "test": 2}
