"""What is said when a training command has ended."""

from pathlib import Path

from e3bm.cli.console import leads, print_json
from e3bm.tracking.run_folder import RunFolder


def show_best(folder: RunFolder, run: Path, as_json: bool, what: str, follow_up: str) -> None:
    """The best validation of a run, and the command that uses it; of several processes only the first says it."""
    if not leads():
        return
    best = max((line for line in folder.lines("metrics") if line["split"] == "val"), key=lambda line: line["accuracy"])
    if as_json:
        print_json({"run": str(run), **best})
        return
    print(f"best {what} on validation classes {best['accuracy']:.2f} +- {best['ci']:.2f} % at step {best['step']}")
    print(follow_up)
