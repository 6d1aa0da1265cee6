"""What is wrong with a command line, in one sentence of our own instead of tyro's box of explanations."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import groupby

EXAMPLES = {
    "fit": "fit photos/ --out birds.e3bm",
    "predict": "predict birds.e3bm new_photos/",
    "evaluate": "evaluate birds.e3bm labelled_photos/",
    "correct": "correct birds.e3bm photo.jpg magpie",
    "suggest": "suggest birds.e3bm unlabelled/",
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
    (r"Error parsing (\S+): no type matching \{None\}\|INT .* from \[(.*)\].*", r"\1 takes a whole number, found \2."),
    (r"Error parsing (\S+): no type matching \{None\}\|FLOAT .* from \[(.*)\].*", r"\1 takes a number, found \2."),
    (
        r"[Ii]nvalid choice (.*) for argument '(.*)'\. Expected one of \(([^,]*),?\)",
        r"\2 cannot be \1; it can only be \3 here, so leave it out.",
    ),
    (
        r"[Ii]nvalid choice (.*) for argument '(.*)'\. Expected one of \((.*?),?\)",
        r"\2 cannot be \1; choose one of \3.",
    ),
    (
        r"Error parsing (\S+): (?:no type matching|Could not find valid parse) .*?\[(.*?)\].*",
        r"\1 cannot be \2; `e3bm COMMAND --help` says what it takes.",
    ),
    (r"Missing value for argument '(.*?)'\..*", r"\1 needs a value after it."),
)


def complaint(box: str, command: str) -> str:
    """The first thing that is wrong, with an example or the name that was probably meant."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    paragraphs = [list(part) for rule, part in groupby(lines, lambda line: not line.strip("─-")) if not rule]
    first = " ".join(paragraphs[0]).removesuffix(".") if paragraphs else "The command cannot be read"
    if first.startswith(("Missing from", "Required options")):
        unknown = [part[1:] for part in paragraphs if part[0].startswith("Unrecognized")]
        return _missing(first.partition(": ")[2], command, [word for part in unknown for word in part])
    first = re.sub(r"(?<=\()'None', |, 'None'(?=[,)])", "", first)  # a choice that undoes a preset, not one to offer
    for pattern, ours in REWORDED:
        if found := re.fullmatch(pattern, first) or re.fullmatch(pattern, f"{first}."):
            return found.expand(ours).replace("COMMAND", command)
    if found := re.match(r"Unrecognized (?:options?|arguments?):? (.*)", first):
        words = found[1].split(", ")
        options = [word for word in words if word.startswith("-")]
        if not options:
            return f"e3bm {command} cannot use {', '.join(words)}. `e3bm {command} --help` says what it takes."
        first = f"e3bm {command} has no option {', '.join(options)}"
    hints = [lines[place + 1] for place, line in enumerate(lines[:-1]) if line.startswith("Perhaps you meant")]
    return f"{first}. " + (f"Did you mean {hints[0]}?" if hints else f"`e3bm {command} --help` lists the options.")


def _missing(listed: str, command: str, unknown: Sequence[str]) -> str:
    """Everything that was left out, as the help describes it, and one whole command; an unknown option comes first."""
    parts, flags = [], []
    for each in (part.strip() for part in listed.split(REQUIRED)):
        found = re.fullmatch(r"(--\S+ )?(?:\{.*?\}|[A-Z]+)(?: or [A-Z ]+| \.\.\.)? (.*)", each)
        if found:
            flag, about = found[1], found[2].removesuffix(".")
            flags += [flag.strip()] if flag else []
            parts.append(f"{flag.strip()} ({about[0].lower()}{about[1:]})" if flag else about[0].lower() + about[1:])
    example = f" For example: e3bm {EXAMPLES[command]}" if command in EXAMPLES else ""
    missing = "; and ".join(parts) or listed
    option = next((word for word in unknown if word.startswith("-")), None)
    if option is None:
        return f"Something is missing after `e3bm {command}`: {missing}.{example}"
    near = get_close_matches(option, flags, n=1)
    if near:
        return f"e3bm {command} has no option {option}. Did you mean {near[0]}?{example}"
    return f"e3bm {command} has no option {option}, and something is missing: {missing}.{example}"
