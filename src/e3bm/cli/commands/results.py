"""`e3bm results`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from e3bm.cli.console import parse, print_json, show
from e3bm.errors import SettingsError


@dataclass(frozen=True)
class Options:
    """What is done with the folder of kept results."""

    action: Annotated[Literal["list", "add", "unpack", "check"], tyro.conf.Positional]
    """list: what is kept; add: keep tested run folders; unpack: make run folders from it; check: compare every
    file with the manifest, and every accuracy with the answers behind it."""
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """add: run folders; unpack: places such as fc100/NAME; list: a group, or the beginning of the runs' places."""
    results: Path = Path("results")
    """Folder of kept results."""
    out: Path | None = None
    """unpack: folder for the run folders; unset: runs/GROUP."""
    group: str | None = None
    """add: the group, such as study/NAME; unset: the name of the data the run was trained on."""
    compact: bool = False
    """add: do not keep the weights and most of the log."""
    json: bool = False
    """Print names, folders or faults as JSON."""


def run(words: Sequence[str]) -> int:
    about = "Kept results: all numbers of many runs in a few files; add run folders, or unpack them again."
    options = parse(Options, words, "results", about)
    if options.action in ("add", "unpack") and not options.names:
        raise SettingsError(f"Name at least one run to {options.action}.")
    work = {"list": _list, "add": _add, "unpack": _unpack, "check": _check}[options.action]
    return work(options)


def _list(options: Options) -> int:
    from e3bm.runs.kept.store import KeptResults

    kept = KeptResults(options.results)
    kept.check_exists()
    wanted = tuple(str(name).removeprefix(f"{options.results}/") for name in options.names)
    runs = [run for run in kept.runs() if not wanted or str(run.path.relative_to(options.results)).startswith(wanted)]
    if not runs:
        raise SettingsError(f"No kept run's place begins with {' or '.join(wanted)}; groups: {', '.join(kept.groups)}.")
    if options.json:
        print_json([str(run.path.relative_to(options.results)) for run in runs])
        return 0
    for run in runs:
        told = "; ".join(
            f"{each.dataset} {each.split} {each.task} {each.accuracy:.2f} ± {each.ci:.2f}" for each in run.results
        )
        show(f"{run.path.relative_to(options.results)}  {run.title}  {told or run.kind}")
    return 0


def _add(options: Options) -> int:
    from e3bm.runs.kept.pack import add_runs

    runs = [Path(name) for name in options.names]
    places = add_runs(runs, options.results, group=options.group, compact=options.compact)
    _say(options, places, [f"kept {options.results / place}" for place in places])
    return 0


def _unpack(options: Options) -> int:
    from e3bm.runs.kept.pack import unpack

    folders: dict[Path, None] = {}
    for name in options.names:
        place = Path(name)
        if place.is_relative_to(options.results):
            place = place.relative_to(options.results)
        target = options.out or Path("runs") / place.parts[0]
        folders |= dict.fromkeys(unpack(str(place), options.results, target))
    _say(options, [str(folder) for folder in folders], [f"unpacked {folder}" for folder in folders])
    return 0


def _check(options: Options) -> int:
    from e3bm.runs.kept.entries import recomputed
    from e3bm.runs.kept.store import KeptResults

    kept = KeptResults(options.results)
    kept.check_exists()
    faults = kept.damages()  # where there are some, what the files say is of no interest
    runs = [] if faults else kept.runs()
    faults += [fault for run in runs for fault in recomputed(run)]
    _say(options, faults, faults or [f"{len(runs)} runs: every file and every accuracy is what it was."])
    return 1 if faults else 0


def _say(options: Options, values: list[str], lines: list[str]) -> None:
    if options.json:
        print_json(values)
    else:
        show("\n".join(lines))
