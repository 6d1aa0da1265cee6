"""`e3bm cost`."""

from collections.abc import Sequence
from dataclasses import dataclass

from e3bm.cli.console import parse, print_json, progress_here


@dataclass(frozen=True)
class Options:
    """What to print."""

    preset: str = ""
    """Measure time and memory of this preset and of its method alone now; unset: parameters of all systems."""
    repeats: int = 5
    """With --preset: how often everything is timed."""
    skip_training: bool = False
    """With --preset: time only the test; training steps of a large backbone take a long time."""
    json: bool = False
    """A list of {system, backbone, parameters, e3bm_parameters, percent, note}, with --preset also times and memory."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, "cost", "What E3BM adds in parameters, time and memory (Table S3).")
    if options.preset:
        return _preset(options)
    from e3bm.paper.cost import cost

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


def _preset(options: Options) -> int:
    from e3bm.paper.presets import find_preset
    from e3bm.paper.printed import timed_table
    from e3bm.paper.timed_cost import preset_cost

    preset = find_preset(options.preset)
    rows = preset_cost(preset, repeats=options.repeats, training=not options.skip_training, progress=progress_here())
    if options.json:
        print_json([vars(row) for row in rows])
    else:
        print(timed_table(rows).text())
    return 0
