"""What a pickle of a data set may contain, and how each of its few calls is answered without calling anything."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

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


class StoredType:
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


def as_text(value: Any) -> str:
    """A name that Python 2 wrote as bytes and Python 3 as text."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def check_array(array: StoredArray, fortran: Any) -> None:
    """Raise unless the stored content is exactly what type and shape ask for."""
    shape, content = array.shape, array.content
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"an array of shape {shape}")
    count = int(np.prod(shape, dtype=object))
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


def _scalar(kind: StoredType, content: Any = b"") -> Any:
    return np.frombuffer(content, kind.dtype, count=1)[0].item()


def _from_buffer(content: Any, kind: StoredType, shape: tuple[int, ...], order: Any) -> StoredArray:
    array = StoredArray()
    array.content, array.dtype, array.shape = content, kind.dtype, shape
    check_array(array, order == "F")
    return array


def _dtype(code: Any, *flags: Any) -> StoredType:
    return StoredType(as_text(code))


def _encode(text: Any, encoding: Any) -> "bytes | StoredBytes":
    if as_text(encoding).replace("-", "").lower() not in ("latin1", "iso88591"):
        raise ValueError(f"bytes written as '{encoding}'")
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


CALLS: dict[str, Callable[..., Any]] = {
    "_reconstruct": _reconstruct,
    "scalar": _scalar,
    "_frombuffer": _from_buffer,
    "dtype": _dtype,
    "encode": _encode,
    "bytes": _bytes,
    "bytearray": _bytes,
    "range": range,
    "OrderedDict": lambda *nothing: {} if not nothing else dict(nothing[0]),
}
