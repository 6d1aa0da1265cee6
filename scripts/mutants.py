"""`make mutants`: small defects put into a copy of the package one after another; the tests beside them must notice.

    python scripts/mutants.py                                  # all of scripts/mutants.toml
    python scripts/mutants.py --only core/ --only sampler      # those whose file or name has one of the words
    python scripts/mutants.py --sample 10 --seed 3             # ten of them, drawn
    python scripts/mutants.py --out results/mutants.json       # and keep what was found
    python scripts/mutants.py --out results/mutants.json --go-on --minutes 10     # in portions

A mutant changes one place of one file. It is killed if one of its tests fails, or does not end in time. Survivors are
printed; the script fails if fewer than RATE of the mutants that ran were killed, or if one survives unexplained.
With ``--go-on``, mutants whose outcome the file holds already are not run again; those that were changed are.
"""

import argparse
import ast
import hashlib
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "scripts" / "mutants.toml"
RATE = 0.95
SECONDS = 240  # a mutant may turn a loop into an endless one
COPIED, LEFT_OUT = ("src", "tests", "pyproject.toml"), (".git", ".venv", ".hypothesis", "dist", "build")
# pytest's exit codes, moved away from those of a process that breaks before it; a mutant that cannot even be imported
# breaks the collection.
PASSED, FAILED, BROKEN = 100, 101, 102
FIRST_FAILURE = """
from hypothesis import Phase, settings  # one failing example kills: none is made smaller

settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("mutants")
"""
CLOCK = count(1_000_000_000)
# Forks of a process that has imported what is slow to import and is not ours.
FORKED = multiprocessing.get_context("forkserver")
SLOW = "torch torch._dynamo torch.testing pydantic PIL.Image safetensors.torch beartype pytest hypothesis"
FORKED.set_forkserver_preload(SLOW.split())


@dataclass(frozen=True)
class Mutant:
    """One changed place, the tests that should notice, and the reason why they cannot if they do not.

    ``select`` are words as of pytest -k, where a few tests of long files are enough.
    """

    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    select: str = ""
    note: str = ""
    survives: str = ""

    @property
    def name(self) -> str:
        return f"{self.path}: {self.note or f'{self.old.strip()} -> {self.new.strip()}'}"

    @property
    def change(self) -> str:
        """A short digest of what is changed, whatever the mutant is called."""
        return hashlib.sha256("\0".join((self.path, self.old, self.new)).encode()).hexdigest()[:8]

    def applied(self, source: str) -> str:
        """The file with the defect; it must fit in exactly one place and still be Python."""
        if source.count(self.old) != 1 or self.old == self.new:
            raise SystemExit(f"{self.name}: fits in {source.count(self.old)} places of the file; mend {LIST.name}.")
        changed = source.replace(self.old, self.new)
        ast.parse(changed)
        return changed


def listed(path: Path = LIST) -> list[Mutant]:
    """All mutants of the list, each with the tests of its file unless it names its own."""
    found = []
    for file in tomllib.loads(path.read_text())["file"]:
        for entry in file["mutants"]:
            tests = tuple(f"tests/{name}" for name in entry.get("tests", file["tests"]))
            texts = {key: entry.get(key, "") for key in ("select", "note", "survives")}
            found.append(Mutant(file["path"], entry["old"], entry["new"], tests, **texts))
    return found


def copied(place: Path) -> Path:
    """A tree to break: sources and tests as copies, everything else as links."""
    for entry in ROOT.iterdir():
        if entry.name in COPIED and entry.is_dir():
            shutil.copytree(entry, place / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif entry.name in COPIED:
            shutil.copy(entry, place)
        elif entry.name not in LEFT_OUT:
            (place / entry.name).symlink_to(entry)
    with (place / "tests" / "conftest.py").open("a") as file:
        file.write(FIRST_FAILURE)
    return place


def exit_code(tree: Path, tests: Sequence[str], select: str, *, seconds: float) -> int | None:
    """The exit code of tests in a tree, or None if time ran out."""
    process = FORKED.Process(target=_pytest, args=(tree, tests, select))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return None
    return process.exitcode


def _pytest(tree: Path, tests: Sequence[str], select: str) -> None:
    """In a process of its own, which has torch already: the tests of a tree, in silence."""
    os.setsid()
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")  # for processes that tests start
    sys.dont_write_bytecode = False  # the next mutant has one file to compile
    sys.path[:0] = [str(tree / "src"), str(tree)]
    import pytest

    words = ["-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", "-k", select]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that were imported before
    sys.exit(PASSED + pytest.main([*words, *tests]))


def outcome(tree: Path, mutant: Mutant) -> str:
    """Put a mutant into a tree, run its tests, and take it out again."""
    file = tree / "src" / "e3bm" / mutant.path
    whole = file.read_text()

    def write(text: str) -> None:
        file.write_text(text)
        now = next(CLOCK)  # a time that no compiled file of before has
        os.utime(file, (now, now))

    write(mutant.applied(whole))
    try:
        code = exit_code(tree, mutant.tests, mutant.select, seconds=SECONDS)
    finally:
        write(whole)
    if code is not None and code not in (PASSED, FAILED, BROKEN) and code >= 0:
        raise SystemExit(f"{mutant.name}: its tests could not be run (exit code {code}).")
    return {PASSED: "survived", None: "timed out"}.get(code, "killed")  # below zero: by a signal


def _selections(mutants: Sequence[Mutant]) -> dict[tuple[str, ...], str]:
    """The words that select all that mutants with the same tests select; none where one of them takes all."""
    words: dict[tuple[str, ...], set[str]] = {}
    for mutant in mutants:
        words.setdefault(mutant.tests, set()).add(mutant.select)
    return {tests: "" if "" in each else " or ".join(sorted(each)) for tests, each in words.items()}


def run(
    mutants: Sequence[Mutant], workers: int, trusted: bool, minutes: float = math.inf
) -> Iterator[tuple[Mutant, str]]:
    """What became of each, in order, until time is up.

    Before the first mutant with certain tests, these must pass in an unchanged copy, if they are not trusted.
    """
    end, selections, passed, checking = time.monotonic() + 60 * minutes, _selections(mutants), set(), Lock()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            (Path(folder) / str(number)).mkdir()
            trees.put(copied(Path(folder) / str(number)))

        def check(tree: Path, tests: tuple[str, ...]) -> None:
            if tests not in passed:
                if exit_code(tree, tests, selections[tests], seconds=10 * SECONDS) != PASSED:
                    raise SystemExit(f"{' '.join(tests)}: these tests do not pass in an unchanged copy.")
                passed.add(tests)

        def one(mutant: Mutant) -> str | None:
            tree = trees.get()
            try:
                if time.monotonic() > end:
                    return None
                with checking:
                    if not trusted:
                        check(tree, mutant.tests)
                return outcome(tree, mutant)
            finally:
                trees.put(tree)

        for mutant, found in zip(mutants, pool.map(one, mutants), strict=True):
            if found is not None:
                yield mutant, found


def chosen(mutants: Sequence[Mutant], only: Sequence[str], sample: int | None, seed: int) -> list[Mutant]:
    found = [mutant for mutant in mutants if not only or any(word in mutant.name for word in only)]
    return found if sample is None else random.Random(seed).sample(found, min(sample, len(found)))


def kept(path: Path, mutants: Sequence[Mutant]) -> dict[str, dict[str, str]]:
    """What a file tells of mutants that are still the same."""
    known = json.loads(path.read_text())["outcomes"] if path.exists() else {}
    same = (one for one in mutants if known.get(one.name, {}).get("change") == one.change)
    return {one.name: known[one.name] for one in same}


def keep(path: Path, mutants: Sequence[Mutant], mutant: Mutant, found: str) -> None:
    """Put an outcome, and the commit it is of, into a file; mutants that are not in the list any more leave it."""
    ask = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    known = kept(path, mutants)
    known[mutant.name] = {"outcome": found, "change": mutant.change, "commit": commit}
    killed = sum(one["outcome"] != "survived" for one in known.values())
    lines = [f" {json.dumps(one.name)}: {json.dumps(known[one.name])}" for one in mutants if one.name in known]
    head = f'{{"mutants": {len(known)}, "killed": {killed}, "outcomes": {{\n'
    path.write_text(head + ",\n".join(lines) + "\n}}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", type=Path, default=LIST, help="of mutants")
    parser.add_argument("--only", action="append", default=[], help="a word of the file or name; may be repeated")
    parser.add_argument("--sample", type=int, help="draw so many")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--workers", type=int, default=1, help="how many at a time")
    parser.add_argument("--trusted", action="store_true", help="the tests have just passed: do not run them first")
    parser.add_argument("--out", type=Path, help="file to keep the outcomes in")
    parser.add_argument("--go-on", action="store_true", help="leave out those whose outcome is in the file")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin with none after so long")
    settings = parser.parse_args()
    # Nothing of this machine's data: what kills a mutant must be the same everywhere.
    os.environ.pop("E3BM_TEST_DATA", None)
    os.environ["OMP_NUM_THREADS"] = "1"
    every = listed(settings.list)
    mutants, outcomes = chosen(every, settings.only, settings.sample, settings.seed), {}
    if settings.go_on and settings.out is not None:
        outcomes = {name: one["outcome"] for name, one in kept(settings.out, mutants).items()}
    left, started = [mutant for mutant in mutants if mutant.name not in outcomes], time.monotonic()
    print(f"{len(left)} mutants to run, {len(outcomes)} of {len(mutants)} known ...", flush=True)
    for mutant, found in run(left, settings.workers, settings.trusted, settings.minutes):
        outcomes[mutant.name] = found
        print(f"{found:>9}  {mutant.name}", flush=True)
        if settings.out is not None:
            keep(settings.out, every, mutant, found)
    minutes = (time.monotonic() - started) / 60
    survivors = [mutant for mutant in mutants if outcomes.get(mutant.name) == "survived"]
    killed = len(outcomes) - len(survivors)
    print(f"\n{killed} of {len(outcomes)} killed in {minutes:.1f} minutes; survivors:")
    for mutant in survivors:
        print(f"  {mutant.name}\n    {mutant.survives or 'UNEXPLAINED'}")
    if len(outcomes) < len(mutants):
        print(f"{len(mutants) - len(outcomes)} are still to be run.")
    explained = all(mutant.survives for mutant in survivors)
    return 0 if explained and len(outcomes) == len(mutants) and killed >= RATE * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
