"""Data sets written in exactly the layouts in which they are handed round, small, and every image knows its class."""

import io
import pickle
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from e3bm.data.source import registered_sources

SPLITS = ("train", "val", "test")


def png(pixels: np.ndarray, kind: str = "PNG", **options) -> bytes:
    """Pixels as an encoded image."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(buffer, kind, **options)
    return buffer.getvalue()


@dataclass(frozen=True)
class SmallSet:
    """A data set's real classes with a few made-up images each."""

    name: str
    per_class: int = 2
    size: int | None = None
    channels_reversed: bool = False
    split_of: dict[str, str] = field(init=False)
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        split_of = dict(registered_sources()[self.name]().known_classes().split_of)
        object.__setattr__(self, "split_of", split_of)
        object.__setattr__(self, "numbers", {name: place for place, name in enumerate(sorted(split_of))})

    @property
    def side(self) -> int:
        return self.size or registered_sources()[self.name]().card.accepted_sizes[0]

    def classes(self, split: str) -> list[str]:
        return sorted(name for name, home in self.split_of.items() if home == split)

    def pixels(self, name: str, k: int) -> np.ndarray:
        """One colour that tells the class and which of its images it is."""
        number = self.numbers[name]
        colour = np.array([number % 250, 100 + number // 250, k * 10 + 5], np.uint8)
        return np.tile(colour, (self.side, self.side, 1))

    def items(self, split: str) -> list[tuple[str, int]]:
        return [(name, k) for name in self.classes(split) for k in range(self.per_class)]

    def array(self, split: str) -> tuple[np.ndarray, list[str]]:
        items = self.items(split)
        return np.stack([self.pixels(name, k) for name, k in items]), [name for name, _ in items]


Files = dict[str, bytes]


def csv_images(small: SmallSet, prefix: str = "") -> Files:
    files: Files = {}
    for split in SPLITS:
        rows = ["filename,label"]
        for name, k in small.items(split):
            files[f"{prefix}images/{name}{k:08d}.jpg"] = png(small.pixels(name, k))
            rows.append(f"{name}{k:08d}.jpg,{name}")
        files[f"{prefix}split/{split}.csv"] = "\n".join(rows).encode()
    return files


def split_folders(small: SmallSet, prefix: str = "", names: tuple[str, ...] = SPLITS) -> Files:
    return {
        f"{prefix}{word}/{name}/{name}_{k}.png": png(small.pixels(name, k))
        for split, word in zip(SPLITS, names, strict=True)
        for name, k in small.items(split)
    }


def shared_class_folders(small: SmallSet, prefix: str = "") -> Files:
    """For ordinary classification: the last image of every class in val, the others in train."""
    return {
        f"{prefix}{'val' if k == small.per_class - 1 else 'train'}/{name}/{name}_{k}.png": png(small.pixels(name, k))
        for split in SPLITS
        for name, k in small.items(split)
    }


def class_folders(small: SmallSet, prefix: str = "images/") -> Files:
    return {f"{prefix}{name}/{k}.png": png(small.pixels(name, k)) for s in SPLITS for name, k in small.items(s)}


def listed_class_folders(small: SmallSet) -> Files:
    lists = {f"cifar100/splits/bertinetto/{s}.txt": "\n".join(small.classes(s)).encode() for s in SPLITS}
    return {**class_folders(small, "cifar100/data/"), **lists}


def labelled_pickles(small: SmallSet, stem: str, protocol: int = 2, names: bool = False) -> Files:
    files: Files = {}
    for split in SPLITS:
        data, owners = small.array(split)
        word = {"train": "train_phase_train"}.get(split, split) if "category" in stem else split
        content = {"data": data, "labels": [small.numbers[name] for name in owners]}
        if names:
            content["label2catname"] = {small.numbers[name]: name for name in owners}
        files[f"{stem}_{word}.pickle"] = pickle.dumps(content, protocol)
    if "category" in stem:
        for extra in ("train_phase_val", "train_phase_test"):
            files[f"{stem}_{extra}.pickle"] = pickle.dumps({"data": data[:1], "labels": [0]}, protocol)
    return files


def cache_pickles(small: SmallSet, stem: str = "mini-imagenet-cache-", protocol: int = 2) -> Files:
    files: Files = {}
    for split in SPLITS:
        data, owners = small.array(split)
        mixed = np.random.default_rng(0).permutation(len(data))
        places: dict[str, list[int]] = {}
        for place, item in enumerate(mixed):
            places.setdefault(owners[item], []).append(place)
        files[f"{stem}{split}.pkl"] = pickle.dumps({"image_data": data[mixed], "class_dict": places}, protocol)
    return files


def tiered_labels(small: SmallSet, split: str, protocol: int, byte_keys: bool, key: str) -> bytes:
    names = small.classes(split)
    _, owners = small.array(split)
    numbers = np.array([names.index(name) for name in owners])
    content = {key: numbers}
    if key == "label_specific":
        content |= {"label_general": numbers // 20, "label_specific_str": names, "label_general_str": ["x"] * 34}
    if byte_keys:
        content = {name.encode(): value for name, value in content.items()}
    return pickle.dumps(content, protocol)


def png_pickles(small: SmallSet, protocol: int = 2, as_arrays: bool = True, byte_keys: bool = False) -> Files:
    files: Files = {}
    for split in SPLITS:
        encoded = [png(small.pixels(name, k)) for name, k in small.items(split)]
        images = [np.frombuffer(one, np.uint8)[:, None] for one in encoded] if as_arrays else encoded
        files[f"tiered-imagenet/{split}_images_png.pkl"] = pickle.dumps(images, protocol)
        labels = tiered_labels(small, split, protocol, byte_keys, "label_specific")
        files[f"tiered-imagenet/{split}_labels.pkl"] = labels
    return files


def npz_images(small: SmallSet, compressed: bool = False, key: str = "labels") -> Files:
    files: Files = {}
    for split in SPLITS:
        buffer = io.BytesIO()
        data, _ = small.array(split)
        (np.savez_compressed if compressed else np.savez)(buffer, images=data)
        files[f"{split}_images.npz"] = buffer.getvalue()
        files[f"{split}_labels.pkl"] = tiered_labels(small, split, 2, False, key)
    return files


def cifar_archive(small: SmallSet, protocol: int = 2, meta: bool = True) -> Files:
    names = sorted(small.split_of)
    files: Files = {}
    for part, k in (("train", 0), ("test", 1)):
        rows = np.stack([small.pixels(name, k).transpose(2, 0, 1).reshape(-1) for name in names])
        content = {
            b"data": rows,
            b"fine_labels": list(range(100)),
            b"coarse_labels": [0] * 100,
            b"filenames": [b"x"] * 100,
        }
        files[f"cifar-100-python/{part}"] = pickle.dumps(content, protocol)
    if meta:
        files["cifar-100-python/meta"] = pickle.dumps({b"fine_label_names": [n.encode() for n in names]}, protocol)
    return files


def alphabet_folders(small: SmallSet) -> Files:
    files: Files = {}
    for number, name in enumerate(sorted(small.split_of)):
        part = "images_background" if number % 3 else "images_evaluation"
        for k in range(small.per_class):
            drawing = np.full((small.side, small.side), True)
            drawing[number % 50 : number % 50 + 12, : 10 + k + number // 50] = False
            files[f"{part}/{name}/{number:04d}_{k:02d}.png"] = png(drawing)
    return files


def write_tree(path: Path, files: Files, container: str = "folder") -> Path:
    """The files in a folder or an archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if container == "folder":
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        return path
    target = path.with_name(f"{path.name}.{container}")
    if container == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return target
    with tarfile.open(target, "w" + (":gz" if container.endswith("gz") else "")) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target


@pytest.fixture(scope="session")
def write() -> SimpleNamespace:
    """Everything a test needs to write a data set."""
    return SimpleNamespace(
        small=SmallSet,
        png=png,
        csv_images=csv_images,
        split_folders=split_folders,
        class_folders=class_folders,
        shared_class_folders=shared_class_folders,
        listed_class_folders=listed_class_folders,
        labelled_pickles=labelled_pickles,
        cache_pickles=cache_pickles,
        png_pickles=png_pickles,
        npz_images=npz_images,
        cifar_archive=cifar_archive,
        alphabet_folders=alphabet_folders,
        tree=write_tree,
    )


@pytest.fixture
def photos(tmp_path) -> Path:
    """A user's own folder: 8 classes of 3 images, all formats and sizes."""
    formats = [("png", "PNG"), ("jpg", "JPEG"), ("webp", "WEBP"), ("bmp", "BMP"), ("tif", "TIFF"), ("gif", "GIF")]
    rng = np.random.default_rng(0)
    for number in range(8):
        for k in range(3):
            suffix, kind = formats[(number + k) % len(formats)]
            pixels = rng.integers(0, 256, (20 + 3 * number, 30 + k, 3), dtype=np.uint8)
            path = tmp_path / "photos" / f"species {number}" / f"{k}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(pixels, kind))
    return tmp_path / "photos"
