"""The one reader and writer of JSON and JSON lines: bounded in size and depth, UTF-8 only, with digests.

Every object that is written carries the sha256 of the rest of it under ``content_sha256``; a line of a log carries the
first sixteen digits. Whoever reads it gets what was written or a ValueError that says in a few words what is wrong.
Files of former versions have no digest and are read as they are.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

SEAL = "content_sha256"
LINE_SEAL, LINE_DIGITS = "check", 16
MOST_BYTES = 256 << 20
LONGEST_LINE = 64 << 20
DEEPEST = 64
"""Brackets inside brackets; nothing that is written here has ten."""
OTHER_LETTERS = bytes(set(range(256)) - set(b"[]{}"))
TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
CUT_ENDS = re.compile(r"|-|\.\d*|[eE][-+]?\d*|t|tr|tru|f|fa|fal|fals|n|nu|nul|Na?|-?I[a-z]{,6}")
"""Numbers and words that have only begun."""


def parse_json(content: bytes | str, most: int = MOST_BYTES) -> Any:
    """What a JSON text says; ValueError for one that is too long, too deep, not UTF-8 or not JSON."""
    raw = content.encode("utf-8") if isinstance(content, str) else content
    if len(raw) > most:
        raise ValueError(f"it has {len(raw):,} bytes, more than the {most:,} that are read")
    _check_depth(raw)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:
        # Half of a letter cannot be printed, nor written to any file.
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("it holds half of a letter") from None
    return value


def read_json_file(path: Path, most: int = MOST_BYTES) -> Any:
    """What a JSON file says, after its digests were compared; OSError where it cannot be read, ValueError otherwise."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    return unsealed(parse_json(content, most))


def read_json_lines(path: Path) -> Iterator[Any]:
    """The values of a JSON lines file, one after another, after their digests were compared.

    A line that a crash cut short is passed over; any other that is not what was written is a ValueError.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if not line.strip():
                continue
            try:
                value = unsealed(parse_json(line, LONGEST_LINE), LINE_SEAL)
            except ValueError as error:
                if _was_cut(line):
                    continue
                raise ValueError(f"line {number}: {error}") from None
            yield value


def json_bytes(value: Any) -> bytes:
    """A JSON file that a person can read; an object, or every object of a list, carries its digest."""
    plain = as_plain(value)
    marked = [sealed(each) for each in plain] if isinstance(plain, list) else sealed(plain)
    return (json.dumps(marked, indent=2, sort_keys=True) + "\n").encode("ascii")


def line_bytes(record: Mapping[str, Any]) -> bytes:
    """One line of a JSON lines file, with its digest."""
    return json.dumps(sealed(as_plain(record), LINE_SEAL)).encode("ascii") + b"\n"


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """One more line at the end of a file; a line that a crash cut short is dropped first."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        if end and file.seek(end - 1) >= 0 and file.read(1) != b"\n":
            start = max(0, end - LONGEST_LINE)
            file.seek(start)
            file.truncate(start + file.read().rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        file.write(line_bytes(record))


def as_plain(value: Any) -> Any:
    """A value as it comes back from a JSON file: lists, objects with text keys, texts, numbers; paths become texts."""
    return json.loads(json.dumps(value, default=str))


def sealed(value: Any, name: str = SEAL) -> Any:
    """An object with the digest of its content; anything else as it is."""
    return {**value, name: _digest(value, name)} if isinstance(value, dict) else value


def unsealed(value: Any, name: str = SEAL) -> Any:
    """The object without its digest, or a list of such; ValueError where a digest is not that of the content."""
    if isinstance(value, list):
        return [unsealed(each, name) if isinstance(each, dict) else each for each in value]
    if not isinstance(value, dict):
        return value
    if name in value:
        rest = _without(value, name)
        if value[name] != _digest(rest, name):
            raise ValueError("its content is not what was written")
        return rest
    # Of a former version; or the name of the digest itself is damaged, and nothing else.
    digits = LINE_DIGITS if name == LINE_SEAL else sha256().digest_size * 2
    likely = [key for key, each in value.items() if isinstance(each, str) and len(each) == digits]
    found = next((key for key in likely if value[key] == _digest(_without(value, key), name)), None)
    return value if found is None else _without(value, found)


def _without(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key != name}


def digest_of_json(value: Any) -> str:
    """The sha256 of a value, whatever the order and layout in which it is written."""
    return sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()


def _digest(value: Mapping[str, Any], name: str) -> str:
    whole = digest_of_json(value)
    return whole[:LINE_DIGITS] if name == LINE_SEAL else whole


def _check_depth(raw: bytes) -> None:
    """Refuse deep brackets before a parser follows them; texts do not count."""
    if raw.count(b"[") + raw.count(b"{") <= DEEPEST:
        return
    depth = 0
    for letter in TEXTS.sub(b"", raw).translate(None, OTHER_LETTERS):
        depth += 1 if letter in b"[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"its brackets are nested deeper than {DEEPEST}")


def _was_cut(line: bytes) -> bool:
    """Whether a line is the first part of an object that somebody was writing; its digest would have come last."""
    if not line.startswith(b"{") or (line.endswith(b"\n") and f'"{LINE_SEAL}"'.encode() in line):
        return False
    text = line.decode("ascii", "replace").strip()
    try:
        _check_depth(line)
        json.loads(text)
    except json.JSONDecodeError as error:
        # What is wrong with it must be its end: an open text, nothing, or the beginning of a number or a word.
        if error.msg.startswith("Invalid \\"):
            return error.pos >= len(text) - len("\\u0000")
        return error.msg.startswith("Unterminated string") or bool(CUT_ENDS.fullmatch(text, error.pos))
    except ValueError:
        return False
    return False
