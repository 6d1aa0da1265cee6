"""JSON comes back as it was written, or a few words say why not, whatever its depth, size and encoding."""

import json
import math
from pathlib import Path

import pytest

from e3bm.json_files import (
    DEEPEST,
    append_line,
    json_bytes,
    lines_bytes,
    parse_json,
    read_json_file,
    read_json_lines,
    sealed,
    unsealed,
)

RECORD = {
    "step": 7,
    "accuracy": 61.25,
    "ci": 1e-17,
    "text": 'é\u2028"\\ {[',
    "list": [1, [2, {"a": None}]],
    "best": True,
}


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "some.json"
    for value in (RECORD, [RECORD, {"b": 1}], [1, "x"], "text", 5, None, {}):
        path.write_bytes(json_bytes(value))
        assert read_json_file(path) == value
    path.write_bytes(json_bytes({"nan": math.nan, "path": Path("a"), "tuple": (1, 2), 3: 4}))
    found = read_json_file(path)
    assert math.isnan(found.pop("nan"))
    assert found == {"path": "a", "tuple": [1, 2], "3": 4}


def test_another_letter_anywhere_is_noticed_or_means_the_same(tmp_path):
    path = tmp_path / "some.json"
    content = json_bytes(RECORD)
    noticed = 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 2]) + content[place + 1 :])
        try:
            found = read_json_file(path)
        except ValueError:
            noticed += 1
        else:  # white space, or the name of the digest itself
            assert found == RECORD
    assert noticed > 0.7 * len(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * 100_000, "nested deeper"),
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), "nested deeper"),
        (b'["' + b"[" * 1000 + b'", ' + b"[]," * 100 + b"1", "Expecting"),
        (b"\xff\xfe[\x00]\x00", "byte 0 is not UTF-8"),
        (b'{"a": "\xe9"}', "byte 7 is not UTF-8"),
        (b'{"a": "\\ud800"}', "half of a character"),
        (b"", "Expecting value"),
        (b"9" * 5000, "digits"),
        (b'{"a": 1} x', "Extra data"),
    ],
)
def test_what_is_no_json_is_a_few_words(content, words):
    with pytest.raises(ValueError, match=words):
        parse_json(content)


def test_texts_do_not_count_as_depth():
    value = ["[" * 1000, '"' * 1000, "\\" * 999, [[["{" * 100]]]]
    assert parse_json(json.dumps(value * 20)) == value * 20
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert parse_json(deep) == json.loads(deep)


def test_the_size_is_bounded(tmp_path):
    with pytest.raises(ValueError, match="more than the 10"):
        parse_json(b" " * 11, most=10)
    (tmp_path / "long.json").write_bytes(b" " * 20 + b"1")
    with pytest.raises(ValueError, match="more than the 10"):
        read_json_file(tmp_path / "long.json", most=10)


def test_a_list_is_checked_row_by_row():
    rows = [sealed({"a": 1}), {"a": 2}, 3]
    assert unsealed(rows) == [{"a": 1}, {"a": 2}, 3]
    rows[0]["a"] = 2
    with pytest.raises(ValueError, match="not what was written"):
        unsealed(rows)


def test_a_line_cut_anywhere_is_passed_over_and_dropped_by_the_next(tmp_path):
    path = tmp_path / "log.jsonl"
    record = {"word": "tr\u00fce", "flags": [True, False, None, math.nan, math.inf, -1.5e-20], "x": {"y": []}}
    last = lines_bytes([RECORD, record]).removeprefix(lines_bytes([RECORD]))
    for cut in range(len(last)):
        path.write_bytes(lines_bytes([RECORD]) + last[:cut])
        found = list(read_json_lines(path))
        assert found[0] == RECORD
        assert len(found) == (2 if cut == len(last) - 1 else 1), last[:cut]
        append_line(path, {"next": 1})
        assert list(read_json_lines(path)) == [RECORD, {"next": 1}]


def test_lines_of_former_versions_are_read(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "los\n\n{"step": 3}\n')
    assert list(read_json_lines(path)) == [{"step": 1}, {"step": 3}]


@pytest.mark.parametrize("damage", [b"\xff", b"\0", b"[[[[", b"}"])
def test_a_damaged_line_is_named(tmp_path, damage):
    path = tmp_path / "log.jsonl"
    lines = lines_bytes({"step": step, "loss": 0.5} for step in range(3)).splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:12] + damage + lines[1][12:] + lines[2])
    with pytest.raises(ValueError, match="line 2"):
        list(read_json_lines(path))
    changed = lines[1].replace(b"0.5", b"0.6")
    path.write_bytes(lines[0] + changed + lines[2])
    with pytest.raises(ValueError, match="line 2: its content is not what was written"):
        list(read_json_lines(path))


def test_lines_that_are_gone_or_there_twice_are_noticed(tmp_path):
    path = tmp_path / "log.jsonl"
    for step in range(5):
        append_line(path, {"step": step, "text": "x" * 3000 * (step % 2)})
    lines = path.read_bytes().splitlines(keepends=True)
    assert [line["step"] for line in read_json_lines(path)] == list(range(5))
    for other in (lines[:1] + lines[2:], lines[:2] + lines[1:], [*lines[:2], lines[3], lines[2], lines[4]], lines[1:]):
        path.write_bytes(b"".join(other))
        with pytest.raises(ValueError, match="is not what was written"):
            list(read_json_lines(path))
