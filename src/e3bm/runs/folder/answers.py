"""How many queries of each test episode a model got right: enough to average seeds and to pair models afterwards."""

from collections.abc import Sequence
from pathlib import Path

from e3bm.errors import CheckpointError
from e3bm.runs.folder.files import read_json, write_json
from e3bm.runs.result import Result

ANSWERS_FILE = "answers.json"


def keep_answers(run: Path, result: Result, right: Sequence[int]) -> None:
    """Keep the right answers behind a result, one number per episode."""
    path = run / ANSWERS_FILE
    known = read_json(path) if path.exists() else {}
    # One string: thousands of numbers on lines of their own would bury the file's purpose.
    write_json(path, known | {" ".join(result.protocol): " ".join(map(str, right))})


def read_answers(run: Path, result: Result) -> list[int] | None:
    """The right answers behind a result, or None where they were not kept."""
    path = run / ANSWERS_FILE
    found = read_json(path).get(" ".join(result.protocol)) if path.exists() else None
    if found is None:
        return None
    try:
        right = [int(number) for number in found.split()]
    except (AttributeError, ValueError):
        raise CheckpointError(f"{path} is damaged: it does not hold whole numbers.") from None
    if len(right) != result.episodes:
        raise CheckpointError(f"{path} has {len(right)} episodes where the result has {result.episodes}.")
    return right
