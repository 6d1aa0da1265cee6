"""Damage to files: of their bytes, as disks and cables do it, and of what they say, as a liar would.

Every mutation is a function of a random generator and the content; the same seed gives the same damage on any machine.
"""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from e3bm.json_files import LINE_SEAL, SEAL, lines_bytes, sealed

Mutation = Callable[[Random, bytes], bytes]
ODD = (
    None, True, -1, 0, 1.5, 10**30, 1e-320, float("nan"), float("inf"), "", "x", "../x", "\x1b[31m", [], {}, [[]],
    {"a": {"b": []}}, [1, 2], "9" * 5000,
)  # fmt: skip
TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "F8_E4M3", "none")


def flip_bit(random: Random, content: bytes) -> bytes:
    place = random.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << random.randrange(8)]) + content[place + 1 :]


def change_byte(random: Random, content: bytes) -> bytes:
    place = random.randrange(len(content))
    return content[:place] + bytes([random.randrange(256)]) + content[place + 1 :]


def zero_a_stretch(random: Random, content: bytes) -> bytes:
    first, last = _stretch(random, content)
    return content[:first] + bytes(last - first) + content[last:]


def cut(random: Random, content: bytes) -> bytes:
    return content[: random.randrange(len(content))]


def drop_a_stretch(random: Random, content: bytes) -> bytes:
    first, last = _stretch(random, content)
    return content[:first] + content[last:]


def repeat_a_stretch(random: Random, content: bytes) -> bytes:
    first, last = _stretch(random, content)
    return content[:last] + content[first:]


def insert(random: Random, content: bytes) -> bytes:
    place = random.randrange(len(content) + 1)
    word = random.choice([b"\xff", b"\0" * 8, b"[" * 5000, b'{"a":' * 5000, b"\xed\xa0\x80", b"(" * 5000, b"9" * 5000])
    return content[:place] + word + content[place:]


DAMAGES: tuple[Mutation, ...] = (
    flip_bit, flip_bit, flip_bit, change_byte, zero_a_stretch, cut, drop_a_stretch, repeat_a_stretch, insert
)  # fmt: skip


def lie_in_json(random: Random, content: bytes) -> bytes:
    """Another value, key or depth somewhere in a JSON file, with digests that fit, or as a former version: none."""
    value = _changed(random, json.loads(content))
    dress = _sealed if random.random() < 0.5 else _bare
    return json.dumps([dress(row) for row in value] if isinstance(value, list) else dress(value)).encode()


def lie_in_lines(random: Random, content: bytes) -> bytes:
    """The same in one line of a log."""
    lines = [{key: each for key, each in json.loads(line).items() if key != LINE_SEAL} for line in content.splitlines()]
    place = random.randrange(len(lines))
    lines[place] = _changed(random, lines[place])
    if isinstance(lines[place], dict) and random.random() < 0.5:
        return lines_bytes(lines)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def lie_in_tensors(random: Random, content: bytes) -> bytes:
    """Another type, shape, place or text in the header of a safetensors file."""
    length = struct.unpack("<Q", content[:8])[0]
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    name = random.choice([key for key in header if key != "__metadata__"])
    kind = random.randrange(6)
    if kind == 0:
        header[name]["dtype"] = random.choice(TYPES)
    elif kind == 1:
        shape = header[name]["shape"]
        header[name]["shape"] = random.choice([[], [0], [10**12], [-1], [1, *shape], shape[::-1]])
    elif kind == 2:
        header[name]["data_offsets"] = [random.randrange(10**4), random.randrange(10**6)]
    elif kind == 3 and header.get("__metadata__"):
        key = random.choice(list(header["__metadata__"]))
        header["__metadata__"][key] = random.choice(["", "{}", "[" * 5000, "null", "7", '{"format": []}'])
    elif kind == 4:
        header[random.choice(["x", "head.x", "__metadata__"])] = header.pop(name)
    else:
        header = _changed(random, header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def lie_in_array(random: Random, content: bytes) -> bytes:
    """Another type, order or shape in the header of a NumPy file."""
    start = content.find(b"{'descr'")
    end = content.find(b"\n", start)
    header = content[start:end]
    one, other = random.choice(
        [(b"<i8", b"<f8"), (b"<i8", b"|O"), (b"<i8", b"<U9"), (b"|u1", b"<u2"), (b"<f4", b"<f2"), (b"False", b"True"),
         (b"(", b"(9999999999, "), (b"(", b"(" * 40), (b"'shape'", b"'shapes'"), (b"(", b"(-1, ")]
    )  # fmt: skip
    return content[:start] + header.replace(one, other).ljust(len(header)) + content[end:]


def _changed(random: Random, value: Any) -> Any:
    """A copy with one place changed, removed, renamed or buried."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(sorted(value))
        kind = random.random()
        if kind < 0.1:
            return {name: each for name, each in value.items() if name != key}
        if kind < 0.15:
            return {(name + "x" if name == key else name): each for name, each in value.items()}
        return {**value, key: _changed(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.9:
        place = random.randrange(len(value))
        return [*value[:place], _changed(random, value[place]), *value[place + 1 :]]
    if random.random() < 0.1:
        return _buried(value)
    return random.choice(ODD)


def _buried(value: Any) -> Any:
    for _ in range(500):
        value = [value]
    return value


def _bare(value: Any) -> Any:
    return {key: each for key, each in value.items() if key != SEAL} if isinstance(value, dict) else value


def _sealed(value: Any) -> Any:
    try:
        return sealed(_bare(value))
    except RecursionError:
        return value


def _stretch(random: Random, content: bytes) -> tuple[int, int]:
    first = random.randrange(len(content))
    return first, min(len(content), first + random.choice([1, 2, 8, 64, 512, 4096]))
