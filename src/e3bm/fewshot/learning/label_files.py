"""Labels in a table instead of in folders: a CSV file or data frame (path, label), or the JSON of Label Studio."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from e3bm.data.read.photos import ON_THE_WEB, UnusedFile, is_web_address
from e3bm.errors import DataError, some_of
from e3bm.json_files import parse_json

SUFFIXES = (".csv", ".tsv", ".json")
OTHER_LISTS = (".xlsx", ".xls", ".ods", ".numbers", ".txt")
"""Files in which people keep lists, and which are not read."""
PATH_COLUMNS = ("path", "filename", "file", "image", "photo")
TEXT_COLUMNS = ("text", "sentence", "content")
LABEL_COLUMNS = ("label", "class", "choice", "category")
EXAMPLE_COLUMNS = {"photo": PATH_COLUMNS, "sentence": TEXT_COLUMNS}
"""What the column of examples may be called, by what one example is."""
LARGEST_FILE = 256 << 20


@dataclass(frozen=True)
class LabelledPaths:
    """Photos with their labels, and the entries of the file that have none."""

    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    unused: tuple[UnusedFile, ...] = ()

    def by_class(self) -> dict[str, list[Path]]:
        """The photos of every class, in the order of the file."""
        found: dict[str, list[Path]] = {}
        for path, label in zip(self.paths, self.labels, strict=True):
            found.setdefault(label, []).append(path)
        return found


def is_label_file(source: Path) -> bool:
    """Whether a path is a file that lists photos with their labels."""
    return source.suffix.lower() in SUFFIXES and source.is_file()


def check_path(source: Path) -> None:
    """Refuse such a file that is not there, a list of another kind, and an address of the web."""
    suffix = source.suffix.lower()
    if suffix in SUFFIXES and not source.exists():
        raise DataError(f"There is no file {source}; expected a table with a path and a label in every line.")
    if suffix in OTHER_LISTS and source.is_file():
        raise DataError(
            f"{source} is a list of a kind that is not read ({suffix}); save it as a CSV file (.csv) with a path and a "
            "label in every line."
        )
    if is_web_address(source):
        address = str(source).replace(":/", "://", 1)  # a path has no empty parts
        raise DataError(f"{address} is {ON_THE_WEB}.")


def read_label_file(source: Path, *, skip_missing: bool = False) -> LabelledPaths:
    """The photos and labels of a file; photos are looked for next to it. DataError says what cannot be used.

    Photos that are not there are an error too, unless whoever reads the photos is to skip what cannot be read.
    """
    text = _text(source)
    entries = list(_label_studio(source, text) if source.suffix.lower() == ".json" else _table(source, text))
    labelled = [(path, label) for path, label in entries if isinstance(label, str)]
    unused = tuple(UnusedFile(path, str(why.reason)) for path, why in entries if isinstance(why, _NoLabel))
    if not labelled:
        is_json = source.suffix.lower() == ".json"
        expected = "task needs an image and one choice" if is_json else "line must be `path,label`"
        raise DataError(f"{source} has no photo with a label; each {expected}.")
    found = [(_place(source, path), path, label) for path, label in labelled]
    missing = [path for place, path, _ in found if place is None]
    if missing and not skip_missing:
        raise DataError(
            f"{source} names photos that are not there: {some_of(missing)}; continue without them with "
            "--skip-unreadable (skip_unreadable=True in Python), or correct them: paths are relative to its folder, "
            f"{source.parent.resolve()}."
        )
    places = tuple(source.parent / path if place is None else place for place, path, _ in found)
    return LabelledPaths(places, tuple(label for _, _, label in found), unused)


def is_frame(source: object) -> bool:
    """Whether it is a data frame, of pandas or of a library like it, which need not be installed."""
    return hasattr(source, "columns") and hasattr(source, "shape")


def frame_examples(source: Any, noun: str = "photo") -> Any:
    """The photos or sentences of a data frame: the column of that name, or its only column of text beside the labels.

    Whatever is no frame is given back as it is.
    """
    if not is_frame(source):
        return source
    known, labels = EXAMPLE_COLUMNS.get(noun, ()), _column(source, LABEL_COLUMNS)
    name = _column(source, known)
    if name is None:
        texts = [one for one in source.columns if one != labels and _holds_text(source[one])]
        name = texts[0] if len(texts) == 1 else None
    if name is None:
        raise DataError(f"{_shown(source)}; expected a column {' or '.join(known[:1])} with the {noun}s.")
    return list(source[name])


def frame_labels(source: Any) -> list[object]:
    """The labels of a data frame."""
    name = _column(source, LABEL_COLUMNS)
    if name is None and len(source.columns) != 1:
        raise DataError(f"{_shown(source)}; expected a column label, or labels beside the frame: fit(frame, labels).")
    return list(source[source.columns[0] if name is None else name])


def _column(frame: Any, known: Sequence[str]) -> Any:
    names = {str(name).strip().lower(): name for name in frame.columns}
    return next((names[one] for one in known if one in names), None)


def _holds_text(column: Any) -> bool:
    values = list(column)
    return bool(values) and all(isinstance(value, str | Path) for value in values)


def _shown(frame: Any) -> str:
    names = ", ".join(map(str, frame.columns))
    return f"The data frame has the columns {names}" if names else "The data frame has no columns"


@dataclass(frozen=True)
class _NoLabel:
    reason: str


Entry = tuple[str, "str | _NoLabel"]


def _text(source: Path) -> str:
    try:
        with source.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise DataError(f"{source} has more than the {LARGEST_FILE:,} bytes that are read.")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{source} is not UTF-8 text; save it as UTF-8.") from None
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}.") from None


def read_text_table(source: Path) -> dict[str, list[str]]:
    """The sentences of every topic from a CSV file with the columns text and label."""
    if not is_label_file(source) or source.suffix.lower() == ".json":
        raise DataError(f"There is no table {str(source)[:80]!r}; expected a CSV file with the columns text and label.")
    found: dict[str, list[str]] = {}
    for text, label in _table(source, _text(source), TEXT_COLUMNS):
        if isinstance(label, str):
            found.setdefault(label, []).append(text)
    return found


def _table(source: Path, text: str, first_columns: Sequence[str] = PATH_COLUMNS) -> Iterator[Entry]:
    """Rows of a table; the columns are found by name, and without names they are the first two."""
    first = text.split("\n", 1)[0]
    comma = max(",;\t", key=first.count) if any(map(first.count, ",;\t")) else ","
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=comma, strict=True) if any(map(str.strip, row))]
    except csv.Error as error:
        raise DataError(f"{source} is not a readable table ({error}); each line must be `path,label`.") from None
    if not rows:
        raise DataError(f"{source} is empty; each line must be `path,label`.")
    names = [name.strip().lower() for name in rows[0]]
    at, label_at = (
        next((names.index(name) for name in known if name in names), None) for known in (first_columns, LABEL_COLUMNS)
    )
    if at is None and label_at is None:
        at, label_at, start = 0, 1, 0
    elif at is None or label_at is None:
        raise DataError(f"{source} has the columns {', '.join(rows[0])}; expected {first_columns[0]} and label.")
    else:
        start = 1
    cells = [[cell.strip() for cell in row] for row in rows]
    short = [
        number
        for number, row in enumerate(cells[start:], start + 1)
        if len(row) <= max(at, label_at) or not row[at] or (len(row) > 2 and not start)
    ]
    if short:
        which = some_of([str(number) for number in short])
        raise DataError(
            f"{source} has rows without a {first_columns[0]} and a label, or with other cells: {which}; "
            f"each line must be `{first_columns[0]},label`, or the first line must name the columns."
        )
    for row in cells[start:]:
        yield row[at], row[label_at] or _NoLabel("no label in the table")


def _label_studio(source: Path, text: str) -> Iterator[Entry]:
    """Tasks of Label Studio's JSON, or rows of its JSON-MIN: an image and the choice of every annotator."""
    try:
        tasks = parse_json(text)
    except ValueError as error:
        raise DataError(f"{source} is not readable JSON ({error}); export JSON from Label Studio.") from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{source} is not an export of Label Studio; expected a list of tasks, as its JSON export has.")
    for number, task in enumerate(tasks, 1):
        try:
            data = task.get("data", task)
            path = next(data[name] for name in PATH_COLUMNS if isinstance(data.get(name), str))
            yield path, _one_choice(list(_choices(task)))
        except (StopIteration, AttributeError, TypeError):
            raise DataError(
                f"Task {number} of {source} is not as Label Studio writes it; expected the address of its image under "
                "data.image and the choices under annotations."
            ) from None


def _choices(task: dict[str, Any]) -> Iterator[str | tuple[str, ...]]:
    if "annotations" not in task:
        yield from (task[name] for name in LABEL_COLUMNS if isinstance(task.get(name), str))
        return
    for annotation in task["annotations"] or ():
        if annotation.get("was_cancelled"):
            continue
        for result in annotation.get("result") or ():
            chosen = (result.get("value") or {}).get("choices")
            if isinstance(chosen, list) and chosen:
                yield str(chosen[0]) if len(chosen) == 1 else tuple(map(str, chosen))


def _one_choice(choices: Sequence[str | tuple[str, ...]]) -> str | _NoLabel:
    if not choices:
        return _NoLabel("not labelled yet")
    if len(set(choices)) > 1:
        return _NoLabel("its annotators disagree")
    return choices[0] if isinstance(choices[0], str) else _NoLabel("more than one choice")


def _place(source: Path, written: str) -> Path | None:
    """Where a photo lies: as it is written, or by its name; an upload of Label Studio has a code before its name."""
    folder, parts = source.parent, urlsplit(written)
    local = parse_qs(parts.query).get("d", [""])[0]
    path = local or (unquote(parts.path) if parts.scheme or parts.path.startswith("/data/") else written)
    name = Path(path).name
    tried = [folder / written, folder / path.lstrip("/"), folder / name, folder / "images" / name]
    if "/upload/" in written and "-" in name:
        tried.append(folder / name.split("-", 1)[1])
    for place in tried:
        try:
            if place.is_file():
                return place
        except (OSError, ValueError):
            continue
    return None
