"""From runs/ to results/: what must last of a run, small enough to be kept beside the code.

results/<data set>/<run>/        config, environment, results, answers and test log as they are; metrics and schedules
                                 thinned; a log for reading; the best weights, large tensors in half precision
results/study/<study>/<run>/     the same of runs that tried settings out, without weights and with fewer lines
results/data_sets/<name>.json    the class index from which anyone can draw the same episodes again
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from e3bm.data.episodes.class_index import ClassIndex
from e3bm.data.source import open_dataset
from e3bm.errors import CheckpointError, DataError
from e3bm.report.run_data import RunData, read_run
from e3bm.report.tables import duration
from e3bm.runs.evaluation.ensemble import beside
from e3bm.runs.folder.checkpoint import STATE, WEIGHTS, Checkpoints, Which
from e3bm.runs.folder.files import read_json, write_bytes, write_json
from e3bm.runs.folder.run_folder import RunFolder

INDEX_FOLDER = "data_sets"
COPIED = ("environment.json", "results.json", "answers.json", "test_log.jsonl")
MOST_BYTES = 8_000_000
CONTINUED_BYTES = 2_000_000
EXACT_ELEMENTS = 20_000  # tensors up to this size stay exact: heads, hyperpriors and BatchNorm cost next to nothing
KEPT_LINES = {"metrics": 400, "schedules": 41}
COMPACT_LINES = {"metrics": 20, "schedules": 2}
DIGITS = 7  # of logged numbers: all that float32 has


def export_run(
    run: Path, results: Path, *, most_bytes: int = MOST_BYTES, place: str | None = None, compact: bool = False
) -> Path:
    """Copy a run that was tested, and the index of the data it was tested on; give its folder in results.

    It lies in a folder with the name of its data unless ``place`` names another; ``compact`` leaves its weights and
    most of its log behind.
    """
    folder, data = RunFolder(run), read_run(run)
    config, rows = folder.config(), folder.results()
    if not rows:
        raise CheckpointError(f"{run} has no results yet; test it first, then export it.")
    trained_on = config["settings"].get("data", {}).get("dataset") or rows[0]["dataset"]
    target = results / (place or Path(trained_on).name) / run.resolve().name
    if target.resolve() == run.resolve():
        return target
    shutil.rmtree(target / "checkpoints", ignore_errors=True)  # an earlier, unfinished state of the same run
    tested: Which = "best" if Checkpoints(run).has("best") else "last"
    weights = "weights not kept" if compact else _export_weights(run, target, tested, most_bytes)
    done, wanted = data.progress
    if not compact and done is not None and wanted is not None and done < wanted:
        _export_state(run, target)
    for name in COPIED:
        if (run / name).exists():
            write_bytes(target / name, (run / name).read_bytes())
    for name, most in (COMPACT_LINES if compact else KEPT_LINES).items():
        if lines := _thinned(list(folder.lines(name)), most):
            write_bytes(target / f"{name}.jsonl", "".join(_line(line) for line in lines).encode())
    write_bytes(target / "log.txt", _log(data, rows, weights).encode())
    for row in rows:
        _export_index(row, config["settings"].get("data", {}).get("folder"), results)
    # Last: where this file is, there is a run.
    write_json(target / "config.json", config | {"inputs": _accepted_inputs(config, run)})
    return target


def _export_weights(run: Path, target: Path, which: Which, most: int) -> str:
    """The weights that were tested, large tensors rounded; says in words what became of them."""
    checkpoints = Checkpoints(run)
    if not checkpoints.has(which):
        return "no weights of its own"
    exact = checkpoints.weights(which)
    content = safetensors.torch.save({name: _rounded(value) for name, value in exact.items()})
    if len(content) > most:
        return f"weights not kept ({len(content) / 1e6:.1f} MB)"
    step = read_json(checkpoints.folder / f"{which}.json")["step"]
    _write_checkpoint(target, which, step, {WEIGHTS: content})
    half = any(_rounded(value).dtype != value.dtype for value in exact.values())
    return "weights kept, large ones in half precision" if half else "weights kept exactly"


def _export_state(run: Path, target: Path) -> None:
    """Everything that is needed to continue an unfinished run, where it is small."""
    checkpoints = Checkpoints(run)
    if not checkpoints.has("last"):
        return
    content = {name: (checkpoints.place("last") / name).read_bytes() for name in (WEIGHTS, STATE)}
    if sum(map(len, content.values())) <= CONTINUED_BYTES:
        _write_checkpoint(target, "last", read_json(checkpoints.folder / "last.json")["step"], content)


def _write_checkpoint(target: Path, which: str, step: int, content: Mapping[str, bytes]) -> None:
    for name, part in content.items():
        write_bytes(target / "checkpoints" / which / name, part)
    digests = {name: hashlib.sha256(part).hexdigest() for name, part in content.items()}
    write_json(target / "checkpoints" / f"{which}.json", {"folder": which, "step": step, "sha256": digests})


def _rounded(value: Tensor) -> Tensor:
    if value.dtype != torch.float32 or value.numel() <= EXACT_ELEMENTS:
        return value.contiguous()
    half = value.half()
    return half.contiguous() if bool(torch.isfinite(half).all()) else value.contiguous()


def _accepted_inputs(config: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Digests of what the run read; a backbone that is exported rounded counts as the one it was."""
    inputs: dict[str, Any] = dict(config.get("inputs", {}))
    name, named = "pre-trained backbone", config["settings"].get("backbone", {}).get("pretrained")
    if name not in inputs or named is None or not Checkpoints(beside(run, Path(named))).has("best"):
        return inputs
    weights = Checkpoints(beside(run, Path(named))).weights("best")
    digest = hashlib.sha256()
    for key in sorted(key for key in weights if key.startswith("backbone.")):
        digest.update(key.removeprefix("backbone.").encode())
        digest.update(_rounded(weights[key]).to(weights[key].dtype).numpy().tobytes())
    known = inputs[name] if isinstance(inputs[name], list) else [inputs[name]]
    return inputs | {name: list(dict.fromkeys([*known, digest.hexdigest()]))}


def _export_index(row: Mapping[str, Any], folder: str | None, results: Path) -> None:
    path = results / INDEX_FOLDER / f"{row['dataset']}-{row['data_digest'][:8]}.json"
    if path.exists():
        return
    try:
        images = open_dataset(row["dataset"], folder)
    except DataError:
        return  # the images are not here any more; who has them can still check the hash
    if images.digest == row["data_digest"]:
        write_json(path, ClassIndex.of(images).as_json())


def _thinned(lines: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """All validations, and evenly chosen other lines, the last among them."""
    others = [number for number, line in enumerate(lines) if line.get("split") != "val"]
    every = -(-len(others) // most) if others else 1
    kept = set(others[::-1][::every])
    return [line for number, line in enumerate(lines) if line.get("split") == "val" or number in kept]


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps({key: _short(value) for key, value in record.items()}) + "\n"


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _log(data: RunData, rows: list[dict[str, Any]], weights: str) -> str:
    """The run as a person would tell it; made from the recorded metrics and results."""
    environment = data.environment
    command = environment.get("command")
    lines = [
        f"{data.title}: {data.name}",
        f"command   {' '.join(map(str, command)) if isinstance(command, list) else command or 'not recorded'}",
        f"commit    {environment.get('commit', 'not recorded')}",
        f"machine   {environment.get('processor', '?')}, {environment.get('cores', '?')} cores",
    ]
    done, wanted = data.progress
    unit = "epochs" if data.kind == "pretrain" else "steps"
    if done is not None and wanted is not None:
        lines.append(f"budget    {done:,g} of {wanted:,g} {unit}, about {duration(data.seconds)} of training")
    for line in data.metrics:
        if line.get("split") == "val":
            best = ", best so far" if line.get("best") else ""
            lines.append(f"step {line['step']:>6}  validation {line['accuracy']:.2f} +- {line['ci']:.2f} %{best}")
    lines.append(weights)
    lines += [
        f"test on {row['dataset']} {row['split']}, {row['ways']}-way {row['shots']}-shot: {row['accuracy']:.2f} +- "
        f"{row['ci']:.2f} % over {row['episodes']} episodes (hash {row['episodes_hash'][:12]})"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
