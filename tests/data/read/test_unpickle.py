"""The pickle reader: right on what data sets contain, and unable to run what they must not."""

import contextlib
import io
import os
import pickle
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3bm.data.read.array_files import PickleFile
from e3bm.data.read.file_tree import SingleFile
from e3bm.data.read.unpickle import StoredArray, StoredBytes, unpickle
from e3bm.errors import DataError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def read(content: bytes) -> object:
    return unpickle(io.BytesIO(content), len(content), "'x.pkl'")


@pytest.fixture
def open_pickle(tmp_path):
    def open_it(content: bytes) -> PickleFile:
        path = tmp_path / "x_train.pkl"
        path.write_bytes(content)
        return PickleFile(SingleFile(path), path.name)

    return open_it


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_as_python_reads_them(protocol):
    value = {
        "a": [1, -2, 3.5, None, True, False, 2**40, -(2**70)],
        b"b": (),
        "c": ("x", ["ü", "\n'"], {}),
        "r": range(2, 9, 3),
    }
    assert read(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["u1", "i8", ">i4", "f4", "b1", "S5", "U3"])
@pytest.mark.parametrize("count", [3, 4000])
def test_arrays_as_numpy_reads_them(open_pickle, protocol, dtype, count):
    array = (np.arange(count * 2) % 251).astype(dtype).reshape(count, 2)
    file = open_pickle(pickle.dumps({"data": array}, protocol))
    stored = file.keys()["data"]
    assert isinstance(stored, StoredArray)
    assert stored.shape == (count, 2)
    np.testing.assert_array_equal(file.whole(stored), array)
    np.testing.assert_array_equal(np.stack(list(file.rows(stored, 1))), array[1:])
    picked = list(file.rows_at(stored, [0, 2]))
    np.testing.assert_array_equal(np.stack(picked), array[[0, 2]])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scalars_and_lists_of_arrays(open_pickle, protocol):
    value = [np.int64(7), np.float32(0.5), np.arange(3, dtype=np.uint8), b"\xff" * 700, b""]
    file = open_pickle(pickle.dumps(value, protocol))
    seven, half, small, long, empty = file.content
    assert (seven, half, empty) == (7, 0.5, b"")
    np.testing.assert_array_equal(file.whole(small), [0, 1, 2])
    assert file.whole(long) == b"\xff" * 700


def test_what_python_2_wrote(open_pickle):
    pixels = bytes(range(256)) * 12
    content = (
        b"\x80\x02}q\x01(U\x04datacnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<I", len(pixels)) + pixels + b"tbU\x0bfine_labels](K\x05K\x06eu."
    )
    file = open_pickle(content)
    keys = file.keys()
    assert keys["fine_labels"] == [5, 6]
    assert keys["data"].shape == (1, 3072)
    assert isinstance(keys["data"].content, StoredBytes)
    np.testing.assert_array_equal(file.whole(keys["data"]), np.frombuffer(pixels, np.uint8)[None])
    np.testing.assert_array_equal(pickle.loads(content, encoding="bytes")[b"data"], file.whole(keys["data"]))


class CountedReads(io.BytesIO):
    read_bytes = 0

    def read(self, size=-1):
        content = super().read(size)
        self.read_bytes += len(content)
        return content


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pixels_stay_in_the_file(protocol):
    content = pickle.dumps({"data": np.zeros((2000, 32, 32, 3), np.uint8), "labels": [1] * 2000}, protocol)
    file = CountedReads(content)
    unpickle(file, len(content), "x")
    assert file.read_bytes < 20_000


class Hostile:
    """Pickles to a call of a function with arguments."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


HOSTILE = {
    "os.system": lambda mark: Hostile(os.system, f"touch {mark}"),
    "eval": lambda mark: Hostile(eval, f"open({str(mark)!r}, 'w')"),
    "exec": lambda mark: Hostile(exec, f"open({str(mark)!r}, 'w')"),
    "open": lambda mark: Hostile(open, str(mark), "w"),
    "getattr": lambda mark: Hostile(getattr, "", "join"),
    "__import__": lambda mark: Hostile(__import__, "os"),
    "Path.touch": lambda mark: Hostile(Path.touch, Path(mark)),
    "np.save": lambda mark: Hostile(np.save, str(mark), 0),
    "np.load": lambda mark: Hostile(np.load, str(mark)),
    "random": lambda mark: random.Random(0),
    "compile": lambda mark: Hostile(compile, "1", "x", "eval"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pickles_are_refused_by_name_and_never_run(tmp_path, kind, protocol):
    mark = tmp_path / "ran"
    inner = HOSTILE[kind](mark)
    for value in (inner, {"data": inner, "labels": [1]}, [[(inner,)]]):
        with pytest.raises(DataError, match="refused") as error:
            read(pickle.dumps(value, protocol))
        assert "'" in str(error.value)
        assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    {
        "inst": b"(S'touch x'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'touch x'\no.",
        "persistent": b"Pany\n.",
        "binary persistent": b"K\x01Q.",
        "extension": b"\x80\x02\x82\x01.",
        "new object": b"\x80\x02cnumpy\nndarray\n)\x81.",
        "call of a number": b"K\x01)R.",
        "call of a list": b"\x80\x02]K\x01\x85R.",
        "state of a list": b"\x80\x02]}b.",
        "append to a number": b"K\x01K\x02a.",
        "key in a list": b"]K\x01K\x02s.",
        "odd keys": b"(K\x01d.",
        "no mark": b"K\x01t.",
        "unhashable key": b"}]K\x01s.",
        "empty": b"",
        "stop at once": b".",
        "unknown memo": b"h\x07.",
        "wide number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
        "negative number": b"\x80\x02\x8b\xff\xff\xff\xff.",
        "text number": b"Ixyz\n.",
        "unquoted": b"Sabc\n.",
        "long promised": b"\x80\x03B\xff\xff\xff\x7fabc.",
        "very long promised": b"\x80\x04\x8e" + b"\xff" * 8 + b"abc.",
        "object numbers": b"\x80\x02cnumpy\ndtype\n(U\x02V8K\x00K\x01tR.",
        "wrong encoding": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
        "html": b"<!DOCTYPE html><html>",
        "zip": b"PK\x03\x04....",
        "deep name": b"\x80\x04\x8c\x05numpy\x8c\x0ef2py.os.system\x93.",
    }.values(),
)
def test_broken_and_strange_instructions(content):
    with pytest.raises(DataError, match=r"x\.pkl"):
        read(content)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_is_a_data_error_and_nothing_else(data):
    value = {"data": np.arange(24, dtype=np.uint8).reshape(2, 12), "labels": [1, 2], "names": ["a", b"b" * 600]}
    content = bytearray(pickle.dumps(value, data.draw(st.sampled_from(PROTOCOLS))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    with contextlib.suppress(DataError):
        read(bytes(content))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_truncation_is_noticed(protocol):
    content = pickle.dumps({"data": np.zeros((3, 700), np.uint8), "labels": [1, 2, 3]}, protocol)
    for length in range(len(content)):
        with pytest.raises(DataError):
            read(content[:length])


def test_pixels_cut_off_while_reading(open_pickle, tmp_path):
    file = open_pickle(pickle.dumps({"data": np.zeros((30, 700), np.uint8)}, 2))
    path = tmp_path / "x_train.pkl"
    path.write_bytes(path.read_bytes()[:-9000])
    with pytest.raises(DataError, match="damaged"):
        list(file.rows(file.keys()["data"]))
