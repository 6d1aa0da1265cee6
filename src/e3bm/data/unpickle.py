"""A reader for the pickles that data sets are handed round in, which has no way to run what they contain.

It is an interpreter of its own for the few instructions such files use: containers, numbers, texts and numpy arrays.
Python's pickle module is never asked to load anything. Long byte strings stay in the file and are only pointed at, so
that a file larger than the memory can be read.
"""

import codecs
import pickle
import struct
from collections.abc import Callable
from io import BufferedIOBase
from typing import Any

from e3bm.data.pickled_values import ALLOWED, CALLS, StoredArray, StoredBytes, StoredType, as_text, check_array
from e3bm.errors import DataError

STAYS_IN_FILE_FROM = 512
"""Byte strings at least this long are not read while the structure is."""
MOST_INSTRUCTIONS = 30_000_000
LONGEST_LINE, LONGEST_NUMBER = 256 << 20, 1024
DAMAGE = (LookupError, TypeError, ValueError, OverflowError, AttributeError, struct.error, EOFError, OSError)


class _Name:
    """One of the allowed names; it is looked at, never called."""

    def __init__(self, name: str) -> None:
        self.name = name


_MARK = object()


def unpickle(file: BufferedIOBase, size: int, shown_name: str) -> Any:
    """The structure of a pickle; anything but plain containers, numbers, texts and arrays is refused by name."""
    try:
        return _Machine(file, size, shown_name).run()
    except DAMAGE as error:
        detail = str(error) or type(error).__name__
        raise DataError(
            f"{shown_name} is damaged or not a pickle of a known kind ({detail}); fetch it again."
        ) from error


class _Machine:
    def __init__(self, file: BufferedIOBase, size: int, shown_name: str) -> None:
        self.file, self.size, self.shown_name = file, size, shown_name
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        read = self.file.read
        for done in range(MOST_INSTRUCTIONS):
            code = read(1)
            if code == pickle.STOP:
                return self.stack.pop()
            if not code:
                raise EOFError("it ends too early")
            action = ACTIONS.get(code)
            if action is None and not done:
                raise ValueError(f"it begins with {code!r}")
            if action is None:
                raise self.refused(f"the instruction {code!r}")
            action(self)
        raise ValueError(f"more than {MOST_INSTRUCTIONS:,} instructions")

    def refused(self, what: str) -> DataError:
        return DataError(
            f"{self.shown_name} holds {what}, which no known data file does; nothing of it was run and it is refused."
        )

    def take(self, count: int) -> bytes:
        content = self.file.read(count)
        if len(content) != count:
            raise EOFError("it ends too early")
        return content

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self) -> bytes:
        content = self.file.readline(LONGEST_LINE)
        if not content.endswith(b"\n"):
            raise EOFError("it ends too early")
        return content[:-1]

    def string(self, length: int, utf8: bool) -> "bytes | str | StoredBytes":
        if length < STAYS_IN_FILE_FROM:
            content = self.take(length)
            return content.decode("utf-8", "surrogatepass") if utf8 else content
        offset = self.file.tell()
        if offset + length > self.size:
            raise EOFError("it ends too early")
        self.file.seek(offset + length)
        return StoredBytes(offset, length, utf8)

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def find(self, module: str, name: str) -> None:
        if (module, name) not in ALLOWED:
            raise self.refused(f"'{module}.{name}'")
        self.stack.append(_Name(ALLOWED[module, name]))

    def call(self) -> None:
        arguments, target = self.stack.pop(), self.stack.pop()
        if not isinstance(target, _Name) or not isinstance(arguments, tuple):
            raise self.refused("a call of something that is no function")
        self.stack.append(CALLS[target.name](*arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, StoredArray):
            _, target.shape, kind, fortran, target.content = state
            target.dtype = kind.dtype
            check_array(target, fortran)
        elif isinstance(target, StoredType):
            target.complete(state)
        else:
            raise self.refused("an object with a state of its own")


def _append(machine: _Machine, values: list[Any]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, list):
        raise machine.refused("an append to something that is no list")
    target.extend(values)


def _set_items(machine: _Machine, values: list[Any]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, dict):
        raise machine.refused("a key in something that is no dictionary")
    target.update(zip(values[::2], values[1::2], strict=True))


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(make(machine))


def _collect(machine: _Machine, count: int) -> tuple[Any, ...]:
    values = tuple(machine.stack[len(machine.stack) - count :])
    if len(values) != count or any(value is _MARK for value in values):
        raise IndexError("a tuple of too few values")
    del machine.stack[len(machine.stack) - count :]
    return values


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _remember(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


def _long(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


def _bounded(length: int) -> int:
    if not 0 <= length <= LONGEST_NUMBER:
        raise ValueError(f"a number of {length} bytes")
    return length


def _line_integer(line: bytes) -> "int | bool":
    return line == b"01" if line in (b"00", b"01") else int(line.rstrip(b"L"))


def _quoted(line: bytes) -> bytes:
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a text without quotes")
    return codecs.escape_decode(line[1:-1])[0]


ACTIONS: dict[bytes, Callable[[_Machine], Any]] = {
    pickle.PROTO: lambda m: m.take(1),
    pickle.FRAME: lambda m: m.take(8),
    pickle.MARK: _push(lambda m: _MARK),
    pickle.POP: lambda m: m.stack.pop(),
    pickle.POP_MARK: lambda m: m.since_mark(),
    pickle.DUP: _push(lambda m: m.stack[-1]),
    pickle.NONE: _push(lambda m: None),
    pickle.NEWTRUE: _push(lambda m: True),
    pickle.NEWFALSE: _push(lambda m: False),
    pickle.INT: _push(lambda m: _line_integer(m.line())),
    pickle.LONG: _push(lambda m: _line_integer(m.line())),
    pickle.BININT: _push(lambda m: m.number("<i")),
    pickle.BININT1: _push(lambda m: m.take(1)[0]),
    pickle.BININT2: _push(lambda m: m.number("<H")),
    pickle.LONG1: _push(lambda m: _long(m.take(m.take(1)[0]))),
    pickle.LONG4: _push(lambda m: _long(m.take(_bounded(m.number("<i"))))),
    pickle.FLOAT: _push(lambda m: float(m.line())),
    pickle.BINFLOAT: _push(lambda m: m.number(">d")),
    pickle.STRING: _push(lambda m: _quoted(m.line())),
    pickle.BINSTRING: _push(lambda m: m.string(m.number("<I"), False)),
    pickle.SHORT_BINSTRING: _push(lambda m: m.take(m.take(1)[0])),
    pickle.UNICODE: _push(lambda m: m.line().decode("raw-unicode-escape")),
    pickle.BINUNICODE: _push(lambda m: m.string(m.number("<I"), True)),
    pickle.BINUNICODE8: _push(lambda m: m.string(m.number("<Q"), True)),
    pickle.SHORT_BINUNICODE: _push(lambda m: m.take(m.take(1)[0]).decode("utf-8", "surrogatepass")),
    pickle.BINBYTES: _push(lambda m: m.string(m.number("<I"), False)),
    pickle.BINBYTES8: _push(lambda m: m.string(m.number("<Q"), False)),
    pickle.BYTEARRAY8: _push(lambda m: m.string(m.number("<Q"), False)),
    pickle.SHORT_BINBYTES: _push(lambda m: m.take(m.take(1)[0])),
    pickle.EMPTY_LIST: _push(lambda m: []),
    pickle.LIST: _push(lambda m: m.since_mark()),
    pickle.APPEND: lambda m: _append(m, [m.stack.pop()]),
    pickle.APPENDS: lambda m: _append(m, m.since_mark()),
    pickle.EMPTY_TUPLE: _push(lambda m: ()),
    pickle.TUPLE: _push(lambda m: tuple(m.since_mark())),
    pickle.TUPLE1: _push(lambda m: _collect(m, 1)),
    pickle.TUPLE2: _push(lambda m: _collect(m, 2)),
    pickle.TUPLE3: _push(lambda m: _collect(m, 3)),
    pickle.EMPTY_DICT: _push(lambda m: {}),
    pickle.DICT: _push(lambda m: _pairs(m.since_mark())),
    pickle.SETITEM: lambda m: _set_items(m, list(_collect(m, 2))),
    pickle.SETITEMS: lambda m: _set_items(m, m.since_mark()),
    pickle.GLOBAL: lambda m: m.find(m.line().decode("ascii"), m.line().decode("ascii")),
    pickle.STACK_GLOBAL: lambda m: m.find(*(as_text(part) for part in _collect(m, 2))),
    pickle.REDUCE: lambda m: m.call(),
    pickle.BUILD: lambda m: m.build(),
    pickle.GET: _push(lambda m: m.memo[int(m.line())]),
    pickle.BINGET: _push(lambda m: m.memo[m.take(1)[0]]),
    pickle.LONG_BINGET: _push(lambda m: m.memo[m.number("<I")]),
    pickle.PUT: lambda m: _remember(m, int(m.line())),
    pickle.BINPUT: lambda m: _remember(m, m.take(1)[0]),
    pickle.LONG_BINPUT: lambda m: _remember(m, m.number("<I")),
    pickle.MEMOIZE: lambda m: _remember(m, len(m.memo)),
}
