"""`e3bm demo`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from e3bm.cli.console import parse, print_json, progress_here


@dataclass(frozen=True)
class Options:
    """How much, and where."""

    size: Literal["tiny", "small", "full"] = "small"
    """tiny: to see that it works; small: minutes; full: a careful run, hours."""
    run: Path = Path("runs/demo")
    """Folder for all runs and the report; the same folder again continues or repeats."""
    workers: int = 2
    """Models trained at the same time, one process each."""
    json: bool = False
    """A list of result rows."""


def run(words: Sequence[str]) -> int:
    about = "Pre-train, meta-train MTL, SIB and MAML with and without E3BM on the embedded glyphs, test all, report."
    options = parse(Options, words, "demo", about)
    from e3bm.paper.demo import run_demo
    from e3bm.report.tables import results_table
    from e3bm.report.verdict import verdicts

    demo = run_demo(options.size, options.run, progress_here(), options.workers)
    if options.json:
        print_json([result.as_json() for result in demo.results])
        return 0
    print(results_table(demo.results).text())
    for verdict in verdicts(demo.results, []):
        print("\n".join([verdict.answer, *verdict.sentences, verdict.caution]))
    print(f"\nAll rows: the same {demo.results[0].episodes} episodes of unseen characters. Report: {demo.page}")
    return 0
