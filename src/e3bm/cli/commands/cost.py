"""`e3bm cost`."""

from collections.abc import Sequence
from dataclasses import dataclass

from e3bm.cli.console import parse, print_json


@dataclass(frozen=True)
class Options:
    """What to print."""

    json: bool = False
    """A list of {system, backbone, parameters, e3bm_parameters, percent, note}."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, "cost", "Parameters of every system, counted, and what E3BM adds (Table S3).")
    from e3bm.workflows.cost import cost

    rows = cost()
    if options.json:
        print_json([row.as_json() for row in rows])
        return 0
    width = max(len(row.system) for row in rows)
    print(f"{'system':<{width}}  {'backbone':<12}  {'parameters':>12}  {'+E3BM':>9}  {'%':>7}  note")
    for row in rows:
        added, percent = (f"{row.e3bm_parameters:,}", f"{row.percent:.3f}") if row.e3bm_parameters else ("", "")
        print(f"{row.system:<{width}}  {row.backbone:<12}  {row.parameters:>12,}  {added:>9}  {percent:>7}  {row.note}")
    return 0
