"""`e3bm reproduce`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from e3bm.cli.console import columns_here, parse, print_json, progress_here, show


@dataclass(frozen=True)
class Options:
    """Which part of the paper, and whether to run what is missing."""

    target: Annotated[Literal["T1", "T2", "S1", "S2", "S3", "F4"], tyro.conf.Positional]
    """A table of the paper (T1, T2) or its supplement (S1, S2, S3: costs), or figure F4: the ablations."""
    dataset: str | None = None
    """miniimagenet, tieredimagenet or fc100."""
    row: str | None = None
    """Part of a row's name, such as MTL or SIB+E3BM."""
    shot: int | None = None
    """1 or 5."""
    results: Path = Path("results")
    """Folder of kept runs: what is printed comes from here."""
    keep: tuple[Path, ...] = ()
    """Tested run folders to add to the results first, in a compact form."""
    budget: str = ""
    """Run what is missing, with this much training time, such as 30m or 2h; unfinished runs are tested as they are."""
    run_missing: bool = False
    """Run what is missing, however long it takes."""
    runs: Path = Path("runs")
    """Folder where runs are trained; the same folder again continues them."""
    scale: Literal["small", "small-whitened", "small-pretrained", "small-scaled", "paper"] = "small"
    """Which presets are run: those for two cores (fc100), a variant (MTL, SIB: whitened; MTL: scaled; MAML:
    pretrained), or the paper's own."""
    seeds: int = 1
    """Runs per row, with seeds 0, 1, .."""
    episodes: int | None = None
    """Test episodes; unset: as the preset says."""
    workers: int = 1
    """Models trained at the same time, one process each."""
    out: Path = Path("report")
    """F4: folder for the page and its figures."""
    json: bool = False
    """A list of {method, backbone, dataset, paper, published_code, ours, ci, paired_difference, paired_ci, ..}."""


def run(words: Sequence[str]) -> int:
    about = "The paper, the published code and our runs side by side, with intervals and paired differences."
    options = parse(Options, words, "reproduce", about)
    from e3bm.paper.printed import cost_table, reproduction_text
    from e3bm.paper.reproduce import Request, draw_figure, reproduce, reproduce_costs
    from e3bm.paper.run_missing import Effort
    from e3bm.runs.training.train_many import seconds_of

    seconds = seconds_of(options.budget) if options.budget else None
    effort = Effort(seconds, options.seeds, options.scale, options.runs, options.episodes, options.workers)
    wanted = options.run_missing or seconds is not None
    place = (options.dataset, options.row, options.shot, options.results, options.keep)
    request = Request(options.target, *place, effort if wanted else None)
    if options.target == "S3":
        costs = reproduce_costs(request, progress_here())
        print_json([row.as_json() for row in costs]) if options.json else show(cost_table(costs).text(columns_here()))
        return 0
    rows = reproduce(request, progress_here())
    page = draw_figure(request, options.out) if options.target == "F4" else None
    if options.json:
        print_json([row.as_json() for row in rows])
        return 0
    if not rows:
        show("No run of these ablations is in the results yet; give a --budget to train them.")
        return 0
    show(reproduction_text(rows, columns_here()))
    if page is not None:
        show(f"Figures: {page}")
    return 0
