"""Every public layout of every data set, in folders and archives, gives the same packed data."""

import numpy as np
import pytest

from e3bm.data.read.prepare import prepare
from e3bm.data.source import registered_sources
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError

LAYOUTS = {
    "mini csv": ("miniimagenet", lambda w, s: w.csv_images(s)),
    "mini csv, deep": ("miniimagenet", lambda w, s: w.csv_images(s, "data/miniImageNet/")),
    "mini split folders": ("miniimagenet", lambda w, s: w.split_folders(s)),
    "mini SIB folders": ("miniimagenet", lambda w, s: w.split_folders(s, "mini/", ("train_train", "val", "test"))),
    "mini class folders": ("miniimagenet", lambda w, s: w.class_folders(s)),
    "mini MetaOptNet pickles": (
        "miniimagenet",
        lambda w, s: w.labelled_pickles(s, "miniImageNet_category_split", names=True),
    ),
    "mini cache pickles": ("miniimagenet", lambda w, s: w.cache_pickles(s)),
    "mini cache pickles, protocol 4": ("miniimagenet", lambda w, s: w.cache_pickles(s, protocol=4)),
    "tiered split folders": ("tieredimagenet", lambda w, s: w.split_folders(s, "tiered/")),
    "tiered PNG pickles": ("tieredimagenet", lambda w, s: w.png_pickles(s)),
    "tiered PNG pickles, byte keys": ("tieredimagenet", lambda w, s: w.png_pickles(s, 3, False, True)),
    "tiered npz": ("tieredimagenet", lambda w, s: w.npz_images(s, key="label_specific")),
    "tiered npz, compressed": ("tieredimagenet", lambda w, s: w.npz_images(s, True, "label_specific")),
    "FC100 split folders": ("fc100", lambda w, s: w.split_folders(s)),
    "FC100 class folders": ("fc100", lambda w, s: w.class_folders(s, "")),
    "FC100 pickles": ("fc100", lambda w, s: w.labelled_pickles(s, "FC100")),
    "FC100 from CIFAR-100": ("fc100", lambda w, s: w.cifar_archive(s)),
    "CIFAR-FS folders and lists": ("cifar-fs", lambda w, s: w.listed_class_folders(s)),
    "CIFAR-FS pickles": ("cifar-fs", lambda w, s: w.labelled_pickles(s, "CIFAR_FS", protocol=4)),
    "CIFAR-FS from CIFAR-100 without meta": ("cifar-fs", lambda w, s: w.cifar_archive(s, 4, meta=False)),
    "CUB": ("cub", lambda w, s: w.class_folders(s, "CUB_200_2011/images/")),
}
CONTAINERS = ["folder", "zip", "tar", "tar.gz"]


def small_set(write, name):
    return write.small(name, per_class=1 if name == "tieredimagenet" else 2, size=84 if name == "cub" else None)


def check(packed: PackedImages, small) -> None:
    """Every class in its split, with exactly its own images."""
    assert sorted(packed.class_names) == sorted(small.split_of)
    for split, members in packed.splits.items():
        assert [packed.class_names[n] for n in members] == small.classes(split)
    for number, name in enumerate(packed.class_names):
        found = packed.gather(packed.indices_of(number))[:, 0, 0]
        expected = [small.pixels(name, k)[0, 0] for k in range(small.per_class)]
        assert sorted(map(tuple, found.tolist())) == sorted(tuple(colour.tolist()) for colour in expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path, write, layout):
    name, writer = LAYOUTS[layout]
    small = small_set(write, name)
    files = writer(write, small)
    # Containers are tested one by one below: here each layout meets a different one.
    container = CONTAINERS[list(LAYOUTS).index(layout) % len(CONTAINERS)]
    source = write.tree(tmp_path / "source", files, container)
    result = prepare(name, source, folder=tmp_path / "out", workers=1, allow_other_counts=name == "cub")
    packed = PackedImages.open(tmp_path / "out" / name, verify=True)
    check(packed, small)
    assert result.path == packed.path
    assert result.splits["train"]["classes"] == registered_sources()[name]().card.published["train"].classes
    assert packed.origin.licence
    assert packed.origin.citation


@pytest.mark.parametrize("layout", ["mini csv", "mini cache pickles", "FC100 from CIFAR-100", "FC100 split folders"])
def test_containers_give_the_same_images(tmp_path, write, layout):
    name, writer = LAYOUTS[layout]
    files = writer(write, small_set(write, name))
    digests = {}
    for container in CONTAINERS:
        source = write.tree(tmp_path / container / "source", files, container)
        result = prepare(name, source, out=tmp_path / container / "out", workers=1)
        packed = PackedImages.open(result.path)
        order = np.lexsort(packed.images[:, 0, 0].T)
        digests[container] = (packed.labels[order].tobytes(), packed.images[order].tobytes())
    assert len(set(digests.values())) == 1


def test_omniglot_from_its_two_zips_side_by_side(tmp_path, write):
    small = write.small("omniglot", per_class=1)
    files = write.alphabet_folders(small)
    for part in ("images_background", "images_evaluation"):
        chosen = {name: content for name, content in files.items() if name.startswith(part)}
        write.tree(tmp_path / "downloads" / part, chosen, "zip")
    one = prepare("omniglot", tmp_path / "downloads", out=tmp_path / "one", workers=1)
    zips = sorted((tmp_path / "downloads").iterdir())
    two = prepare("omniglot", zips, out=tmp_path / "two", workers=1)
    three = prepare("omniglot", write.tree(tmp_path / "unpacked", files), out=tmp_path / "three", workers=1)
    assert len({PackedImages.open(result.path).digest for result in (one, two, three)}) == 1
    packed = PackedImages.open(one.path)
    assert {split: len(members) for split, members in packed.splits.items()} == {"train": 1028, "val": 172, "test": 423}
    assert packed.image_shape == (28, 28, 1)
    # Dark strokes on white paper become light strokes on black.
    assert packed.images.mean() < 60
    assert packed.images.max() > 200


def test_pickles_without_names_get_made_up_ones(tmp_path, write):
    small = write.small("miniimagenet")
    source = write.tree(tmp_path / "source", write.labelled_pickles(small, "miniImageNet_category_split"))
    result = prepare("miniimagenet", source, out=tmp_path / "out", workers=1)
    packed = PackedImages.open(result.path)
    assert [len(members) for members in packed.splits.values()] == [64, 16, 20]
    assert packed.class_names[0].startswith("train_")
    assert any("made up" in note for note in result.notes)


def natural(write, name, reverse):
    """Arrays whose mean colours are those of the real data set."""
    small = write.small(name, per_class=1 if name == "tieredimagenet" else 3)
    mean = np.array(registered_sources()[name]().card.pixel_mean)
    rng = np.random.default_rng(1)

    def pixels(self, one, k):
        noise = rng.normal(0, 20, (self.side, self.side, 3)) + rng.normal(0, 30)
        image = np.clip(mean + noise, 0, 255).astype(np.uint8)
        return image[..., ::-1] if reverse else image

    return type("Natural", (write.small,), {"pixels": pixels})(name, per_class=small.per_class)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", ["cache", "npz", "FC100"])
def test_channel_order_is_checked_not_assumed(tmp_path, write, layout, reverse):
    name = {"cache": "miniimagenet", "npz": "tieredimagenet", "FC100": "fc100"}[layout]
    small = natural(write, name, reverse)
    files = {
        "cache": lambda: write.cache_pickles(small),
        "npz": lambda: write.npz_images(small, key="label_specific"),
        "FC100": lambda: write.labelled_pickles(small, "FC100"),
    }[layout]()
    source = write.tree(tmp_path / "source", files)
    result = prepare(name, source, out=tmp_path / "out", workers=1)
    means = PackedImages.open(result.path).images.mean(axis=(0, 1, 2))
    assert means[0] > means[2] + 5
    assert any(("reversed" in note) == reverse and "channel" in note.lower() for note in result.notes)
    kept = prepare(name, source, out=tmp_path / "as_is", workers=1, channel_order="rgb")
    assert (PackedImages.open(kept.path).images.mean(axis=(0, 1, 2))[0] > means[2] + 5) == (not reverse)
    turned = prepare(name, source, out=tmp_path / "turned", workers=1, channel_order="bgr")
    assert (PackedImages.open(turned.path).images.mean(axis=(0, 1, 2))[0] > means[2] + 5) == reverse


def test_encoded_files_are_never_turned(tmp_path, write):
    source = write.tree(tmp_path / "source", write.split_folders(natural(write, "fc100", True)))
    result = prepare("fc100", source, out=tmp_path / "out", workers=1)
    means = PackedImages.open(result.path).images.mean(axis=(0, 1, 2))
    assert means[0] < means[2]
    assert not result.notes or not any("channel" in note.lower() for note in result.notes)


def test_channels_first_arrays(tmp_path, write):
    small = write.small("fc100")

    class Turned(write.small):
        def array(self, split):
            data, owners = write.small.array(self, split)
            return np.ascontiguousarray(data.transpose(0, 3, 1, 2)), owners

    source = write.tree(tmp_path / "source", write.labelled_pickles(Turned("fc100"), "FC100"))
    prepare("fc100", source, out=tmp_path / "out", workers=1)
    check(PackedImages.open(tmp_path / "out"), small)


def test_other_sizes_are_refused_unless_asked_for(tmp_path, write):
    small = write.small("miniimagenet", size=90)
    for number, files in enumerate((write.split_folders(small), write.cache_pickles(small))):
        source = write.tree(tmp_path / f"source{number}", files)
        with pytest.raises(DataError, match="90 x 90 pixels, expected 84 x 84"):
            prepare("miniimagenet", source, out=tmp_path / "out", workers=1)
        assert not any(path.name.startswith("out") for path in tmp_path.iterdir())
        result = prepare("miniimagenet", source, out=tmp_path / f"scaled{number}", workers=1, image_size=84)
        check(PackedImages.open(result.path), small)


def test_names_are_found_however_they_are_written(tmp_path, write):
    source = write.tree(tmp_path / "source", write.split_folders(write.small("cifar-fs")))
    for name in ("CIFAR-FS", "cifar_fs", "CifarFS"):
        result = prepare(name, source, folder=tmp_path / "data", workers=1)
        assert result.name == "cifar-fs"
    assert result.unchanged
