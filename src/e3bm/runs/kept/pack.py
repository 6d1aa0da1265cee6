"""From a run folder into kept results, and from there back to a run folder that can be tested and reported."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from e3bm.data.episodes.class_index import ClassIndex
from e3bm.data.source import open_dataset
from e3bm.errors import CheckpointError, DataError
from e3bm.runs.folder.answers import RESULTS_FILE, result_row
from e3bm.runs.folder.checkpoint import WEIGHTS, Checkpoints
from e3bm.runs.folder.files import in_turn, storage_errors, write_bytes, write_json, write_lines
from e3bm.runs.folder.relatives import INSIDE, digest_of_weights
from e3bm.runs.folder.run import BACKBONE, EnsembleSettings, Record, Run, beside, duration, read_run
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.kept.group_files import KeptRun, Weights
from e3bm.runs.kept.store import KeptGroup, KeptResults, kept_run

# Weights are kept where other runs are built on them, and where they cost next to nothing.
MOST_BYTES = {"pretrain": 8_000_000}
MOST_OTHER_BYTES = 100_000
EXACT_ELEMENTS = 20_000  # tensors up to this size stay exact: heads, hyperpriors and BatchNorm cost next to nothing
KEPT_LINES = {"metrics": 400, "schedules": 41}
COMPACT_LINES = {"metrics": 20, "schedules": 2}
DIGITS = 7  # of logged numbers: all that float32 has


def add_runs(
    runs: Sequence[Path],
    root: Path,
    *,
    group: str | None = None,
    compact: bool = False,
    most_bytes: int | None = None,
) -> list[str]:
    """Keep tested runs, and the indexes of the data they were tested on; give their places in the results.

    A run goes to the group with the name of its data unless ``group`` names another, such as study/NAME; a run of the
    same name is replaced. ``compact`` leaves weights and most of the log behind; weights above ``most_bytes`` stay
    behind too, by default all but those of backbones and of small heads.
    """
    packed: dict[str, list[KeptRun]] = {}
    indexes = {index["digest"]: index for index in KeptResults(root).indexes()}
    for path in runs:
        run = read_run(path)
        if not run.results:
            raise CheckpointError(f"{path} has no results yet; test it first, then add it to the results.")
        trained_on = run.setting("data.dataset") or run.results[0].dataset
        place, _, part = (group or Path(trained_on).name).partition("/")
        name = f"{part}/{run.name}" if part else run.name
        packed.setdefault(place, []).append(pack(run, name, compact=compact, most_bytes=most_bytes))
        indexes |= _indexes(run, known=indexes)
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    with in_turn(root):  # another process may add runs at this moment
        results = KeptResults(root)
        whole = {}
        for place, added in packed.items():
            old = results.group(place).with_weights() if place in results.groups else []
            names = {each.name for each in added}
            whole[place] = [*(each for each in old if each.name not in names), *added]
        results.write(whole, list(indexes.values()))
    return [f"{place}/{each.name}" for place, added in packed.items() for each in added]


def pack(run: Run, name: str, *, compact: bool = False, most_bytes: int | None = None) -> KeptRun:
    """What must last of a run: logs thinned, the tested weights with large tensors in half precision."""
    most = MOST_BYTES.get(run.kind, MOST_OTHER_BYTES) if most_bytes is None else most_bytes
    weights, checkpoint = (None, {"words": "weights not kept"}) if compact else _tested_weights(run.path, most)
    lines = COMPACT_LINES if compact else KEPT_LINES
    logged = {
        kind: tuple(_short(line) for line in thinned(list(RunFolder(run.path).lines(kind)), most))
        for kind, most in lines.items()
    }
    config = RunFolder(run.path).written()
    answers = [run.answers(result) for result in run.results]
    return KeptRun(
        name=name,
        config=config | {"inputs": _accepted_inputs(run)},
        environment=run.environment,
        results=tuple(result.as_json() for result in run.results),
        answers=tuple(None if right is None else np.asarray(right) for right in answers),
        metrics=logged["metrics"],
        schedules=logged["schedules"],
        test_log=run.test_log,
        weights=weights,
        checkpoint=checkpoint,
        trained_for=duration(run.seconds),
    )


def unpack(place: str, root: Path, target: Path, *, relatives: bool = True) -> list[Path]:
    """Make run folders of a kept run, or of all whose place begins with the words, in ``target``; gives the folders.

    With ``relatives`` what a run needs comes along beside it: its backbone, the members of an ensemble, and the run
    whose learned values it has.
    """
    results = KeptResults(root)
    results.check_exists()
    group, _, name = place.partition("/")
    if group not in results.groups:
        raise CheckpointError(f"{root} keeps no group '{group}'; there are {', '.join(results.groups) or 'none'}.")
    kept = results.group(group)
    names = [each for each in kept.kinds if name in ("", each) or each.startswith(f"{name}/")]
    if not names:
        kept.record(name)  # says that there is no such run
    if relatives:
        backbones = _backbones(kept)
        names += [other for each in names for other in _relatives(kept, each, backbones)]
    return [write_folder(kept.record(each), target / Path(each).name) for each in dict.fromkeys(names)]


def as_folder(path: Path, runs: Path = Path("runs")) -> Path:
    """A run folder as it is; a run that is kept under such a place becomes one in ``runs``, with what it needs."""
    kept = None if path.exists() else kept_run(path)
    if kept is None:
        return path
    group, name = kept
    if group.weights(name) is None and group.kinds[name] != "ensemble":
        raise CheckpointError(
            f"{path} is kept without its weights and cannot be tested again; its results are there: "
            f"`e3bm report {path}` shows them."
        )
    return unpack(f"{group.folder.name}/{name}", group.folder.parent, runs / group.folder.name)[0]


def write_folder(kept: KeptRun, folder: Path) -> Path:
    """A run folder with everything that is kept; a folder that is there already must hold the same run."""
    if RunFolder(folder).exists:
        if RunFolder(folder).written()["settings"] != kept.config["settings"]:
            raise CheckpointError(f"{folder} holds another run of that name; unpack into another folder with --out.")
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder} is not empty but does not hold a run; unpack into another folder with --out.")
    if kept.weights is not None:
        _write_checkpoint(folder, kept)
    write_json(folder / "environment.json", kept.environment)
    for name, lines in (("metrics", kept.metrics), ("schedules", kept.schedules), ("test_log", kept.test_log)):
        if lines:
            write_lines(folder / f"{name}.jsonl", lines)
    if kept.results:
        pairs = zip(kept.results, kept.answers, strict=True)
        rows = [result_row(row, None if right is None else right.tolist()) for row, right in pairs]
        write_json(folder / RESULTS_FILE, rows)
    for name, content in kept.extra.items():
        write_bytes(folder / name, content.encode()) if isinstance(content, str) else write_json(folder / name, content)
    # Last: where this file is, there is a run.
    write_json(folder / "config.json", kept.config)
    if "log.txt" not in kept.extra:
        write_bytes(folder / "log.txt", story(read_run(folder), kept).encode())
    return folder


def story(run: Run, kept: KeptRun) -> str:
    """The run as a person would tell it; made from the recorded metrics and results."""
    environment = run.environment
    command = environment.get("command")
    lines = [
        f"{run.title}: {run.name}",
        f"command   {' '.join(map(str, command)) if isinstance(command, list) else command or 'not recorded'}",
        f"commit    {environment.get('commit', 'not recorded')}",
        f"machine   {environment.get('processor', '?')}, {environment.get('cores', '?')} cores",
    ]
    done, wanted = run.progress
    unit = "epochs" if run.kind == "pretrain" else "steps"
    if done is not None and wanted is not None:
        lines.append(f"budget    {done:,g} of {wanted:,g} {unit}, about {kept.trained_for} of training")
    for line in run.metrics:
        if line.get("split") == "val" and {"step", "accuracy", "ci"} <= line.keys():
            best = ", best so far" if line.get("best") else ""
            lines.append(f"step {line['step']:>6}  validation {line['accuracy']:.2f} +- {line['ci']:.2f} %{best}")
    lines += [kept.checkpoint["words"]] if kept.checkpoint.get("words") else []
    lines += [
        f"test on {result.dataset} {result.split}, {result.task}: {result.accuracy:.2f} +- "
        f"{result.ci:.2f} % over {result.episodes} episodes (hash {result.episodes_hash[:12]})"
        for result in run.results
    ]
    return "\n".join(lines) + "\n"


def thinned(lines: list[Record], most: int) -> list[Record]:
    """All validations, and evenly chosen other lines, the last among them."""
    others = [number for number, line in enumerate(lines) if line.get("split") != "val"]
    every = -(-len(others) // most) if others else 1
    kept = set(others[::-1][::every])
    return [line for number, line in enumerate(lines) if line.get("split") == "val" or number in kept]


def _tested_weights(run: Path, most: int) -> tuple[Weights | None, Record]:
    """The weights that were tested, large tensors rounded, and in words what became of them."""
    checkpoints = Checkpoints(run)
    which = checkpoints.tested()
    if not checkpoints.has(which):
        return None, {"words": "no weights of its own"}
    exact = {name: value.numpy() for name, value in checkpoints.weights(which).items()}
    kept = {name: rounded(value) for name, value in exact.items()}
    size = sum(value.nbytes for value in kept.values())
    step = checkpoints.pointer(which).step
    if size > most:
        return None, {"words": f"weights not kept ({size / 1e6:.1f} MB)"}
    half = any(kept[name].dtype != exact[name].dtype for name in exact)
    words = "weights kept, large ones in half precision" if half else "weights kept exactly"
    return kept, {"which": which, "step": step, "words": words}


def rounded(value: np.ndarray) -> np.ndarray:
    """Large tensors in half precision, unless that is too narrow for one of their numbers."""
    if value.dtype != np.float32 or value.size <= EXACT_ELEMENTS:
        return value
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    return half if bool(np.isfinite(half).all()) else value


def _write_checkpoint(folder: Path, kept: KeptRun) -> None:
    assert kept.weights is not None
    which = kept.checkpoint.get("which", "best")
    content = safetensors.numpy.save({name: np.asarray(value, order="C") for name, value in kept.weights.items()})
    write_bytes(folder / "checkpoints" / which / WEIGHTS, content)
    pointer = {"folder": which, "step": kept.checkpoint.get("step", 0)}
    pointer["sha256"] = {WEIGHTS: hashlib.sha256(content).hexdigest()}
    write_json(folder / "checkpoints" / f"{which}.json", pointer)


def _accepted_inputs(run: Run) -> dict[str, Any]:
    """Digests of what the run read; a backbone that is kept rounded counts as the one it was."""
    inputs: dict[str, Any] = {name: known[0] if len(known) == 1 else list(known) for name, known in run.inputs.items()}
    named = run.trained.backbone.pretrained if run.trained else None
    if BACKBONE not in inputs or named is None or not Checkpoints(beside(run.path, named)).has("best"):
        return inputs
    weights = Checkpoints(beside(run.path, named)).weights("best")
    digest = _backbone_digest({name: rounded(value.numpy()) for name, value in weights.items()})
    return inputs | {BACKBONE: list(dict.fromkeys([*run.inputs[BACKBONE], digest]))}


def _relatives(group: KeptGroup, name: str, backbones: Mapping[str, str]) -> list[str]:
    """Names of the runs that a run needs to be tested, those that they need among them."""
    run = next(each for each in group.runs if str(each.path.relative_to(group.folder)) == name)
    beside_it = lambda named: str(Path(name).parent / named.name)
    wanted: list[str] = []
    if isinstance(run.settings, EnsembleSettings):
        wanted += [beside_it(member) for member in run.settings.members]
    if run.trained is not None:
        wanted += [backbones[digest] for digest in run.inputs.get(BACKBONE, ()) if digest in backbones][:1]
        source = run.trained.hyperprior.frozen_from
        wanted += [beside_it(source)] if source is not None else []
    found = [each for each in wanted if each in group.kinds]
    return [*found, *(other for each in found for other in _relatives(group, each, backbones))]


def _backbones(group: KeptGroup) -> dict[str, str]:
    """Names of kept pre-trainings by the digest of their backbone."""
    found = {}
    for name, kind in group.kinds.items():
        if kind == "pretrain" and (weights := group.weights(name)):
            found[_backbone_digest(weights)] = name
    return found


def _backbone_digest(weights: Weights) -> str:
    inside = {name.removeprefix(INSIDE): value for name, value in weights.items() if name.startswith(INSIDE)}
    return digest_of_weights({name: torch.from_numpy(value) for name, value in inside.items()})


def _indexes(run: Run, known: Mapping[str, Record]) -> dict[str, Record]:
    found = {}
    for result in run.results:
        if result.data_digest in known:
            continue
        try:
            images = open_dataset(result.dataset, run.setting("data.folder"))
        except DataError:
            continue  # the images are not here any more; who has them can still check the hash
        if images.digest == result.data_digest:
            found[result.data_digest] = ClassIndex.of(images).as_json()
    return found


def _short(record: Mapping[str, Any]) -> Record:
    return {key: _short_value(value) for key, value in record.items()}


def _short_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_short_value(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
