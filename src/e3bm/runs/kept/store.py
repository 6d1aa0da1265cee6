"""Kept results: groups of runs, read as runs and written whole."""

import hashlib
import io
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import safetensors.numpy

from e3bm.errors import CheckpointError, E3BMError
from e3bm.json_files import MOST_BYTES, json_bytes, parse_json, unsealed
from e3bm.runs.folder.files import read_json, reading_errors, write_bytes, write_json
from e3bm.runs.folder.run import Record, Run, assemble, read_run
from e3bm.runs.kept.group_files import (
    ANSWERED,
    ANSWERS,
    FORMAT,
    LOGS,
    OWN,
    RUNS,
    WEIGHTS,
    KeptRun,
    Weights,
    encode,
    jsonl,
    parse_lines,
    restored,
)
from e3bm.runs.result import Result
from e3bm.runs.settings import TrainSettings

STUDY = "study"  # the group of runs that tried settings out
ENVIRONMENTS, INDEXES, MANIFEST = "environments.json", "data_sets.jsonl", "manifest.json"
BEING_WRITTEN = "being_written"


class KeptGroup:
    """The runs of one folder of results."""

    def __init__(self, folder: Path, environments: Mapping[str, Record], content: Callable[[Path], bytes]) -> None:
        """``content`` reads a file and compares it with the manifest."""
        self.folder, self._environments, self._content = folder, environments, content

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Names of all runs, with their kind; the rest of the files is not opened for it."""
        with self._damage(RUNS):
            return {str(line["name"]): str(line["kind"]) for line in self._lines()[1:]}

    @cached_property
    def records(self) -> list[KeptRun]:
        """All runs, in the order of their names."""
        with self._damage(RUNS):
            return self._records()

    def _records(self) -> list[KeptRun]:
        head, *lines = self._lines()
        if head.get("format") != FORMAT:
            raise CheckpointError(
                f"{self.folder / RUNS} is of format {head.get('format')!r}; this e3bm reads format {FORMAT}."
            )
        logs = {line["name"]: line for line in self._lines(LOGS)}
        right, place = self._right(), 0
        found = []
        for line in lines:
            log = logs.get(line["name"], {})
            rows, answers = [], []
            for row, curves in zip(line["results"], log.get("curves", []), strict=True):
                known = row.pop(ANSWERED, True)
                whole = restored(row, head["result"]) | curves
                count = whole["episodes"] if known else 0
                answers.append(right[place : place + count] if known else None)
                place += count
                rows.append(whole)
            kind = line["kind"]
            config = {key: line[key] for key in ("version", "kind", "inputs", "input_shape")}
            config["settings"] = restored(line["settings"], head["base"][kind])
            environment = {**self._environments[line["environment"]], **{key: line[key] for key in OWN}}
            found.append(
                KeptRun(
                    name=line["name"],
                    config=config,
                    environment=environment,
                    results=tuple(rows),
                    answers=tuple(answers),
                    metrics=tuple(log.get("metrics", ())),
                    schedules=tuple(log.get("schedules", ())),
                    test_log=tuple(line["test_log"]),
                    checkpoint=line["checkpoint"],
                    trained_for=line["trained_for"],
                    extra=line["extra"],
                )
            )
        if place != len(right):
            raise CheckpointError(f"{self.folder / ANSWERS} has {len(right)} answers where the results need {place}.")
        return found

    def record(self, name: str) -> KeptRun:
        """One run, with its weights where they are kept."""
        found = next((each for each in self.records if each.name == name), None)
        if found is None:
            raise CheckpointError(f"{self.folder} keeps no run '{name}'; `e3bm results list` names those it keeps.")
        return replace(found, weights=self.weights(name))

    @cached_property
    def runs(self) -> list[Run]:
        """All runs as `read_run` would give them from their folders."""
        return [self._run(each) for each in self.records]

    def with_weights(self) -> list[KeptRun]:
        """All records, for writing the group anew."""
        return [replace(each, weights=self.weights(each.name)) for each in self.records]

    def _run(self, kept: KeptRun) -> Run:
        right = {
            (row["dataset"], row["split"], row["episodes_hash"]): answers
            for row, answers in zip(kept.results, kept.answers, strict=True)
        }

        def answers(result: Result) -> Sequence[int] | None:
            found = right.get(result.protocol)
            return None if found is None else found.tolist()

        return assemble(
            self.folder / kept.name,
            kept.config,
            lambda member: self._trained(kept.name, member),
            kept.results,
            environment=kept.environment,
            metrics=kept.metrics,
            schedules=kept.schedules,
            test_log=kept.test_log,
            answers=answers,
        )

    def _trained(self, name: str, member: Path) -> TrainSettings | None:
        """Settings of an ensemble's member, which lies beside it."""
        beside = str(Path(name).parent / member.name)
        return next((self._run(each).trained for each in self.records if each.name == beside), None)

    def _lines(self, name: str = RUNS) -> list[Record]:
        with self._damage(name):
            unpacker = lzma.LZMADecompressor()
            return parse_lines(unpacker.decompress(self._content(self.folder / name), max_length=MOST_BYTES))

    def _right(self) -> np.ndarray:
        path = self.folder / ANSWERS
        if not path.exists() and not any(row for line in self._lines()[1:] for row in line["results"]):
            return np.zeros(0, np.uint8)  # runs without results
        with self._damage(ANSWERS), np.load(io.BytesIO(self._content(path)), allow_pickle=False) as arrays:
            right: np.ndarray = arrays["right"]
            return right

    def weights(self, name: str) -> Weights | None:
        """The weights of a run, where they are kept."""
        if not (self.folder / WEIGHTS).exists():
            return None
        with self._damage(WEIGHTS):
            texts, tensors = self._tensors
            same = parse_json(texts.get("same", "{}"))
            own = {key for key in (*tensors, *same) if key.rpartition("/")[0] == name}
            found = {key.rpartition("/")[2]: tensors[same.get(key, key)] for key in sorted(own)}
        return found or None

    @cached_property
    def _tensors(self) -> tuple[dict[str, str], Weights]:
        content = self._content(self.folder / WEIGHTS)
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return header.get("__metadata__", {}), safetensors.numpy.load(content)

    @contextmanager
    def _damage(self, name: str) -> Iterator[None]:
        """Whatever is wrong with a file of the group becomes a sentence."""
        try:
            yield
        except E3BMError:
            raise
        except Exception as error:  # of four parsers, on bytes that no manifest answers for
            why = str(error).partition("\n")[0][:160] or type(error).__name__
            raise CheckpointError(f"{self.folder / name} cannot be read as kept runs: {why}.") from error


class KeptResults:
    """A folder of kept results."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: dict[str, KeptGroup] = {}

    @property
    def exists(self) -> bool:
        return (self.root / MANIFEST).exists()

    def check_exists(self) -> None:
        """Refuse a place where nothing is kept."""
        if not self.exists:
            where = f"no kept results in {self.root}" if self.root.is_dir() else f"no folder {self.root} here"
            raise CheckpointError(f"There is {where}; name the folder of kept results with --results.")

    @cached_property
    def environments(self) -> dict[str, Record]:
        path = self.root / ENVIRONMENTS
        with reading_errors(path):
            found = unsealed(parse_json(self.content(path))) if path.exists() else {}
            if not isinstance(found, dict):
                raise ValueError("it is not a table of environments")
        return found

    def group(self, name: str) -> KeptGroup:
        """The runs of one folder, read when somebody asks for them and then kept."""
        if name not in self._opened:
            self._opened[name] = KeptGroup(self.root / name, self.environments, self.content)
        return self._opened[name]

    def content(self, path: Path) -> bytes:
        """The bytes of a file, if they are those that the manifest answers for."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
        accepted = self._accepted.get(path.relative_to(self.root).as_posix())
        if accepted is not None and hashlib.sha256(content).hexdigest() not in accepted:
            raise CheckpointError(
                f"{path} is not what was written: its sha256 is not the one in {self.root / MANIFEST}. Restore it "
                "from a copy; `e3bm results check` looks at all files."
            )
        return content

    @cached_property
    def _accepted(self) -> dict[str, tuple[str, ...]]:
        """Digests of every file: of what is there and, where a writer was killed, of what it was writing."""
        manifest = self._manifest() if self.exists else {}
        parts = [manifest.get("sha256", {}), manifest.get(BEING_WRITTEN, {})]
        if not all(isinstance(part, dict) for part in parts):
            raise CheckpointError(f"{self.root / MANIFEST} is damaged: it has no table of digests.")
        names = {name for part in parts for name in part}
        return {name: tuple(str(part[name]) for part in parts if name in part) for name in names}

    def _manifest(self) -> Record:
        found = read_json(self.root / MANIFEST)
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.root / MANIFEST} is damaged: it has no table of digests.")
        return found

    @property
    def groups(self) -> list[str]:
        """Names of all groups."""
        return sorted(path.parent.name for path in self.root.glob(f"*/{RUNS}"))

    def runs(self, under: str = "") -> list[Run]:
        """All runs, or those whose place begins with a group's name or a part of one, such as study/sib-faster."""
        group, _, part = under.partition("/")
        chosen = [name for name in self.groups if group in ("", name)]
        found = [run for name in chosen for run in self.group(name).runs]
        place = self.root / group / part
        return [run for run in found if not part or run.path.is_relative_to(place)]

    def tabled(self) -> list[Run]:
        """The runs that tables are made of: all but those that tried settings out."""
        return [run for name in self.groups if name != STUDY for run in self.runs(name)]

    def indexes(self) -> list[Record]:
        """Class indexes of the data sets that runs were tested on, as plain values."""
        path = self.root / INDEXES
        with reading_errors(path):
            return parse_lines(self.content(path)) if path.exists() else []

    def write(self, groups: Mapping[str, Iterable[KeptRun]], indexes: Sequence[Record] = ()) -> None:
        """Replace whole groups, add class indexes that are new, and bring the manifest up to date."""
        environments = dict(self.environments)
        contents: dict[Path, bytes | None] = {}
        for name, records in groups.items():
            parts = encode(sorted(records, key=lambda each: each.name), environments)
            contents |= {self.root / name / file: part for file, part in parts.items()}
        known = {each["digest"]: each for each in (*self.indexes(), *indexes)}
        lines = sorted(known.values(), key=lambda each: (each["name"], each["digest"]))
        contents |= {self.root / ENVIRONMENTS: json_bytes(environments), self.root / INDEXES: jsonl(lines)}
        written = {
            path.relative_to(self.root).as_posix(): hashlib.sha256(part).hexdigest()
            for path, part in contents.items()
            if part is not None
        }
        # Whoever reads while this goes on, or after it was killed, finds the old files or the new ones.
        before = self._manifest() if self.exists else {"format": FORMAT, "sha256": {}}
        write_json(self.root / MANIFEST, {**before, BEING_WRITTEN: written})
        for path, part in contents.items():
            if part is None:
                path.unlink(missing_ok=True)
            else:
                write_bytes(path, part)
        self._opened.clear()
        for name in ("environments", "_accepted"):
            self.__dict__.pop(name, None)
        write_json(self.root / MANIFEST, {"format": FORMAT, "sha256": self.digests()})
        self.__dict__.pop("_accepted", None)

    def digests(self) -> dict[str, str]:
        """sha256 of every file that the manifest answers for, as it is now."""
        own = [self.root / name / file for name in self.groups for file in (RUNS, LOGS, ANSWERS, WEIGHTS)]
        paths = [path for path in (*own, self.root / ENVIRONMENTS, self.root / INDEXES) if path.exists()]
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)
        }

    def damages(self) -> list[str]:
        """Files that are not what the manifest says, in words."""
        manifest, found = self._manifest(), self.digests()
        if BEING_WRITTEN in manifest:
            return [f"{MANIFEST} was being written when its writer was killed; add the same runs again"]
        known = manifest.get("sha256", {})
        changed = [f"{name} is not what was written" for name in known if name in found and known[name] != found[name]]
        changed += [f"{name} is missing" for name in known if name not in found]
        return changed + [f"{name} is not in the manifest" for name in found if name not in known]


def open_results(root: Path) -> KeptResults:
    """The results of a folder; whoever asks again has those that were read, as long as their manifest is the same."""
    try:
        manifest = (root / MANIFEST).read_bytes()
    except OSError:
        return KeptResults(root)
    if f'"{BEING_WRITTEN}"'.encode() in manifest:  # it may stay as it is while files change
        return KeptResults(root)
    return _read_once(root, Path.cwd(), manifest)


@lru_cache(maxsize=4)
def _read_once(root: Path, seen_from: Path, manifest: bytes) -> KeptResults:
    """The same object for the same contents: the manifest has the digest of every file."""
    return KeptResults(root)


def kept_run(path: Path) -> tuple[KeptGroup, str] | None:
    """The group and name of a path such as results/fc100/NAME, if a run is kept there."""
    for folder in path.parents:
        if (folder / RUNS).is_file():
            group, name = open_results(folder.parent).group(folder.name), str(path.relative_to(folder))
            return (group, name) if name in group.kinds else None
    return None


def kept_runs(path: Path) -> list[Run]:
    """The runs that are kept under a path such as results/fc100, results/study/NAME or results/fc100/NAME."""
    for folder in (path, *path.parents):
        if (folder / RUNS).is_file():
            runs = open_results(folder.parent).group(folder.name).runs
            return [run for run in runs if run.path.is_relative_to(path)]
    return []


def open_run(path: Path) -> Run:
    """The run of a run folder, or the one that is kept under such a place in the results."""
    kept = None if path.exists() else kept_run(path)
    if kept is None:
        return read_run(path)
    group, name = kept
    return next(run for run in group.runs if str(run.path.relative_to(group.folder)) == name)
