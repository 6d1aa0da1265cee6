"""Writes docs/methods/README.md: every method of the registry with what it needs, from its own settings class."""

import sys
from pathlib import Path

from e3bm.methods import METHODS
from e3bm.settings import InnerLoopSettings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods" / "README.md"
HEAD = """# Methods

Each method is one file in `src/e3bm/methods`, with its own settings. `e3bm train --method.name NAME --help` shows the
options of a method, `e3bm presets` the recipes: `paper-*` as published, `small-*` for two cores. Where a method has an
inner loop its steps, rounds or layers are epochs, and E3BM is a choice of schedules on top of them:
`--hyperprior.rate generated --hyperprior.weight generated`. A method's numbers appear in [results](../results.md) once
a run has produced them; presets without one have not been trained yet.

Each page has the command that trains its small preset, in a clone and with FC100 [prepared](../data_sets.md). It begins
with a pre-trained backbone that is kept in `results`: `--backbone.pretrained results/fc100/resnet12-half-s0`,
`resnet12-half-whitened-s0` for presets with whitened features, `conv4-s0` for those with 4CONV.
`e3bm pretrain --preset NAME --run RUN` makes one of your own (an hour on two cores), to be named the same way.

"""
COLUMNS = ("Method", "Name", "What it does", "Takes", "Inner loop", "Setting")


def page() -> str:
    """The page as it should be."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for name in METHODS:
        settings = METHODS[name].settings
        own = PAGE.with_name(f"{name}.md")
        title = f"[{settings.title}]({own.name})" if own.exists() else settings.title
        sentence = (settings.__doc__ or "").strip().splitlines()[0]
        about = sentence.partition(": ")[2] or sentence
        loop = "yes" if issubclass(settings, InnerLoopSettings) else "no"
        setting = "transductive" if settings.transductive else "inductive"
        rows.append((title, f"`{name}`", about, settings.needs.takes, loop, setting))
    return HEAD + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(page())
