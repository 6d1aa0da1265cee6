"""The results of a run, each with how many queries of every test episode its model got right, in one file.

The answers are enough to average seeds and to pair models afterwards. One file, because a result and the answers
behind it must not come from two tests; former versions kept the answers in a file of their own, which is still read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e3bm.errors import CheckpointError
from e3bm.runs.folder.files import read_json, write_json
from e3bm.runs.folder.upgrade import upgraded_result
from e3bm.runs.result import RIGHT_ANSWERS, Result, read_result

RESULTS_FILE = "results.json"
FORMER_FILE = "answers.json"


def keep_result(run: Path, result: Result, right: Sequence[int] | None = None) -> None:
    """Keep a test result with its right answers, one number per episode; one on the same episodes is replaced."""
    path = run / RESULTS_FILE
    old = [(read_result(upgraded_result(row), str(path)), row) for row in result_rows(run)]
    kept = [row for known, row in old if known.protocol != result.protocol]
    write_json(path, [*kept, result_row(result.as_json(), right)])
    (run / FORMER_FILE).unlink(missing_ok=True)  # what it held is in the rows now


def result_row(values: dict[str, Any], right: Sequence[int] | None) -> dict[str, Any]:
    """A result as a run folder keeps it."""
    # One string: thousands of numbers on lines of their own would bury the file's purpose.
    return values if right is None else {**values, RIGHT_ANSWERS: " ".join(map(str, right))}


def result_rows(run: Path, *, strict: bool = True) -> list[dict[str, Any]]:
    """The results of a run folder as plain values, with answers; not ``strict``, what is no result is left out."""
    path, former = run / RESULTS_FILE, run / FORMER_FILE
    rows = read_json(path) if path.exists() else []
    if isinstance(rows, list) and not strict:
        rows = [row for row in rows if isinstance(row, dict)]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CheckpointError(f"{path} is damaged: it is not a list of results. Restore it from a copy, or test again.")
    answers = read_json(former) if former.exists() else {}
    if not isinstance(answers, dict):
        raise CheckpointError(f"{former} is damaged: it does not hold answers by episodes.")
    return [_with_former(row, answers) for row in rows]


def read_answers(run: Path, result: Result) -> list[int] | None:
    """The right answers behind a result, or None where they were not kept."""
    wanted = list(result.protocol)
    for row in result_rows(run):
        if [row.get(name) for name in ("dataset", "split", "episodes_hash")] == wanted:
            found = row.get(RIGHT_ANSWERS)
            return None if found is None else _numbers(run / RESULTS_FILE, found, result)
    return None


def _numbers(path: Path, found: Any, result: Result) -> list[int]:
    try:
        right = [int(number) for number in found.split()]
    except (AttributeError, ValueError):
        raise CheckpointError(f"{path} is damaged: its right answers are not whole numbers.") from None
    if len(right) != result.episodes:
        raise CheckpointError(
            f"{path} has answers for {len(right)} episodes, but the result has {result.episodes}; test the run again."
        )
    return right


def _with_former(row: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    key = " ".join(str(row.get(name)) for name in ("dataset", "split", "episodes_hash"))
    return row if RIGHT_ANSWERS in row or key not in answers else {**row, RIGHT_ANSWERS: answers[key]}
