"""`e3bm import-weights`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, show
from e3bm.errors import some_of

NAMES_SHOWN = 8


@dataclass(frozen=True)
class Options:
    """Which file, and into what."""

    file: Annotated[Path, tyro.conf.Positional]
    """A published checkpoint (.pth, .pt, .tar, .safetensors); nothing in it is run."""
    backbone: str | None = None
    """Name of our backbone; unset: whichever fits."""
    out: Path | None = None
    """The .safetensors file to write; unset: next to the checkpoint."""
    width: float = 1.0
    """Width factor of the backbone."""
    json: bool = False
    """Print what matched and what did not as JSON."""


def run(words: Sequence[str]) -> int:
    about = "Convert published backbone weights into ours, and say exactly what matched and what did not."
    options = parse(Options, words, "import-weights", about)
    from e3bm.runs.import_weights import import_weights

    done = import_weights(options.file, options.backbone, options.out, width=options.width)
    if options.json:
        print_json(done.as_json())
        return 0
    show(f"{done.file} -> {done.backbone}: {done.matched} tensors, {done.parameters:,} parameters")
    show(f"  found in {done.found_in}")
    for title, names in (("filled with zeros", done.filled), ("left out", done.left_out)):
        if names:
            show(f"  {title}: {some_of(names, NAMES_SHOWN)}")
    if done.folded:
        show(f"  scales multiplied into {done.folded} kernels")
    show(f"use it with: --backbone.name {done.backbone} --backbone.pretrained {done.out}")
    return 0
