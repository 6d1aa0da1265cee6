"""Reads pickled data sets that are larger than memory, which ``pickle.Unpickler`` would have to load whole.

Byte strings of 512 bytes or more stay in the file; the reader gives their place, and the pixels are streamed from
there. It is an interpreter of our own for the few instructions that such files use: containers, numbers, texts and
numpy arrays. It cannot call anything that a file names: the allowed names stand for functions of this module, and
every other name is refused.

Nothing here follows a structure into its depth, and the memory of a structure is bounded by the size of its file: a few
bytes can nest tuples deeper than Python's own hash and repr survive, or name the same list ten million times.
"""

import codecs
import math
import pickle
import re
import struct
from collections.abc import Callable
from io import BufferedIOBase
from typing import Any

import numpy as np

from e3bm.errors import DataError

STAYS_IN_FILE_FROM = 512
"""Byte strings at least this long are not read while the structure is."""
MOST_INSTRUCTIONS = 30_000_000
LONGEST_LINE, LONGEST_TEXT, LONGEST_NUMBER = 256 << 20, 1 << 20, 1024
MOST_NUMBERS = 1 << 28
"""In a range; larger than any data set."""
MOST_DIMENSIONS = 16
FREE, BYTES_FOR_EACH = 100_000, 8
"""So many containers and remembered values any file may have, and one more for each of these bytes of it."""
DAMAGE = (
    LookupError, TypeError, ValueError, OverflowError, AttributeError, struct.error, EOFError, OSError, MemoryError,
    RecursionError,
)  # fmt: skip
ALLOWED = {
    **{(f"numpy.{core}.multiarray", name): name for core in ("core", "_core") for name in ("_reconstruct", "scalar")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): "_frombuffer" for core in ("core", "_core")},
    **{("numpy", name): name for name in ("ndarray", "dtype")},
    **{(module, name): name for module in ("builtins", "__builtin__") for name in ("bytes", "bytearray", "range")},
    ("__builtin__", "xrange"): "range",
    ("_codecs", "encode"): "encode",
    ("collections", "OrderedDict"): "OrderedDict",
}


class StoredBytes:
    """A long byte string, as its place in the file; ``utf8`` if it is stored as text, one letter for each byte."""

    __slots__ = ("length", "offset", "utf8")

    def __init__(self, offset: int, length: int, utf8: bool) -> None:
        self.offset, self.length, self.utf8 = offset, length, utf8


class StoredArray:
    """A numpy array whose numbers may still be in the file."""

    __slots__ = ("content", "dtype", "shape")

    def __init__(self) -> None:
        self.dtype, self.shape, self.content = np.dtype(np.uint8), (0,), b""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    content: "bytes | StoredBytes | list[Any]"


def unpickle(file: BufferedIOBase, size: int, location: str) -> Any:
    """The structure of a pickle; anything but plain containers, numbers, texts and arrays is refused by name."""
    try:
        return _Machine(file, size, location).run()
    except DAMAGE as error:
        detail = str(error) or type(error).__name__
        raise DataError(f"{location} is damaged or not a pickle of a known kind ({detail}); fetch it again.") from error


def as_text(value: Any) -> str:
    """A name that Python 2 wrote as bytes and Python 3 as text, or a number; of anything else only what it is."""
    if isinstance(value, bytes):
        return value.decode("latin1")
    return str(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


class _StoredType:
    """What kind of numbers an array holds."""

    def __init__(self, code: str) -> None:
        if not re.fullmatch(r"[<>|=]?[biufSUO]\d{0,4}", code):
            raise ValueError(f"numbers of type '{code}'")
        self.dtype = np.dtype(code)

    def complete(self, state: Any) -> None:
        """Take the byte order from the state that numpy stores with a type."""
        _, order, *records = state[:5]
        if any(part is not None for part in records):
            raise ValueError("numbers in records")
        self.dtype = self.dtype.newbyteorder(">" if as_text(order) == ">" else "<")


def _check_array(array: StoredArray, fortran: Any) -> None:
    """Raise unless the stored content is exactly what type and shape ask for."""
    shape, content = array.shape, array.content
    if not isinstance(shape, tuple) or len(shape) > MOST_DIMENSIONS:
        raise ValueError("an array without a shape")
    if not all(isinstance(n, int) and 0 <= n < 1 << 48 for n in shape):
        raise ValueError("an array whose shape is not made of numbers")
    count = math.prod(shape)
    if isinstance(content, list):
        if array.dtype.kind != "O" or len(content) != count:
            raise ValueError("an array whose list does not fit its shape")
        return
    if fortran and len(shape) > 1:
        raise ValueError("an array stored column by column")
    expected = count * array.dtype.itemsize
    length = content.length if isinstance(content, StoredBytes) else len(content)
    # Text needs one or two bytes per letter, so a stored text is only bounded here and counted when it is read.
    fits = (
        expected <= length <= 2 * expected if isinstance(content, StoredBytes) and content.utf8 else length == expected
    )
    if array.dtype.kind == "O" or not fits:
        raise ValueError(f"an array of shape {shape} with {length} bytes")


def _reconstruct(kind: Any, shape: Any, code: Any) -> StoredArray:
    return StoredArray()


def _scalar(kind: _StoredType, content: Any = b"") -> Any:
    return np.frombuffer(content, kind.dtype, count=1)[0].item()


def _from_buffer(content: Any, kind: _StoredType, shape: tuple[int, ...], order: Any) -> StoredArray:
    array = StoredArray()
    array.content, array.dtype, array.shape = content, kind.dtype, shape
    _check_array(array, order == "F")
    return array


def _dtype(code: Any, *flags: Any) -> _StoredType:
    return _StoredType(as_text(code))


def _encode(text: Any, encoding: Any) -> "bytes | StoredBytes":
    if as_text(encoding).replace("-", "").lower() not in ("latin1", "iso88591"):
        raise ValueError(f"bytes written as '{as_text(encoding)}'")
    if isinstance(text, StoredBytes) and text.utf8:
        return text
    if not isinstance(text, str):
        raise ValueError("bytes in an unknown form")
    return text.encode("latin1")


def _bytes(content: Any = b"", *encoding: Any) -> "bytes | StoredBytes":
    if encoding:
        return _encode(content, *encoding)
    if not isinstance(content, bytes):
        raise ValueError("bytes in an unknown form")
    return content


def _range(*limits: Any) -> range:
    found = range(*limits)
    if not all(-MOST_NUMBERS <= n <= MOST_NUMBERS for n in (found.start, found.stop, found.step)):
        raise ValueError("a range of more numbers than any data set has")
    return found


def _ordered(*pairs: Any) -> dict[Any, Any]:
    if not pairs:
        return {}
    if len(pairs) != 1 or not isinstance(pairs[0], list) or not all(_is_pair(pair) for pair in pairs[0]):
        raise ValueError("a dictionary in an unknown form")
    return {_key(key): value for key, value in pairs[0]}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _key(value: Any) -> Any:
    """A key of a dictionary: a text or a number. Finding the place of a deep tuple can end the process."""
    if not isinstance(value, str | bytes | int | float | None):
        raise ValueError(f"a dictionary whose key is a {type(value).__name__}")
    return value


CALLS: dict[str, Callable[..., Any]] = {
    "_reconstruct": _reconstruct,
    "scalar": _scalar,
    "_frombuffer": _from_buffer,
    "dtype": _dtype,
    "encode": _encode,
    "bytes": _bytes,
    "bytearray": _bytes,
    "range": _range,
    "OrderedDict": _ordered,
}
_MARK = object()


class _Name:
    """One of the allowed names; it is looked at, never called."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Machine:
    def __init__(self, file: BufferedIOBase, size: int, location: str) -> None:
        self.file, self.size, self.location = file, size, location
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self.memo_out_of_order: dict[int, Any] = {}
        self.left = FREE + size // BYTES_FOR_EACH

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
                raise ValueError(f"it begins with the byte {code[0]}")
            if action is None:
                raise self.refused(f"the instruction {code!r}")
            action(self)
        raise ValueError(f"more than {MOST_INSTRUCTIONS:,} instructions")

    def refused(self, what: str) -> DataError:
        return DataError(
            f"{self.location} holds {what}, which no known data file does; nothing of it was run and it is refused."
        )

    def spend(self, count: int = 1) -> None:
        """Count what takes memory although it takes hardly a byte of the file."""
        self.left -= count
        if self.left < 0:
            raise ValueError("more structure than a file of its size has")

    def push(self, value: Any) -> None:
        self.spend()
        self.stack.append(value)

    def remember(self, place: int | None) -> None:
        """Keep what lies on top under a number, by default the next one."""
        self.spend()
        value = self.stack[-1]
        at = len(self.memo) + len(self.memo_out_of_order) if place is None else place
        if at == len(self.memo):
            self.memo.append(value)
        else:
            self.memo_out_of_order[at] = value

    def recall(self, place: int) -> Any:
        if place in self.memo_out_of_order:
            return self.memo_out_of_order[place]
        if place < 0:
            raise LookupError("a negative number")
        return self.memo[place]

    def take(self, count: int) -> bytes:
        content = self.file.read(count)
        if len(content) != count:
            raise EOFError("it ends too early")
        return content

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self, longest: int = LONGEST_LINE) -> bytes:
        content = self.file.readline(longest)
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
            raise self.refused("a call of something that is not a function")
        self.push(CALLS[target.name](*arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, StoredArray):
            _, target.shape, kind, fortran, target.content = state
            target.dtype = kind.dtype
            _check_array(target, fortran)
        elif isinstance(target, _StoredType):
            target.complete(state)
        else:
            raise self.refused("an object with a state of its own")


def _append(machine: _Machine, values: list[Any]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, list):
        raise machine.refused("an append to something that is not a list")
    target.extend(values)


def _set_items(machine: _Machine, values: list[Any]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, dict):
        raise machine.refused("a key in something that is not a dictionary")
    target.update(_pairs(values))


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(make(machine))


def _collect(machine: _Machine, count: int) -> tuple[Any, ...]:
    values = tuple(machine.stack[len(machine.stack) - count :])
    if len(values) != count or any(value is _MARK for value in values):
        raise IndexError("a tuple of too few values")
    del machine.stack[len(machine.stack) - count :]
    return values


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return {_key(key): value for key, value in zip(values[::2], values[1::2], strict=True)}


def _container(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(make(machine))


def _name_part(value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise ValueError("a name that is not text")
    return as_text(value)


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
    pickle.MARK: _container(lambda m: _MARK),
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
    pickle.UNICODE: _push(lambda m: m.line(LONGEST_TEXT).decode("raw-unicode-escape")),
    pickle.BINUNICODE: _push(lambda m: m.string(m.number("<I"), True)),
    pickle.BINUNICODE8: _push(lambda m: m.string(m.number("<Q"), True)),
    pickle.SHORT_BINUNICODE: _push(lambda m: m.take(m.take(1)[0]).decode("utf-8", "surrogatepass")),
    pickle.BINBYTES: _push(lambda m: m.string(m.number("<I"), False)),
    pickle.BINBYTES8: _push(lambda m: m.string(m.number("<Q"), False)),
    pickle.BYTEARRAY8: _push(lambda m: m.string(m.number("<Q"), False)),
    pickle.SHORT_BINBYTES: _push(lambda m: m.take(m.take(1)[0])),
    pickle.EMPTY_LIST: _container(lambda m: []),
    pickle.LIST: _container(lambda m: m.since_mark()),
    pickle.APPEND: lambda m: _append(m, [m.stack.pop()]),
    pickle.APPENDS: lambda m: _append(m, m.since_mark()),
    pickle.EMPTY_TUPLE: _container(lambda m: ()),
    pickle.TUPLE: _container(lambda m: tuple(m.since_mark())),
    pickle.TUPLE1: _container(lambda m: _collect(m, 1)),
    pickle.TUPLE2: _container(lambda m: _collect(m, 2)),
    pickle.TUPLE3: _container(lambda m: _collect(m, 3)),
    pickle.EMPTY_DICT: _container(lambda m: {}),
    pickle.DICT: _container(lambda m: _pairs(m.since_mark())),
    pickle.SETITEM: lambda m: _set_items(m, list(_collect(m, 2))),
    pickle.SETITEMS: lambda m: _set_items(m, m.since_mark()),
    pickle.GLOBAL: lambda m: m.find(m.line(LONGEST_TEXT).decode("ascii"), m.line(LONGEST_TEXT).decode("ascii")),
    pickle.STACK_GLOBAL: lambda m: m.find(*map(_name_part, _collect(m, 2))),
    pickle.REDUCE: lambda m: m.call(),
    pickle.BUILD: lambda m: m.build(),
    pickle.GET: _push(lambda m: m.recall(int(m.line()))),
    pickle.BINGET: _push(lambda m: m.recall(m.take(1)[0])),
    pickle.LONG_BINGET: _push(lambda m: m.recall(m.number("<I"))),
    pickle.PUT: lambda m: m.remember(int(m.line())),
    pickle.BINPUT: lambda m: m.remember(m.take(1)[0]),
    pickle.LONG_BINPUT: lambda m: m.remember(m.number("<I")),
    pickle.MEMOIZE: lambda m: m.remember(None),
}
