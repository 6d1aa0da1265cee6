"""What is wrong with a command line, in one sentence of our own instead of tyro's box of explanations."""

import re
from itertools import groupby

EXAMPLES = {
    "fit": "fit photos/ --out birds.e3bm",
    "predict": "predict birds.e3bm new_photos/",
    "export": "export birds.e3bm --onnx birds.onnx",
    "pretrain": "pretrain --run runs/backbone",
    "train": "train --run runs/mtl --backbone.pretrained runs/backbone",
    "prepare": "prepare fc100 --source fc100.zip",
    "import-weights": "import-weights weights.pth --out backbone.safetensors",
    "reproduce": "reproduce T1",
    "results": "results list",
    "ablate": "ablate --study rate --run runs/rate",
    "train-prior": "train-prior --out prior.safetensors --run runs/prior",
}
"""A whole command, for those who left something out."""
REQUIRED = "(required)"
REWORDED = (
    (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", r"\1 takes a whole number, found \2."),
    (r"Error parsing (\S+): could not convert string to float: (.*)", r"\1 takes a number, found \2."),
    (
        r"[Ii]nvalid choice (.*) for argument '(.*)'\. Expected one of \((.*?),?\)",
        r"\2 cannot be \1; choose one of \3.",
    ),
    (r"Missing value for argument '(.*?)'\..*", r"\1 needs a value after it."),
)


def complaint(box: str, command: str) -> str:
    """The first thing that is wrong, with an example or the name that was probably meant."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    paragraphs = [list(part) for rule, part in groupby(lines, lambda line: not line.strip("─-")) if not rule]
    first = " ".join(paragraphs[0]).removesuffix(".") if paragraphs else "The command cannot be read"
    if first.startswith(("Missing from", "Required options")):
        return _missing(first.partition(": ")[2], command)
    for pattern, ours in REWORDED:
        if found := re.fullmatch(pattern, first) or re.fullmatch(pattern, f"{first}."):
            return found.expand(ours)
    if found := re.match(r"Unrecognized (?:options?|arguments?):? (.*)", first):
        words = found[1].split(", ")
        unknown = [word for word in words if word.startswith("-")] or words
        first = f"e3bm {command} has no option {', '.join(unknown)}"
    hints = [lines[place + 1] for place, line in enumerate(lines[:-1]) if line.startswith("Perhaps you meant")]
    return f"{first}. " + (f"Did you mean {hints[0]}?" if hints else f"`e3bm {command} --help` lists the options.")


def _missing(listed: str, command: str) -> str:
    """Everything that was left out, as the help describes it, and one whole command."""
    parts = []
    for each in (part.strip() for part in listed.split(REQUIRED)):
        found = re.fullmatch(r"(--\S+ )?(?:\{.*?\}|[A-Z|]+) (.*)", each)
        if found:
            flag, about = found[1], found[2].removesuffix(".")
            parts.append(f"{flag.strip()} ({about[0].lower()}{about[1:]})" if flag else about[0].lower() + about[1:])
    example = f" For example: e3bm {EXAMPLES[command]}" if command in EXAMPLES else ""
    return f"Something is missing after `e3bm {command}`: {'; and '.join(parts) or listed}.{example}"
