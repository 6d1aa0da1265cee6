"""`e3bm prepare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from e3bm.cli.console import parse, print_json, progress_here, show


@dataclass(frozen=True)
class Options:
    """What to prepare, and from where."""

    name: Annotated[str, tyro.conf.Positional]
    """A known data set (`e3bm datasets` lists them), or a name of your own for a folder of images."""
    source: tuple[Path, ...] = ()
    """Your copy of it: folder, archive or files, in any of the public layouts."""
    folder: Path | None = None
    """Folder of prepared data sets; unset: the variable E3BM_DATA, then the user's cache folder."""
    download: bool = False
    """Fetch it from its official address, where it has one."""
    workers: int = 2
    """Decoding processes."""
    on_broken: Literal["stop", "skip"] = "stop"
    """What to do with images that cannot be read; they are listed in either case."""
    image_size: int | None = None
    """Side of the stored images in pixels; unset: the data set's own (84 for a folder of your own)."""
    seed: int = 0
    """Seed of the class split, for a folder without one."""
    allow_other_counts: bool = False
    """Continue even if the numbers of classes or images differ from the published ones."""
    json: bool = False
    """Print what was made as JSON."""


def run(words: Sequence[str]) -> int:
    about = "Turn any known form of a data set into one packed folder; an interrupted run continues where it stopped."
    options = parse(Options, words, "prepare", about)
    from e3bm.data.read.prepare import prepare

    made = prepare(
        options.name,
        options.source or None,
        folder=options.folder,
        download=options.download,
        workers=options.workers,
        on_broken=options.on_broken,
        image_size=options.image_size,
        seed=options.seed,
        allow_other_counts=options.allow_other_counts,
        progress=progress_here(),
    )
    if options.json:
        print_json(made.as_json())
        return 0
    height, width, channels = made.image_shape
    show(f"{made.name}: {made.layout}, images {height} x {width} x {channels}, in {made.path}")
    for split, counts in made.splits.items():
        show(f"  {split}: {counts['classes']} classes, {counts['images']} images")
    for note in made.notes:
        show(f"  note: {note}")
    for broken in made.skipped:
        show(f"  skipped: {broken.path}: {broken.reason}")
    show(
        "nothing to do: it was prepared from this source before" if made.unchanged else f"done in {made.seconds:.0f} s"
    )
    return 0
