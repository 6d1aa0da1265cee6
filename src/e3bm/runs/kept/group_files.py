"""A kept run as a record, and the files that a group of such records is written as: small, since runs are alike."""

import hashlib
import io
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.numpy

from e3bm.json_files import parse_json
from e3bm.runs.folder.run import Record
from e3bm.settings import digest_of

FORMAT = 1
RUNS, LOGS, ANSWERS, WEIGHTS = "runs.jsonl.xz", "logs.jsonl.xz", "answers.npz", "weights.safetensors"
CURVES = ("epoch_accuracy", "reliability", "rates", "weights")  # of a result: kept with the logs
OWN = ("command", "commit")  # of an environment: kept with the run
ANSWERED = "answered"  # false in a result whose answers were not kept
GONE = "-"  # in a difference: names that the base has and this does not
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class KeptRun:
    """Everything that is kept of one run, as plain values."""

    name: str
    """Inside its group; with a slash for the parts of a study."""
    config: Record
    """What its config.json states."""
    environment: Record
    results: tuple[Record, ...]
    answers: tuple[np.ndarray | None, ...]
    """Right answers of every episode, one array per result."""
    metrics: tuple[Record, ...] = ()
    schedules: tuple[Record, ...] = ()
    test_log: tuple[Record, ...] = ()
    weights: Weights | None = None
    checkpoint: Record = field(default_factory=dict)
    """Which of its checkpoints the weights are, at which step, and in words whether they were rounded."""
    trained_for: str = ""
    """Time of training in words, by the whole log of which a part is kept."""
    extra: Record = field(default_factory=dict)
    """Further small files of the run, by name."""


def encode(records: Sequence[KeptRun], environments: dict[str, Record]) -> dict[str, bytes | None]:
    """The files of a group by name; environments that are new are added to the table."""
    base: dict[str, Record] = {}
    first = next((row for record in records for row in record.results), {})
    common = {key: value for key, value in first.items() if key not in CURVES}
    lines: list[Record] = []
    logs: list[Record] = []
    right: list[np.ndarray] = []
    for record in records:
        settings = record.config["settings"]
        kind = record.config["kind"]
        environment = {key: value for key, value in record.environment.items() if key not in OWN}
        name = digest_of(environment)[:8]
        environments[name] = environment
        rows = []
        for row, answers in zip(record.results, record.answers, strict=True):
            plain = {key: value for key, value in row.items() if key not in CURVES}
            rows.append(difference(plain, common) | ({ANSWERED: False} if answers is None else {}))
            right += [] if answers is None else [answers]
        lines.append(
            {
                "name": record.name,
                "kind": kind,
                "version": record.config.get("version", 1),
                "settings": difference(settings, base.setdefault(kind, settings)),
                "inputs": record.config.get("inputs", {}),
                "input_shape": record.config.get("input_shape"),
                "environment": name,
                **{key: record.environment.get(key) for key in OWN},
                "test_log": record.test_log,
                "checkpoint": record.checkpoint,
                "trained_for": record.trained_for,
                "extra": record.extra,
                "results": rows,
            }
        )
        curves = [{key: row[key] for key in CURVES if key in row} for row in record.results]
        logs.append({"name": record.name, "metrics": record.metrics, "schedules": record.schedules, "curves": curves})
    head = {"format": FORMAT, "base": base, "result": common}
    return {
        RUNS: _packed_lines([head, *lines]),
        LOGS: _packed_lines(logs),
        ANSWERS: _packed_answers(right),
        WEIGHTS: _packed_weights({each.name: each.weights for each in records if each.weights}),
    }


def _packed_lines(lines: Iterable[Record]) -> bytes:
    return lzma.compress(jsonl(lines), preset=9 | lzma.PRESET_EXTREME)


def _packed_answers(right: Sequence[np.ndarray]) -> bytes | None:
    if not right:
        return None
    joined = np.concatenate(right)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, right=joined.astype(np.min_scalar_type(int(joined.max(initial=0)))))
    return buffer.getvalue()


def _packed_weights(weights: Mapping[str, Weights]) -> bytes | None:
    """One file for all runs; a tensor that several have is stored once, under the first name that it has."""
    stored: Weights = {}
    first: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    same: dict[str, str] = {}
    for run, tensors in weights.items():
        for name, value in tensors.items():
            key = f"{run}/{name}"
            content = (value.dtype.str, value.shape, hashlib.sha256(np.asarray(value, order="C").tobytes()).digest())
            owner = first.setdefault(content, key)
            if owner == key:
                stored[key] = np.asarray(value, order="C")
            else:
                same[key] = owner
    if not stored:
        return None
    return safetensors.numpy.save(stored, {"same": json.dumps(same, sort_keys=True)})


def difference(value: Record, base: Record) -> Record:
    """What of a record is not as in the base; names that the base alone has stand under '-'."""
    changed: Record = {}
    for key, own in value.items():
        if key in base and type(own) is type(base[key]) and own == base[key]:
            continue
        nested = isinstance(own, dict) and isinstance(base.get(key), dict)
        changed[key] = difference(own, base[key]) if nested else own
    gone = [key for key in base if key not in value]
    return changed | ({GONE: gone} if gone else {})


def restored(changed: Record, base: Record) -> Record:
    """The record that a difference was taken from."""
    gone = set(changed.get(GONE, ()))
    found = {key: value for key, value in base.items() if key not in gone}
    for key, value in changed.items():
        if key != GONE:
            nested = isinstance(value, dict) and isinstance(base.get(key), dict)
            found[key] = restored(value, base[key]) if nested else value
    return found


def parse_lines(content: bytes) -> list[Record]:
    """The objects of a file with one in each line."""
    found = [parse_json(line) for line in content.splitlines()]
    if not all(isinstance(each, dict) for each in found):
        raise ValueError("a line is not an object")
    return found


def jsonl(lines: Iterable[Any]) -> bytes:
    """A file with one value in each line."""
    text = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
    return "".join(f"{line}\n" for line in text).encode()
