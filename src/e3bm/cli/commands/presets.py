"""`e3bm presets`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json


@dataclass(frozen=True)
class Options:
    """Which presets to show."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """Part of a name; a whole name shows all settings of that preset."""
    json: bool = False
    """Print names, descriptions and settings as JSON."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, "presets", "Named settings for train, pretrain and test.")
    from e3bm.paper.presets import find_preset, presets

    known = presets()
    chosen = {name: preset for name, preset in known.items() if options.name in name}
    if options.name in known:
        chosen = {options.name: known[options.name]}
    if not chosen:
        find_preset(options.name)  # says what there is instead
    if options.json or list(chosen) == [options.name]:
        print_json(
            [
                {
                    "name": name,
                    "about": preset.about,
                    "train": preset.train.model_dump(mode="json"),
                    "pretrain": preset.pretrain.model_dump(mode="json") if preset.pretrain else None,
                    "test": preset.test.model_dump(mode="json"),
                }
                for name, preset in chosen.items()
            ]
        )
        return 0
    width = max(len(name) for name in chosen)
    for name, preset in chosen.items():
        print(f"{name:<{width}}  {preset.about}")
    return 0
