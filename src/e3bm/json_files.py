"""The one reader and writer of JSON and JSON lines: bounded in size and depth, UTF-8 only, with digests.

Every object that is written carries the sha256 of the rest of it under ``content_sha256``. A line of a log carries the
first sixteen digits of the sha256 of itself and the digits before it, so that lines cannot get lost, either, but at the
end. Whoever reads gets what was written, or a ValueError that says in a few words what is wrong. Files of former
versions have no digests and are read as they are.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
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
LAST_SEAL = re.compile(rb'"check": "([0-9a-f]{16})"}\n\Z')
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
            raise ValueError("it holds half of a character") from None
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
        number, before, ours = 0, "", False
        while line := file.readline(LONGEST_LINE):
            number += 1
            if not line.strip():
                continue
            try:
                value = parse_json(line, LONGEST_LINE)
                seal = _seal_of(value, LINE_SEAL, before)
            except ValueError as error:
                # Ours are never cut but at the end: whoever appends drops what was cut.
                if _was_cut(line) and not (ours and line.endswith(b"\n")):
                    continue
                raise ValueError(f"line {number}: {error}") from None
            before, ours = (value[seal] if seal else ""), ours or seal is not None
            yield _without(value, seal) if seal else value


def json_bytes(value: Any) -> bytes:
    """A JSON file that a person can read; an object, or every object of a list, carries its digest."""
    plain = as_plain(value)
    marked = [sealed(each) for each in plain] if isinstance(plain, list) else sealed(plain)
    return (json.dumps(marked, indent=2, sort_keys=True) + "\n").encode("ascii")


def lines_bytes(records: Iterable[Mapping[str, Any]], before: str = "") -> bytes:
    """Lines of a JSON lines file with their digests; ``before`` is the digest of the line that they follow."""
    found = []
    for record in records:
        plain = as_plain(record)
        before = _digest(plain, LINE_SEAL, before)
        found.append(json.dumps({**plain, LINE_SEAL: before}).encode("ascii") + b"\n")
    return b"".join(found)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """One more line at the end of a file; a line that a crash cut short is dropped first."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        start = max(0, end - LONGEST_LINE)
        tail = b""
        for back in (1 << 12, LONGEST_LINE):  # a line is rarely long
            file.seek(max(start, end - back))
            tail = file.read()
            if tail.count(b"\n") > 1 or len(tail) == end:
                break
        whole = tail[: tail.rfind(b"\n") + 1]
        if len(whole) < len(tail):
            file.truncate(end - len(tail) + len(whole))
            file.seek(0, os.SEEK_END)
        last = LAST_SEAL.search(whole)
        file.write(lines_bytes([record], last.group(1).decode() if last else ""))


def as_plain(value: Any) -> Any:
    """A value as it comes back from a JSON file: lists, objects with text keys, texts, numbers; paths become texts."""
    return json.loads(json.dumps(value, default=str))


def sealed(value: Any) -> Any:
    """An object with the digest of its content; anything else as it is."""
    return {**value, SEAL: _digest(value, SEAL)} if isinstance(value, dict) else value


def unsealed(value: Any) -> Any:
    """The object without its digest, or a list of such; ValueError where a digest is not that of the content."""
    if isinstance(value, list):
        return [unsealed(each) if isinstance(each, dict) else each for each in value]
    seal = _seal_of(value, SEAL)
    return _without(value, seal) if seal else value


def _seal_of(value: Any, name: str, before: str = "") -> str | None:
    """Under which name an object carries its digest, after it was compared; None for one of a former version."""
    if not isinstance(value, dict):
        return None
    if name in value:
        if value[name] != _digest(_without(value, name), name, before):
            raise ValueError("its content is not what was written")
        return name
    # The name of the digest itself may be damaged, and nothing else.
    digits = LINE_DIGITS if name == LINE_SEAL else sha256().digest_size * 2
    likely = [key for key, each in value.items() if isinstance(each, str) and len(each) == digits]
    return next((key for key in likely if value[key] == _digest(_without(value, key), name, before)), None)


def _without(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key != name}


def digest_of_json(value: Any) -> str:
    """The sha256 of a value, whatever the order and layout in which it is written."""
    return sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()


def _digest(value: Mapping[str, Any], name: str, before: str = "") -> str:
    if name != LINE_SEAL:
        return digest_of_json(value)
    return sha256(before.encode() + json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()[:LINE_DIGITS]


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
