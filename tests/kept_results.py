"""What every kept run and every printed number must withstand: used on results/ itself and on made-up folders."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from e3bm.data.class_index import ClassIndex
from e3bm.evaluation.metrics import mean_and_interval, paired_difference
from e3bm.evaluation.protocol import check_row
from e3bm.report.paper_tables import paper_rows
from e3bm.tracking.files import read_json
from e3bm.tracking.run_folder import RunFolder
from e3bm.workflows.collect import KeptRun, baseline_of, collect_runs, entries

FILES = ("config.json", "environment.json", "results.json", "answers.json", "log.txt")
PAIR = re.compile(r"([+\-−]?\d+\.\d+)\s*(?:±|\+-|\+/-)\s*(\d+\.\d+)(?!\s*x)")
NUMBER = re.compile(r"(?<![\d.])(\d+\.\d+)(?![\d.x])")


def indexes(results: Path) -> dict[str, ClassIndex]:
    """Class indexes by the digest of their data."""
    found = [ClassIndex.from_json(read_json(path)) for path in sorted((results / "data_sets").glob("*.json"))]
    return {index.digest: index for index in found}


HASHES: dict[tuple[str, ...], str] = {}


def hash_of(index: ClassIndex, row: dict[str, Any]) -> str:
    """The hash of the episodes that a row states; many rows state the same, and drawing them takes a while."""
    stated = ("split", "ways", "shots", "queries", "episodes_seed", "episodes")
    key = (index.digest, *(str(row[name]) for name in stated))
    if key not in HASHES:
        HASHES[key] = index.hash_of(row)
    return HASHES[key]


def faults_of_run(run: KeptRun, known: dict[str, ClassIndex]) -> list[str]:
    """Everything that is wrong with a kept run."""
    faults = [f"{name} is missing" for name in FILES if not (run.path / name).is_file()]
    folder = RunFolder(run.path)
    if not str(run.record.environment.get("commit", "")).strip():
        faults.append("environment.json states no commit")
    if run.kind != "ensemble" and not list(folder.lines("metrics")):
        faults.append("metrics.jsonl is empty")
    if any(row["split"] == "test" for row in run.rows) and not list(folder.lines("test_log")):
        faults.append("the test classes were used and test_log.jsonl does not say so")
    for row in run.rows:
        faults += faults_of_row(run, row, known)
    return faults


def faults_of_row(run: KeptRun, row: dict[str, Any], known: dict[str, ClassIndex]) -> list[str]:
    """Everything that is wrong with a result."""
    check_row(row)
    faults = []
    if row["settings_digest"] != RunFolder(run.path).settings_digest():
        faults.append("the settings are not those of the result")
    index = known.get(row["data_digest"])
    if index is None:
        faults.append(f"there is no class index of {row['dataset']} with digest {row['data_digest'][:8]}")
    elif hash_of(index, row) != row["episodes_hash"]:
        faults.append("the episodes have another hash")
    values = run.accuracy(row)
    if values is None:
        return [*faults, "the answers were not kept"]
    mean, interval = mean_and_interval(values)
    if abs(mean - row["accuracy"]) > 1e-6 or abs(interval - row["ci"]) > 1e-6:
        faults.append(f"the answers give {mean:.3f} +- {interval:.3f}, not {row['accuracy']:.3f} +- {row['ci']:.3f}")
    return faults + _pairing_faults(run, row, values)


def _pairing_faults(run: KeptRun, row: dict[str, Any], values: torch.Tensor) -> list[str]:
    """The difference that a result states, recomputed where the other run is kept beside it."""
    named = re.search(r"\((?P<run>[^()]+)\)$", row["paired_with"] or "")
    beside = [] if named is None else collect_runs(run.path.parent / named["run"])
    for other in beside:
        for theirs in other.rows:
            if all(theirs[key] == row[key] for key in ("dataset", "split", "episodes_hash")):
                answers = other.accuracy(theirs)
                difference, interval = (0.0, 0.0) if answers is None else paired_difference(values, answers)
                if max(abs(difference - row["paired_difference"]), abs(interval - row["paired_ci"])) > 1e-6:
                    return [f"the difference to {named['run'] if named else '?'} is {difference:.3f} +- {interval:.3f}"]
    return []


def known_numbers(results: Path) -> set[tuple[float, float | None]]:
    """Accuracies and differences, each with its interval: of runs, of seeds together, and the paper's own."""
    runs = collect_runs(results) if results.exists() else []
    found: set[tuple[float, float | None]] = set()
    for run in runs:
        for row in run.rows:
            found |= {(row["accuracy"], row["ci"]), (row["paired_difference"] or 0.0, row["paired_ci"])}
    for folder in {run.path.parent for run in runs}:  # runs of one folder belong together
        together = entries([run for run in runs if run.path.parent == folder])
        for entry in together:
            numbers, paired = entry.numbers(), entry.paired(baseline_of(entry, together))
            found |= {(numbers["accuracy"], numbers["ci"]), (paired["paired_difference"] or 0.0, paired["paired_ci"])}
    for path in sorted(results.glob("classifier/*/rows.json")):
        for row in read_json(path):
            ours = row.get("ours_minus_this", row)
            found |= {(row["accuracy"], row["ci"]), (ours["accuracy"], ours["ci"])}
    for path in sorted(results.glob("study/levelling/rows.json")):
        for row in read_json(path):
            found |= {(row["accuracy"], row["ci"]), (row["paired_difference"], row["paired_ci"])}
    for table in ("T1", "T2", "S1", "S2"):
        found |= {(row.accuracy, row.ci) for row in paper_rows(table)}
        found |= {(row.published_code or 0.0, row.published_code_ci) for row in paper_rows(table)}
    return found


def unfounded_numbers(markdown: str, known: Iterable[tuple[float, float | None]]) -> list[str]:
    """Numbers in Markdown tables that no result has: all 'x ± y', and all numbers in columns that say 'ours'."""
    known = list(known)
    missing = []
    for header, line in _table_lines(markdown):
        cells = _cells(line)
        for text, interval in PAIR.findall(line):
            if not any(ci is not None and _same(value, text) and _same(ci, interval) for value, ci in known):
                missing.append(f"{text} ± {interval}")
        for name, cell in zip(_cells(header), cells, strict=False):
            if name.lower().startswith("ours"):
                alone = NUMBER.findall(PAIR.sub(" ", cell))
                missing += [text for text in alone if not any(_same(value, text) for value, _ in known)]
    return missing


def _table_lines(markdown: str) -> Iterable[tuple[str, str]]:
    """Every line of a table's body with the table's first line."""
    header = ""
    for line in markdown.splitlines():
        if not line.lstrip().startswith("|"):
            header = ""
        elif not header:
            header = line
        elif not re.fullmatch(r"[|\s:\-]+", line):
            yield header, line


def _cells(line: str) -> list[str]:
    return [cell.strip(" *") for cell in line.strip().strip("|").split("|")]


def _same(value: float, printed: str) -> bool:
    """Whether a number, rounded as it is printed, is what is printed."""
    plain = printed.replace("−", "-").lstrip("+")
    return f"{value:.{len(plain.partition('.')[2])}f}" == plain
