"""What was measured, in one file: results/classifier/measured.json.xz, by data set and cell."""

import json
import lzma
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e3bm.runs.folder.files import in_turn, write_bytes

Part = dict[str, Any]
"""about; rows: accuracy, likelihood and calibration of every classifier in every cell; cells: for 'W ways, K shots, E
episodes' the numbers of trust and of other questions; log: environment, command, parts and the digest of the prior of
every call, noted when it begins."""


def read(path: Path) -> dict[str, Part]:
    """All that is kept, by data set."""
    return dict(json.loads(lzma.decompress(path.read_bytes()))) if path.exists() else {}


def cell_name(ways: int, shots: int, episodes: int) -> str:
    """What a cell is called in the file."""
    return f"{ways} ways, {shots} shots, {episodes} episodes"


def claims_of(kind: str) -> str:
    """What the part of a cell is called that says how far claims hold with the numbers of trust of a kind of rows."""
    return f"claims of {kind}"


def flag_of(kind: str) -> str:
    """The name of the part of a cell with the flag for unknown examples alone, in place of what is with the claims."""
    return f"flag of {kind}"


def change_cell(path: Path, name: str, ways: int, shots: int, count: int, *, rows: list[Any], **parts: Any) -> None:
    """Replace the rows of one cell, where there are new ones, and some of its parts, of whatever number of episodes."""
    with _changing(path, name) as part:
        if rows:
            before = [row for row in part["rows"] if (row["ways"], row["shots"]) == (ways, shots)]
            others = [row for row in part["rows"] if row not in before]
            part["rows"] = sorted(
                [*others, *rows, *_still_true(before, rows)], key=lambda row: (row["ways"], row["shots"])
            )
        if parts:
            for other, cell in list(part["cells"].items()):
                left = cell if (cell["ways"], cell["shots"]) != (ways, shots) else _without(cell, parts)
                part["cells"][other] = left
                if left.keys() == {"ways", "shots"}:
                    del part["cells"][other]
            cell = part["cells"].setdefault(cell_name(ways, shots, count), {"ways": ways, "shots": shots})
            cell.update(parts)


def _still_true(before: list[Part], rows: list[Part]) -> list[Part]:
    """Rows of classifiers that were not measured again, if the others are as accurate as before on the same episodes.

    Differences of likelihood from ours are dropped: our temperatures may be new.
    """
    found = {row["method"]: row for row in rows}
    again = {row["method"]: row for row in before if row["method"] in found}
    same = lambda row, other: all(row[key] == other[key] for key in ("episodes_hash", "accuracy", "ci"))
    if again.keys() != found.keys() or not all(same(row, found[name]) for name, row in again.items()):
        return []
    kept_rows = [_without(row, ()) for row in before if row["method"] not in found]
    for row in kept_rows:
        if "ours_minus_this" in row:
            row["ours_minus_this"] = _without(row["ours_minus_this"], ("nll", "nll_ci"))
    return kept_rows


def _without(cell: Part, names: Collection[str]) -> Part:
    return {name: value for name, value in cell.items() if name not in names}


def add_to_log(path: Path, name: str, about: str, line: dict[str, Any]) -> None:
    """Note a call."""
    with _changing(path, name) as part:
        part["about"] = about
        part["log"].append(line)


@contextmanager
def _changing(path: Path, name: str) -> Iterator[Part]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(path.parent):
        kept = read(path)
        part = kept.setdefault(name, {"about": "", "rows": [], "cells": {}, "log": []})
        yield part
        text = json.dumps(kept, separators=(",", ":")) + "\n"
        write_bytes(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
