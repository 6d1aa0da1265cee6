"""`e3bm report`: run folders in, one self-contained page and its figures out."""

from collections.abc import Sequence
from pathlib import Path

from e3bm.report.figures import figures
from e3bm.report.page import page
from e3bm.report.run_data import Record, find_runs, read_run
from e3bm.tracking.files import storage_errors


def report(
    runs: Sequence[Path], out: Path, *, title: str = "E3BM report", rows: Sequence[Record] | None = None
) -> Path:
    """Write ``out/index.html`` and every figure as PNG and SVG beside it; give the path of the page.

    A folder that holds runs stands for all of them. ``rows`` replaces the results found in the runs, for instance by
    results aggregated over seeds.
    """
    read = [read_run(path) for path in find_runs([Path(path) for path in runs])]
    shown = [row for run in read for row in run.results] if rows is None else list(rows)
    sections = figures(read, shown)
    index = out / "index.html"
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        for drawing in (drawing for section in sections for drawing in section.drawings):
            (out / f"{drawing.name}.svg").write_text(drawing.svg, encoding="utf-8")
            (out / f"{drawing.name}.png").write_bytes(drawing.png)
        index.write_text(page(title, read, shown, sections), encoding="utf-8", errors="replace")
    return index
