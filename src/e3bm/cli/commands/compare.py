"""`e3bm compare`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from e3bm.cli.console import columns_here, parse, print_json, show
from e3bm.errors import some_of

if TYPE_CHECKING:
    from e3bm.runs.result import Result

MOST_NAMED = 3


@dataclass(frozen=True)
class Options:
    """Which tasks, and which runs."""

    dataset: str = "fc100"
    """Data set of the test tasks."""
    shots: tuple[int, ...] = (1, 5)
    """Labelled examples per class; one table each."""
    ways: int = 5
    """Classes in a task."""
    split: str = "test"
    """test or val."""
    against: str = ""
    """The row that all others are compared with: its method, or as much of its name as no other has (method, what tells
    it apart, backbone); unset: the best one."""
    queries: Literal["even", "uneven"] = "even"
    """Results on episodes with equal or unequal numbers of queries per class (`e3bm test --query-shares`)."""
    ablations: bool = False
    """Also ablations of alpha and v."""
    results: Path = Path("results")
    """Folder of kept results."""
    runs: tuple[Path, ...] = ()
    """Further run folders, or folders of them."""
    figure: Path | None = None
    """A .png or .svg file for a plot of accuracy over training time; with several --shots one each (FILE-1shot, ..)."""
    markdown: bool = False
    """Print Markdown."""
    json: bool = False
    """A list of results, best first."""


def _name_the_missing(found: "list[list[Result]]", options: Options) -> None:
    """Say which of the runs that were named are in no table, and how they would be."""
    from e3bm.runs.folder.run import find_run_folders

    shown = {name for results in found for result in results for name in result.run.split(", ")}
    runs = find_run_folders(options.runs) if options.runs else []
    missing = [str(path) for path in runs if path.resolve().name not in shown]
    if not missing:
        return
    first, several = found[0][0], len(missing) > MOST_NAMED
    names = some_of(missing, MOST_NAMED)
    command = f"e3bm test {'RUN' if several else ' '.join(missing)} --dataset {first.dataset} --split {first.split} "
    command += f"--episodes {first.episodes} --ways {first.ways} --shots {first.shots} --queries {first.queries}"
    command += "" if first.query_shares is None else f" --query-shares {first.query_shares}"
    are, were = ("is", "it was") if len(missing) == 1 else ("are", "they were")
    show(f"{names} {are} not in any table because {were} not tested on these episodes; run: {command}", file=sys.stderr)


def run(words: Sequence[str]) -> int:
    about = "All methods that have runs on a data set in one table: the same episodes, sorted by accuracy, paired with"
    about += " one of them; with calibration, parameters and cost."
    options = parse(Options, words, "compare", about)
    from e3bm.report.compare import Question, compare, compared_runs, comparison_table, comparison_text
    from e3bm.runs.folder.run import find_run_folders, read_run
    from e3bm.runs.kept.store import open_results

    kept = open_results(options.results)
    if not options.runs:
        kept.check_exists()
    known = compared_runs(kept) if kept.exists else []
    known += [read_run(path) for path in (find_run_folders(options.runs) if options.runs else [])]
    found = [
        compare(
            known,
            Question(
                options.dataset,
                shots,
                ways=options.ways,
                split=options.split,
                against=options.against,
                uneven=options.queries == "uneven",
                ablations=options.ablations,
            ),
        )
        for shots in options.shots
    ]
    if options.figure is not None:
        from e3bm.report.accuracy_over_time import write_figure

        for shots, results in zip(options.shots, found, strict=True):
            stem = options.figure.stem + (f"-{shots}shot" if len(found) > 1 else "")
            write_figure(results, options.figure.with_stem(stem))
    if options.json:
        print_json([result.as_json() for results in found for result in results])
        return 0
    _name_the_missing(found, options)
    width = columns_here()
    show(
        "\n\n".join(
            comparison_table(results).markdown() if options.markdown else comparison_text(results, width)
            for results in found
        )
    )
    return 0
