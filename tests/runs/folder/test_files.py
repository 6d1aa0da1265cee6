"""Files are whole or absent; who cannot write says so in a sentence."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from failing_disk import full_after, operations_of

from e3bm.errors import CheckpointError
from e3bm.runs.folder.files import held, in_turn, read_json, write_bytes, write_json
from e3bm.storage import sweep


def test_a_file_is_replaced_as_a_whole(tmp_path):
    write_bytes(tmp_path / "deep" / "file", b"old")
    write_bytes(tmp_path / "deep" / "file", b"new")
    assert (tmp_path / "deep" / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path / "deep") == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    write_bytes(tmp_path / "file", b"old")
    write = lambda: write_bytes(tmp_path / "file", b"new")
    for done in range(operations_of(write, tmp_path)):
        write_bytes(tmp_path / "file", b"old")
        with (
            full_after(done, tmp_path),
            pytest.raises(CheckpointError, match=r"Cannot write.*No space left.*intact"),
        ):
            write()
        assert (tmp_path / "file").read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "folder").write_text("a file")
    with pytest.raises(CheckpointError, match="Cannot write in"):
        write_bytes(tmp_path / "folder" / "file", b"new")


def test_new_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    write_bytes(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("content", [b"", b"{", b'{"step": 1', b"\xff\xfe\x00"])
def test_damaged_json_is_named(tmp_path, content):
    (tmp_path / "some.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"some\.json is damaged"):
        read_json(tmp_path / "some.json")


def test_missing_and_unreadable_json_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="There is no file"):
        read_json(tmp_path / "none.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path / "folder.json")


def test_json_is_readable_text(tmp_path):
    write_json(tmp_path / "some.json", {"b": tmp_path, "a": [1.5]})
    assert read_json(tmp_path / "some.json") == {"a": [1.5], "b": str(tmp_path)}
    assert json.loads((tmp_path / "some.json").read_text()).keys() == {"a", "b", "content_sha256"}


def test_only_leftovers_are_swept(tmp_path):
    for name in (".last.json.12ab.partial", "keep.partial", ".hidden", "last.json"):
        (tmp_path / name).write_text("")
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "keep.partial", "last.json"]


def test_a_folder_is_held_by_one_at_a_time(tmp_path):
    with held(tmp_path), pytest.raises(CheckpointError, match="Another process is training"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


def test_changes_in_turn_are_all_kept(tmp_path):
    write_json(tmp_path / "config.json", {})
    write_json(tmp_path / "seen.json", [])

    def add(number):
        with in_turn(tmp_path / "config.json"):
            write_json(tmp_path / "seen.json", [*read_json(tmp_path / "seen.json"), number])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(100)))
    assert sorted(read_json(tmp_path / "seen.json")) == list(range(100))
