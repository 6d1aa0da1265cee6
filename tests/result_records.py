"""A complete result, as testing makes it, with made-up numbers."""

import math
from typing import Any

from e3bm.runs.result import Result

BINS = 15


def result_values(run: str, method: str, **changes: Any) -> dict[str, Any]:
    """Its plain values."""
    epochs = changes.get("epochs", 5)
    shares = [(i + 0.5) / BINS for i in range(BINS)]
    counts = [0.0] * 3 + [40.0 * (i + 1) for i in range(BINS - 3)]
    values: dict[str, Any] = {
        "method": method, "dataset": "glyphs", "split": "test", "accuracy": 61.25, "ci": 0.71, "nll": 1.012, "ece": 3.4,
        "episodes": 600, "episodes_hash": "0123456789abcdef0123", "episodes_seed": 1234, "data_digest": "d" * 64,
        "settings_digest": "s" * 16, "paired_with": None, "paired_difference": None, "paired_ci": None,
        "ways": 5, "shots": 1, "queries": 15, "setting": "inductive", "hyperprior": "none",
        "schedules": "alpha constant, v last", "trained_on": "glyphs", "train_seconds": 30.0,
        "batchnorm": "running", "transductive_batchnorm": False, "order": "second", "seed": 0, "commit": "abc123def456",
        "seconds": 10.0, "backbone": "conv4", "epochs": epochs, "parameters": 100_000,
        "epoch_accuracy": [61.25 - 12 * math.exp(-i / max(1, epochs / 4)) for i in range(epochs)],
        "reliability": {"confidence": shares, "accuracy": [0.85 * s for s in shares], "count": counts},
        "rates": [0.01] * epochs, "weights": [0.0] * (epochs - 1) + [1.0], "run": run, "checkpoint": "best",
    }  # fmt: skip
    return values | changes


def result_of(run: str, method: str, **changes: Any) -> Result:
    """The record."""
    return Result.model_validate(result_values(run, method, **changes))
