"""What left-out accuracy says of new examples: its mean and that of the corrected estimate beside the truth, per cell.

Pools: scikit-learn's digits (64 pixels), and EfficientNet-Lite0 features of miniImageNet's 16 validation classes and of
the first 6 bird species in the folder that E3BM_TEST_DATA names. Support sets are random, with up to 20 queries of each
class.

    python scripts/measure_left_out.py --out results/classifier/left_out.jsonl
"""

import argparse
import csv
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from e3bm.fewshot.fitted_head import FitOptions, fit_head
from e3bm.fewshot.networks.choice import choose_backbone
from e3bm.fewshot.prior.file import load_prior

Pool = tuple[np.ndarray, np.ndarray]
QUERIES = 20


def digits() -> Pool:
    found = load_digits()
    return found.data.astype(np.float32), found.target


def photos(archive: str, names_of: Callable[[zipfile.ZipFile], dict[str, list[str]]], most: int) -> Pool:
    extractor = choose_backbone("lite0")
    with zipfile.ZipFile(Path(os.environ["E3BM_TEST_DATA"]) / archive) as file:
        rows = [extractor([file.read(name) for name in names[:most]]) for _, names in sorted(names_of(file).items())]
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(some) for some in rows])


def validation_classes(file: zipfile.ZipFile) -> dict[str, list[str]]:
    there = {name.rsplit("/", 1)[-1]: name for name in file.namelist()}
    table = next(name for name in file.namelist() if name.endswith("split/val.csv"))
    found: dict[str, list[str]] = {}
    for row in csv.DictReader(io.StringIO(file.read(table).decode())):
        if row["filename"] in there:
            found.setdefault(row["label"], []).append(there[row["filename"]])
    return found


def species(file: zipfile.ZipFile) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(name for name in file.namelist() if name.endswith(".jpg")):
        found.setdefault(name.split("/")[-2], []).append(name)
    return dict(sorted(found.items())[:6])


POOLS: dict[str, Callable[[], Pool]] = {
    "digits": digits,
    "miniImageNet's validation classes": lambda: photos("miniimagenet_trainval_100.zip", validation_classes, 40),
    "6 bird species": lambda: photos("birds_photos.zip", species, 30),
}


def cell(pool: Pool, ways: int, shots: int, episodes: int) -> dict[str, float]:
    """Means over support sets, in percent, and the root mean square error of both estimates."""
    features, labels = pool
    random, prior, rows = np.random.default_rng([ways, shots]), load_prior(), []
    for _ in range(episodes):
        support, query = [], []
        for name in random.choice(np.unique(labels), ways, replace=False):
            places = random.permutation(np.flatnonzero(labels == name))
            support.append(features[places[:shots]])
            query.append(features[places[shots : shots + QUERIES]])
        head = fit_head(prior, np.concatenate(support), np.repeat(np.arange(ways), shots), ways, FitOptions())
        answers = np.repeat(np.arange(ways), [len(some) for some in query])
        truth = float((head.scores(np.concatenate(query)).argmax(1) == answers).mean())
        rows.append((head.left_out_accuracy, head.expected_accuracy, truth))
    table = 100 * np.array(rows, dtype=float)
    left_out, expected, truth = table.mean(0)
    errors = np.sqrt(np.square(table[:, :2] - table[:, 2:]).mean(0))
    return {
        "left_out": left_out, "expected": expected, "truth": truth,
        "left_out_rmse": errors[0], "expected_rmse": errors[1],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=20)
    options = parser.parse_args()
    with options.out.open("w") as file:
        for name, make in POOLS.items():
            pool = make()
            for ways in (2, 5, 6, 10, 16):
                if ways > len(np.unique(pool[1])) or (ways == 6) != (name == "6 bird species"):
                    continue
                for shots in (2, 3, 5, 10):
                    found = cell(pool, ways, shots, options.episodes)
                    rounded = {key: round(value, 1) for key, value in found.items()}
                    line = {"pool": name, "ways": ways, "shots": shots, "episodes": options.episodes, **rounded}
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    print(line)


if __name__ == "__main__":
    main()
