"""What a person sees: progress on stderr, results on stdout, errors as one sentence."""

import errno
import io
import json
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import tyro

from e3bm.cli.complaints import complaint
from e3bm.cli.plain_help import MARKERS, registry
from e3bm.errors import CheckpointError, E3BMError, SettingsError
from e3bm.interruption import Interrupted, termination_as_interrupt
from e3bm.runs.folder.environment import is_leader

if TYPE_CHECKING:  # each of them would take a good part of the time of a prediction
    from pydantic import ValidationError
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from e3bm.runs.folder.run_folder import RunFolder
    from e3bm.runs.settings import TrainSettings
    from e3bm.settings import AnySettings

PLAIN_SECONDS = 5.0
STEPS_BEFORE_ESTIMATE = 3
"""From so many steps on the time left is estimated: the first ones also load and warm up what they use."""
NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
PEER_GONE = re.compile(r"peer|gloo|nccl|socket|connection|store|timed out|DistBackend|DistNetwork", re.IGNORECASE)
STEERING = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}
STEERING |= {code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Letters that move the cursor, colour the screen or turn the direction of what follows, and what stands for them."""
Parsed = TypeVar("Parsed")


def guarded(work: Callable[[], int], *, continues: bool = True) -> int:
    """Run a command and turn what goes wrong into an exit code and a sentence; a KeyboardInterrupt passes.

    ``continues`` says whether the command goes on where it was interrupted when it is called again.
    """
    try:
        with termination_as_interrupt():
            return work()
    except E3BMError as error:
        show(f"e3bm: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        show(f"e3bm: {stop}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); nothing is left to say to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        outside = _cause_outside(error)
        if outside is not None:
            again = "; what was saved is intact, and the same command continues from there" if continues else ""
            show(f"e3bm: {outside}{again}.", file=sys.stderr)
            return 2
        traceback.print_exc()
        print("e3bm: this is a defect of e3bm; the lines above say where.", file=sys.stderr)
        return 1


def _cause_outside(error: BaseException) -> str | None:
    """What happened to this process rather than inside of it, in words: no memory, or another process that is gone."""
    said = str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(said)):
        return "there is not enough memory for this; ask for less at a time, or close other programs"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"the name {str(error.filename)[:40]}... is too long for a file; give a shorter one"
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return "there is no space left where this was to be written; free some, or write to another place"
    pools: Any = sys.modules.get("concurrent.futures.process")  # not imported where no pool was made
    if pools is not None and isinstance(error, pools.BrokenProcessPool):
        return "a worker process has ended or was killed, perhaps for lack of memory; try fewer workers"
    lost = isinstance(error, RuntimeError | ConnectionError) and PEER_GONE.search(f"{type(error).__name__} {said}")
    if lost and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        first = said.partition("\n")[0].strip()
        return f"another process of this run is gone or cannot be reached ({first[:160]})"
    return None


def show(text: object = "", *, file: IO[str] | None = None, flush: bool = False) -> None:
    """Print a text in which names of others may stand: what would steer a terminal is shown as a code."""
    print(str(text).translate(STEERING), file=file or sys.stdout, flush=flush)


def columns_here() -> int | None:
    """How wide a terminal is that stdout goes to; None where nothing limits it, as in a file."""
    limited = "COLUMNS" in os.environ or sys.stdout.isatty()
    return shutil.get_terminal_size().columns if limited else None


def parse(kind: type[Parsed], words: Sequence[str], command: str, about: str, default: Parsed | None = None) -> Parsed:
    """Flags of a command from its settings class; what is wrong with them becomes a sentence."""
    options: dict[str, Any] = {} if default is None else {"default": default}
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            parsed: Parsed = tyro.cli(
                kind,
                args=list(words),
                prog=f"e3bm {command}",
                description=about,
                config=MARKERS,
                registry=registry(),
                **options,
            )
    except _validation_errors() as error:
        from e3bm.settings import settings_error

        raise settings_error(error, "") from None
    except SystemExit as stop:
        if not stop.code:
            raise
        from e3bm.settings import settings_error

        invalid = _cause(stop)
        if invalid is None:
            raise SettingsError(complaint(told.getvalue(), command)) from None
        group = invalid.title.removesuffix("Settings").lower()
        raise settings_error(invalid, "" if group == command else group) from None
    return parsed


def _validation_errors() -> "tuple[type[ValidationError], ...]":
    """What a settings class complains with; none where the options are no such class, and pydantic is not imported."""
    pydantic: Any = sys.modules.get("pydantic")
    return () if pydantic is None else (pydantic.ValidationError,)


def _cause(error: BaseException | None) -> "ValidationError | None":
    """The settings class's own complaint behind tyro's."""
    while error is not None and not isinstance(error, _validation_errors()):
        error = error.__context__
    return error


def settings_of_preset(
    words: Sequence[str], part: Literal["train", "pretrain", "test"], plain: "AnySettings"
) -> "tuple[AnySettings, list[str]]":
    """Take `--preset NAME` out of the words; its settings become the defaults that other flags change."""
    name, rest = _without_preset(words)
    if name is None:
        return plain, rest
    from e3bm.paper.presets import find_preset

    preset = find_preset(name)
    chosen = getattr(preset, part)
    if chosen is None:
        raise SettingsError(f"The preset '{name}' has nothing for {part}: its method is trained from scratch.")
    if part == "train" and preset.members > 1:
        show(
            f"{name} stands for {preset.members} runs that answer together; this trains one of them. All of them are "
            'trained and tested by `e3bm reproduce S2 --row "5x" --run-missing` (see --dataset, --shot and --scale).',
            file=sys.stderr,
        )
    return chosen, rest


def check_pretrained(words: Sequence[str], settings: "TrainSettings") -> None:
    """Refuse to train a preset from scratch that is meant to begin with pre-trained weights."""
    name, _ = _without_preset(words)
    if name is None:
        return
    from e3bm.paper.presets import find_preset

    pretrain = find_preset(name).pretrain
    if pretrain is not None and settings.backbone.pretrained is None:
        from e3bm.paper.run_missing import backbone_name
        from e3bm.runs.kept.store import kept_run

        kept = Path("results") / pretrain.data.dataset / backbone_name(pretrain)
        known = f"the kept one is --backbone.pretrained {kept}; " if kept_run(kept) else ""
        raise SettingsError(
            f"The preset '{name}' starts from a pre-trained backbone: {known}make one with `e3bm pretrain --preset "
            f"{name} --run RUN`, and name it with --backbone.pretrained RUN."
        )


def _without_preset(words: Sequence[str]) -> tuple[str | None, list[str]]:
    rest = list(words)
    for place, word in enumerate(rest):
        if word == "--preset" or word.startswith("--preset="):
            name = word.partition("=")[2] or (rest[place + 1] if place + 1 < len(rest) else "")
            del rest[place : place + (1 if "=" in word else 2)]
            return name, rest
    return None, rest


def print_json(value: Any) -> None:
    """A result for scripts."""
    print(json.dumps(value, indent=2, default=str))


def by_path(record: Any) -> dict[str, Any]:
    """A record about a photo for scripts: its name is its path, as in all other results."""
    return {"path": record.name, **{key: value for key, value in asdict(record).items() if key != "name"}}


def progress_here(quiet: bool = False) -> "BarProgress | LineProgress":
    """Bars on a terminal, lines elsewhere; only the leading process shows anything."""
    if sys.stderr.isatty() and is_leader() and not quiet:
        return BarProgress()
    return LineProgress(quiet or not is_leader())


class BarProgress:
    """A rich bar with the latest numbers and the time left."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True)
        self.bar: Bar | None = None
        self.task: TaskID | None = None
        self.numbers: dict[str, float] = {}

    def begin(self, title: str, total: int, done: int = 0) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        class TimeLeft(TimeRemainingColumn):
            def render(self, task: Task) -> Text:
                known = task.completed - done >= STEPS_BEFORE_ESTIMATE
                return super().render(task) if known else Text()

        self.end()
        self.numbers = {}
        self.bar = Bar(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False), TimeLeft(), console=self.console,
        )  # fmt: skip
        self.bar.start()
        self.task = self.bar.add_task(title, total=total, completed=done, numbers="")

    def advance(self, done: int, **numbers: float) -> None:
        self.numbers |= numbers
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, numbers=_words(self.numbers))

    def end(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def say(self, sentence: str) -> None:
        self.console.print(sentence.translate(STEERING), markup=False, highlight=False)


class LineProgress:
    """A plain line every few seconds, and one at the end."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.title, self.total, self.done, self.first = "", 0, 0, 0
        self.numbers: dict[str, float] = {}
        self.started = self.shown = 0.0

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.title, self.total, self.done, self.first, self.numbers = title, total, done, done, {}
        self.started = self.shown = time.monotonic()
        amount = f": {total} to do" if total else ""
        self.say(f"{title}{amount}" if not done else f"{title}: continuing after {done} of {total}")

    def advance(self, done: int, **numbers: float) -> None:
        self.done = done
        self.numbers |= numbers
        if time.monotonic() - self.shown > PLAIN_SECONDS and done < self.total:
            self.shown = time.monotonic()
            speed = (done - self.first) / (self.shown - self.started)
            known = done - self.first >= STEPS_BEFORE_ESTIMATE
            left = f", {(self.total - done) / speed:.0f} s left" if known else ""
            self.say(f"{self.title}: {done}/{self.total}{_words(self.numbers, ' ')}{left}")

    def end(self) -> None:
        if self.title:
            seconds = time.monotonic() - self.started
            amount = f"{self.done}/{self.total}{_words(self.numbers, ' ')}" if self.total else "done"
            self.say(f"{self.title}: {amount} in {seconds:.0f} s")
            self.title = ""

    def say(self, sentence: str) -> None:
        if not self.quiet:
            show(sentence, file=sys.stderr, flush=True)


def _words(numbers: dict[str, float], before: str = "") -> str:
    """Numbers with their names; ``before`` comes first where there are any."""
    words = " ".join(f"{name.replace('_per_second', '/s')} {value:.4g}" for name, value in numbers.items())
    return f"{before}{words}" if words else ""


def show_best(folder: "RunFolder", run: Path, as_json: bool, what: str, follow_up: str) -> None:
    """The best validation of a run, and the command that uses it; of several processes only the first says it."""
    if not is_leader():
        return
    from e3bm.runs.folder.run import finite

    lines = [line for line in folder.lines("metrics") if line.get("split") == "val"]
    lines = [line for line in lines if finite(line.get("accuracy"), line.get("ci"), line.get("step"))]
    if not lines:
        raise CheckpointError(f"{run / 'metrics.jsonl'} has no validation, although the run is complete.")
    best = max(lines, key=lambda line: float(line["accuracy"]))
    if as_json:
        print_json({"run": str(run), **best})
        return
    print(f"best {what} on validation classes {best['accuracy']:.2f} +- {best['ci']:.2f} % at step {best['step']}")
    show(follow_up)
