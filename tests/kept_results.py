"""What every kept run and every printed number must withstand: used on results/ itself and on made-up folders."""

import json
import lzma
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import product
from pathlib import Path

from e3bm.data.episodes.class_index import ClassIndex
from e3bm.errors import SettingsError
from e3bm.paper.tables import paper_rows
from e3bm.report.compare import Question, compare, compared_runs
from e3bm.report.result_words import method_words
from e3bm.runs.folder.run import Run
from e3bm.runs.kept.entries import baseline_entry, entries, recomputed
from e3bm.runs.kept.store import KeptResults
from e3bm.runs.result import Result

ROUNDING = 1e-6
AGAINST = "nearest class mean resnet12 x0.5 whitened"
PAIR = re.compile(r"([+\-−]?\d+\.\d+)\s*(?:±|\+-|\+/-)\s*(\d+\.\d+)(?!\s*x)")
INTERVALS = (("ours_minus", "ours_minus_interval"), ("more_than_lite0", "more_interval"))
"""How scripts call a number and its interval, apart from `accuracy` and NAME_ci."""
NUMBER = re.compile(r"(?<![\d.])(\d+\.\d+)(?![\d.x])")


def indexes(results: Path) -> dict[str, ClassIndex]:
    """Class indexes by the digest of their data."""
    return {index.digest: index for index in map(ClassIndex.from_json, KeptResults(results).indexes())}


HASHES: dict[tuple[str, ...], str] = {}


def hash_of(index: ClassIndex, result: Result) -> str:
    """The hash of the episodes that a result states; many state the same, and drawing them takes a while."""
    stated = ("split", "ways", "shots", "queries", "query_shares", "episodes_seed", "episodes")
    key = (index.digest, *(str(getattr(result, name)) for name in stated))
    if key not in HASHES:
        HASHES[key] = index.hash_of(result)
    return HASHES[key]


def faults_of_run(run: Run, among: Iterable[Run], known: dict[str, ClassIndex]) -> list[str]:
    """Everything that is wrong with a kept run; ``among`` are those that it may be compared with."""
    faults = []
    if not str(run.environment.get("commit", "")).strip() or not run.environment.get("command"):
        faults.append("no commit or no command is stated")
    if run.kind != "ensemble" and not run.metrics:
        faults.append("there are no metrics")
    steps = any(line.get("split") == "train" for line in run.metrics)  # none where there is nothing to train
    if run.trained and run.trained.inner and run.kind == "train" and steps and not run.schedules:
        faults.append("there are no schedules")
    if any(result.split == "test" for result in run.results) and not run.test_log:
        faults.append("the test classes were used and the log does not say so")
    for result in run.results:
        faults += faults_of_result(run, result, known)
    return faults + recomputed(run) + pairing_faults(run, among)


def faults_of_result(run: Run, result: Result, known: dict[str, ClassIndex]) -> list[str]:
    """Settings that are not those of the result, and episodes that cannot be drawn again."""
    faults = []
    if result.settings_digest != run.settings_digest:
        faults.append("the settings are not those of the result")
    index = known.get(result.data_digest)
    if index is None:
        faults.append(f"there is no class index of {result.dataset} with digest {result.data_digest[:8]}")
    elif hash_of(index, result) != result.episodes_hash:
        faults.append("the episodes have another hash")
    return faults


def pairing_faults(run: Run, among: Iterable[Run]) -> list[str]:
    """Differences that results state, recomputed where the other run is kept beside this one."""
    faults = []
    for result in run.results:
        named = re.search(r"\((?P<run>[^()]+)\)$", result.paired_with or "")
        others = [each for each in among if named and each.path == run.path.parent / named["run"]]
        for other in others:
            paired = [theirs for theirs in other.results if theirs.protocol == result.protocol]
            ours = entries([run])
            theirs = entries([other])
            for mine in (each for each in ours if paired and each.protocol == result.protocol):
                partner = next(each for each in theirs if each.protocol == result.protocol)
                found = mine.together(partner)
                stated = (result.paired_difference, result.paired_ci)
                again = (found.paired_difference, found.paired_ci)
                if None not in again and any(abs(a - b) > ROUNDING for a, b in zip(stated, again, strict=True)):
                    faults.append(f"the difference to {other.name} is {again[0]:.3f} +- {again[1]:.3f}")
    return faults


def known_numbers(results: Path) -> set[tuple[float, float | None]]:
    """Accuracies and differences, each with its interval: of runs, of seeds together, and the paper's own."""
    runs = KeptResults(results).runs()
    found: set[tuple[float, float | None]] = set()
    for folder in {run.path.parent for run in runs}:  # runs of one folder belong together
        own = [run for run in runs if run.path.parent == folder]
        found |= {pair for run in own for result in run.results for pair in _numbers(result)}
        together = entries(own)
        for entry in together:
            found |= _numbers(entry.together(baseline_entry(entry, together)))
    measured = results / "classifier" / "measured.json.xz"
    if measured.exists():
        found |= _pairs(json.loads(lzma.decompress(measured.read_bytes())))
    for name in ("text", "networks"):
        lines = results / "classifier" / f"{name}.jsonl"
        if lines.exists():
            found |= _pairs([json.loads(line) for line in lines.read_text().splitlines()])
    whitening = results / "study" / "whitening.json"
    if whitening.exists():
        for row in json.loads(whitening.read_text())["rows"]:
            found |= {(row["accuracy"], row["ci"]), (row["paired_difference"], row["paired_ci"])}
    tabled = compared_runs(KeptResults(results))
    for shots, uneven in product((1, 5), (False, True)):  # the tables of `e3bm compare` that docs/results_tables.md has
        with suppress(SettingsError):  # nothing was measured
            for result in compare(tabled, Question("fc100", shots, against=AGAINST, uneven=uneven)):
                found |= _numbers(result)
    for shots in (1, 5):  # what E3BM adds to methods that have nothing to train alone
        with suppress(SettingsError):
            for alone in compare(tabled, Question("fc100", shots)):
                if alone.hyperprior == "none" and not alone.train_seconds:
                    against = f"{method_words(alone)}, {alone.backbone}"
                    paired = compare(tabled, Question("fc100", shots, against=against))
                    found |= set().union(*map(_numbers, paired))
    for table in ("T1", "T2", "S1", "S2"):
        found |= {(row.accuracy, row.ci) for row in paper_rows(table)}
        found |= {(row.published_code or 0.0, row.published_code_ci) for row in paper_rows(table)}
    return found


def _pairs(value: object) -> set[tuple[float, float | None]]:
    """Every number that has an interval beside it, wherever it stands among what scripts wrote."""
    if isinstance(value, list):
        return set().union(*map(_pairs, value))
    if not isinstance(value, dict):
        return set()
    found = set().union(*map(_pairs, value.values()))
    for name, interval in (("accuracy", "ci"), ("accuracy", "interval"), *INTERVALS):
        if name in value and interval in value:
            found.add((value[name], value[interval]))
    found |= {(value[name], value[f"{name}_ci"]) for name in value if f"{name}_ci" in value}
    if "minus_ours" in value:
        found.add(tuple(value["minus_ours"]))
    return found


def _numbers(result: Result) -> set[tuple[float, float | None]]:
    return {(result.accuracy, result.ci), (result.paired_difference or 0.0, result.paired_ci)}


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
