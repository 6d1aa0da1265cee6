"""The doctor: which variant, what is wrong with it, what to do next."""

import json

import numpy as np
import pytest

from e3bm.data.inspect.doctor import doctor
from e3bm.data.read.prepare import prepare
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError

KEYS = {"variant", "splits", "duplicate_groups", "duplicate_groups_across_splits", "unreadable", "advice"}


def see(path, **settings):
    report = doctor(path, workers=1, **settings)
    plain = report.as_json()
    assert set(plain) == KEYS
    assert json.loads(json.dumps(plain)) == plain
    return report


VARIANTS = {
    "miniimagenet: csv + images": ("miniimagenet", lambda w, s: w.csv_images(s)),
    "miniimagenet: split folders": ("miniimagenet", lambda w, s: w.split_folders(s)),
    "miniimagenet: class folders": ("miniimagenet", lambda w, s: w.class_folders(s)),
    "miniimagenet: pickles with image_data and class_dict": ("miniimagenet", lambda w, s: w.cache_pickles(s)),
    "miniimagenet: pickles with data and labels": ("miniimagenet", lambda w, s: w.labelled_pickles(s, "mini_category")),
    "tieredimagenet: PNG pickles": ("tieredimagenet", lambda w, s: w.png_pickles(s)),
    "tieredimagenet: npz images": ("tieredimagenet", lambda w, s: w.npz_images(s)),
    "fc100: split folders": ("fc100", lambda w, s: w.split_folders(s)),
    "fc100: pickles with data and labels": ("fc100", lambda w, s: w.labelled_pickles(s, "FC100")),
    "cifar-fs: split folders": ("cifar-fs", lambda w, s: w.split_folders(s)),
    "cifar-fs or fc100: CIFAR-100 archive": ("cifar-fs", lambda w, s: w.cifar_archive(s)),
    "omniglot: alphabet folders": ("omniglot", lambda w, s: w.alphabet_folders(s)),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_told_apart(tmp_path, write, variant):
    name, writer = VARIANTS[variant]
    small = write.small(name, per_class=1 if name in ("tieredimagenet", "omniglot") else 2)
    path = write.tree(tmp_path / "source", writer(write, small), "zip")
    report = see(path)
    assert report.variant == variant + " (zip)"
    assert {split: count.classes for split, count in report.splits.items()} == {
        split: len(small.classes(split)) for split in ("train", "val", "test")
    }
    assert sum(count.images or 0 for count in report.splits.values()) == len(small.split_of) * small.per_class
    assert f"e3bm prepare {name} --source {path}" in report.advice
    assert not report.unreadable


@pytest.mark.parametrize("name", ["miniimagenet", "fc100"])
def test_split_folders_that_share_their_classes_are_no_few_shot_split(tmp_path, write, name):
    """Public copies for ordinary classification: some images of every class in train, the others in val."""
    small = write.small(name, per_class=3)
    source = write.tree(tmp_path / "source", write.shared_class_folders(small, "copy/"))
    report = see(source)
    # CIFAR-FS and FC100 divide the same classes: nothing but the source's own split could tell them apart.
    title = "miniimagenet" if name == "miniimagenet" else "cifar-fs or fc100"
    assert report.variant == f"{title}: split folders that share their classes (folder)"
    (warning,) = (finding for finding in report.findings if finding.startswith("Warning"))
    assert "the folders train and val hold the same classes" in warning
    assert "training would see the test classes" in warning
    assert report.as_json()["advice"].startswith("These folders are no few-shot split.")
    expected = {split: (len(small.classes(split)), 3 * len(small.classes(split))) for split in ("train", "val", "test")}
    if name == "miniimagenet":
        assert {split: (count.classes, count.images) for split, count in report.splits.items()} == expected
    result = prepare(name, source, out=tmp_path / "out", workers=1)
    assert {split: (part["classes"], part["images"]) for split, part in result.splits.items()} == expected
    assert warning in result.notes
    packed = PackedImages.open(result.path)
    for place in range(0, len(packed), 17):
        label = int(packed.labels[place])
        k = int(np.searchsorted(packed.indices_of(label), place))
        np.testing.assert_array_equal(packed.images[place], small.pixels(packed.class_names[label], k))


def test_split_folders_that_share_some_classes_are_refused(tmp_path, write):
    files = write.shared_class_folders(write.small("miniimagenet"))
    first = sorted(files)[0]
    source = write.tree(tmp_path / "source", {name: content for name, content in files.items() if name != first})
    for look in (doctor, lambda path: prepare("miniimagenet", path, out=tmp_path / "out")):
        with pytest.raises(DataError, match="is both in train and in val"):
            look(source)


@pytest.mark.parametrize("splits", [("train", "val"), ("val",), ("test",)])
@pytest.mark.parametrize("labels", ["WordNet", "words"])
def test_a_part_of_miniimagenet_is_not_taken_for_cifar(tmp_path, write, splits, labels):
    """Both have 64, 16 and 20 classes; names tell them apart, or else the size of the images."""
    small = write.small("miniimagenet")
    files = {
        name: content
        for name, content in write.csv_images(small).items()
        if name.startswith("images/") or any(name == f"split/{split}.csv" for split in splits)
    }
    if labels == "words":
        for split in splits:
            rows = files[f"split/{split}.csv"].decode().splitlines()
            changed = [f"{row.split(',')[0]},bird {row.split(',')[1]}" for row in rows[1:]]
            files[f"split/{split}.csv"] = "\n".join([rows[0], *changed]).encode()
    report = see(write.tree(tmp_path / "source", files, "zip"))
    assert report.variant == "miniimagenet: csv + images (zip)"
    assert {split: count.classes for split, count in report.splits.items()} == {
        split: len(small.classes(split)) for split in splits
    }


def test_ones_own_folder(photos):
    report = see(photos)
    assert report.variant == "folder of images: class folders (folder)"
    assert report.as_json()["splits"] == {"all": {"classes": 8, "images": 24}}
    assert f"Run 'e3bm fit {photos} --out photos.e3bm'" in report.advice
    assert "e3bm prepare photos --source" in report.advice
    assert len(report.sizes) == 24
    assert report.smallest_class[1] == report.largest_class[1] == 3


def test_an_empty_class_folder_is_a_finding(photos):
    (photos / "nothing yet").mkdir()
    report = see(photos)
    assert report.as_json()["splits"] == {"all": {"classes": 8, "images": 24}}
    assert f"The class folder 'nothing yet' in {photos} has no images; add some or remove it." in report.findings


def test_a_few_classes_of_a_known_set_are_a_folder_of_ones_own(tmp_path, write):
    small = write.small("cub", size=30)
    files = {name: content for name, content in write.class_folders(small, "").items() if name < "012"}
    report = see(write.tree(tmp_path / "birds", files))
    assert report.variant.startswith("folder of images")


def test_what_is_unreadable_is_listed(photos):
    broken = sorted(photos.rglob("*.*"))[3:9:2]
    for path in broken:
        path.write_bytes(b"nothing")
    report = see(photos)
    assert report.as_json()["unreadable"] == [str(path.relative_to(photos)) for path in broken]
    assert "--on-broken skip" in report.advice


def test_duplicates_inside_and_across_splits(tmp_path, write):
    small = write.small("fc100")
    files = write.split_folders(small)
    names = sorted(files)
    test, train = ([name for name in names if name.startswith(split)] for split in ("test", "train"))
    files[train[5]] = files[train[9]] = files[train[2]]
    files[test[7]] = files[train[11]]
    # The same pixels in another encoding are still the same image.
    files[test[1]] = write.png(small.pixels("baby", 0), "BMP")
    files[test[2]] = write.png(small.pixels("baby", 0))
    report = see(write.tree(tmp_path / "source", files))
    groups = {frozenset(group) for group in report.duplicates}
    assert frozenset({train[2], train[5], train[9]}) in groups
    assert report.duplicates[0] == (test[7], train[11]) or report.duplicates[0] == (train[11], test[7])
    assert report.duplicate_groups_across_splits == 1
    assert report.duplicate_groups == len(groups) == 3


def test_prepared_data_sets(photos, tmp_path):
    result = prepare("birds", photos, out=tmp_path / "out", workers=1)
    report = see(result.path)
    assert report.variant == "prepared birds"
    assert {split: count.classes for split, count in report.splits.items()} == {"train": 4, "val": 2, "test": 2}
    assert "use it by its name, birds" in report.advice
    content = bytearray((result.path / "images.u8").read_bytes())
    content[100] ^= 1
    (result.path / "images.u8").write_bytes(bytes(content))
    with pytest.raises(DataError, match="damaged"):
        doctor(result.path)


def test_counts_and_splits_against_the_published(tmp_path, write):
    small = write.small("fc100", per_class=3)
    files = write.split_folders(small)
    moved = {name.replace("train/apple/", "val/apple/"): content for name, content in files.items()}
    report = see(write.tree(tmp_path / "moved", moved))
    assert report.variant.startswith("fc100")
    assert any("'apple' is in val, not train" in finding for finding in report.findings)
    fewer = {name: content for name, content in files.items() if "apple_1" not in name}
    report = see(write.tree(tmp_path / "fewer", fewer))
    assert any("'apple' has 2, most have 3" in finding for finding in report.findings)
    assert "--allow-other-counts" in report.advice
    assert report.published["train"].images == 36_000
    strange = {**files, "train/dragon/1.png": files["train/apple/apple_0.png"]}
    report = see(write.tree(tmp_path / "strange", strange))
    assert any("101" in finding or "61 classes" in finding for finding in report.findings)


def test_statistics_are_exact(tmp_path, write):
    rng = np.random.default_rng(0)
    images = {
        f"{label}/{k}.png": rng.integers(0, 256, (5 + k, 9, 3), dtype=np.uint8) for label in "ab" for k in range(4)
    }
    report = see(write.tree(tmp_path / "x", {name: write.png(pixels) for name, pixels in images.items()}))
    pixels = np.concatenate([image.reshape(-1, 3) for image in images.values()]) / 255
    np.testing.assert_allclose(report.statistics["all"].mean, pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(report.statistics["all"].std, pixels.std(axis=0), rtol=1e-12)
    assert report.sizes == {"9 x 5": 2, "9 x 6": 2, "9 x 7": 2, "9 x 8": 2}


def test_folders_of_archives(tmp_path, write):
    small = write.small("omniglot", per_class=1)
    files = write.alphabet_folders(small)
    for part in ("images_background", "images_evaluation"):
        chosen = {name: content for name, content in files.items() if name.startswith(part)}
        write.tree(tmp_path / "two" / part, chosen, "zip")
    assert see(tmp_path / "two").variant == "omniglot: alphabet folders (folder+zip)"
    assert see(sorted((tmp_path / "two").iterdir())).variant == "omniglot: alphabet folders (zip)"
    write.tree(tmp_path / "two" / "fc100", write.split_folders(write.small("fc100", per_class=1)), "zip")
    with pytest.raises(DataError, match="point at one of them"):
        doctor(tmp_path / "two")
    write.tree(tmp_path / "one" / "fc100", write.split_folders(write.small("fc100", per_class=1)), "zip")
    assert see(tmp_path / "one").variant == "fc100: split folders (zip)"


def test_what_is_no_data_set(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(DataError, match="no known data set"):
        doctor(tmp_path / "notes")
    (tmp_path / "notes" / "a.txt").write_text("hello")
    with pytest.raises(DataError, match="no known data set"):
        doctor(tmp_path / "notes")
    with pytest.raises(DataError, match="does not exist"):
        doctor(tmp_path / "nowhere")
