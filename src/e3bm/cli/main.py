"""`e3bm`: one entry, one line per command; a command's own imports happen when it is called."""

import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "demo": "everything once on the embedded data: pretrain, meta-train, test baseline and E3BM, report",
    "fit": "make a model file from a few photos of each class",
    "predict": "classify photos, with probabilities and a flag for photos of no known class",
    "evaluate": "how well a model does on labelled photos: a page and JSON",
    "correct": "'no, it is X': one more labelled photo for a model, fitted again at once",
    "suggest": "which unlabelled photos to label next, and why",
    "export": "write a model file as ONNX and check it",
    "presets": "named settings: the paper's rows and small-budget versions",
    "pretrain": "train a backbone on the meta-training classes",
    "train": "meta-train a method, with or without E3BM",
    "test": "test runs on the same list of episodes, with paired differences",
    "serve": "start an HTTP API and a web page: drop photos into classes, fit, predict",
    "ablate": "the paper's ablations of alpha, v and the hyperprior, with a report",
    "reproduce": "a table or figure of the paper: paper, published code and ours side by side",
    "results": "kept results: list, add a run, unpack one into a folder, check all",
    "compare": "all tested methods in one table: same episodes, sorted, paired with one of them",
    "report": "one HTML page and figures from run folders",
    "cost": "parameters of every system and what E3BM adds (Table S3)",
    "datasets": "known data sets, where they are expected and which are there",
    "prepare": "turn any known form of a data set into one packed folder",
    "doctor": "say what a data file or folder contains and what is wrong with it",
    "train-prior": "meta-train the prior of few-shot classifiers on features of many classes",
    "import-weights": "convert published backbone weights into ours",
}
CONTINUING = ("demo", "pretrain", "train", "test", "ablate", "reproduce", "prepare", "train-prior")
"""Commands that keep what they have done when they are interrupted, and go on from there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code says how it went: 0 done, 2 wrong input, 130 interrupted and saved, 1 our defect."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        import e3bm

        print(e3bm.__version__)
        return 0
    if words[0] not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(words[0], COMMANDS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else " `e3bm --help` lists the commands."
        print(f"e3bm: there is no command '{words[0]}'.{hint}", file=sys.stderr)
        return 2
    continues = words[0] in CONTINUING
    try:  # imports, too: they take most of the time of a short command
        from e3bm.cli.console import guarded

        command = importlib.import_module(f"e3bm.cli.commands.{words[0].replace('-', '_')}")
        return guarded(lambda: command.run(words[1:]), continues=continues)
    except KeyboardInterrupt:
        after = "run the same command again to continue." if continues else "nothing was saved."
        print(f"e3bm: interrupted; {after}", file=sys.stderr)
        return 130


def usage() -> str:
    """All commands, a line each."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {about}" for name, about in COMMANDS.items()]
    return "\n".join(
        [
            "e3bm: few-shot learning by an ensemble of epoch-wise empirical Bayes models",
            "",
            "usage: e3bm COMMAND [OPTIONS]",
            "",
            *lines,
            "",
            "`e3bm COMMAND --help` shows every setting of a command.",
        ]
    )


def entry() -> None:
    """The console script; a reader that has gone (`e3bm --help | head -1`) is no error."""
    code: str | int | None = 0
    try:
        try:
            code = main()
        except SystemExit as stop:  # `e3bm fit --help` ends the program itself
            code = stop.code
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain of the same.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:  # the same flush would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not code:
            print(f"e3bm: the output cannot be written ({error.strerror}); send it to another place.", file=sys.stderr)
        code = code or 2
    if isinstance(code, int) and sys.argv[1:2] == ["predict"]:
        # Taking hundreds of modules apart takes a fifth of the whole command, and there is nothing left to save.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
