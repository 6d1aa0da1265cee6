"""python -m benchmarks.page: put the numbers of results/bench into docs/performance.md, between its marks."""

import json
import re
from pathlib import Path

from benchmarks.rows import Row, Table, rows_markdown

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = "systems"  # a run of its own, in a folder inside
PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "results" / "bench"
MARK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def parts(folder: Path = RESULTS) -> dict[str, str]:
    """The tables of a run by name; ``targets`` are the rows with a target, ``machine`` is where it ran.

    What was measured apart, of all methods, has its targets and its machine under names of their own.
    """
    apart = parts(folder / SYSTEMS) if (folder / SYSTEMS).is_dir() else {}
    own = {f"{name} of methods" if name in ("targets", "machine") else name: text for name, text in apart.items()}
    return own | _measured(folder)


def _measured(folder: Path) -> dict[str, str]:
    if not (folder / "machine.json").exists():
        return {}
    read = lambda name: json.loads((folder / name).read_text(encoding="utf-8"))
    rows = [Row(**row) for row in read("bench.json")]
    tables = [
        Table(t["name"], t["about"], tuple(t["columns"]), tuple(map(tuple, t["lines"]))) for t in read("tables.json")
    ]
    about = read("machine.json")
    speed, load = about["sgemm_gflops_one_thread"], about["load_average_at_begin"][0]
    machine = (
        f"{about['processor']}, {about['cores']} cores, {about['vector_instructions']}; torch "
        f"{about['packages']['torch']}; {speed} GFLOP/s of sgemm on one thread; load average {load} at the start, "
        f"{about['minutes']} minutes; commit {about['commit']}.\n"
    )
    return {"targets": rows_markdown(rows), "machine": machine} | {
        table.name: table.about + "\n\n" + table.markdown().split("\n\n", 2)[2] for table in tables
    }


def filled(page: str, found: dict[str, str]) -> str:
    """The page with every marked place filled; a table that was not measured says so."""
    return MARK.sub(lambda place: place[1] + found.get(place[2], "Not measured in this run.\n") + place[3], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), parts()), encoding="utf-8")
