"""`e3bm train-prior`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, progress_here
from e3bm.fewshot.meta.settings import PriorSettings


@dataclass(frozen=True)
class Options:
    """Where the prior and the run are kept, and its settings."""

    out: Path
    """The .safetensors file to write."""
    run: Path
    """Run folder with settings and log; naming the folder of an unfinished run continues it."""
    settings: Annotated[PriorSettings, tyro.conf.arg(name="")]
    json: bool = False
    """Print the last validation as JSON."""


def run(words: Sequence[str]) -> int:
    about = "Meta-train the prior of few-shot classifiers on features of many classes."
    default = Options(out=tyro.MISSING, run=tyro.MISSING, settings=PriorSettings())
    options = parse(Options, words, "train-prior", about, default)
    from e3bm.fewshot.meta.train import run_train_prior

    last = run_train_prior(options.settings, options.out, options.run, progress_here())
    if options.json:
        print_json({"out": str(options.out), **last})
        return 0
    for part, numbers in last.items():
        print(f"{part}: accuracy {numbers['accuracy']:.2f} %, NLL {numbers['nll']:.4f} on validation classes")
    print(f"use it with: E3BMClassifier(prior={str(options.out)!r})")
    return 0
