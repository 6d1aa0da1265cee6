"""The catalogue and the cache."""

import json
import os
from pathlib import Path

import pytest

from e3bm.data.inspect.catalogue import clean_cache, known_datasets
from e3bm.data.read.prepare import prepare
from e3bm.errors import DataError, SettingsError


@pytest.fixture
def data(tmp_path, photos, write) -> Path:
    folder = tmp_path / "data"
    prepare("birds", photos, folder=folder, workers=1)
    source = write.tree(tmp_path / "fc100", write.split_folders(write.small("fc100", per_class=1)))
    prepare("fc100", source, folder=folder, workers=1)
    (folder / "omniglot.partial").mkdir()
    (folder / "omniglot.partial" / "images.u8").write_bytes(b"x" * 1000)
    (folder / "downloads" / "cub").mkdir(parents=True)
    (folder / "downloads" / "cub" / "CUB_200_2011.tgz.part").write_bytes(b"x" * 500)
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.tex").write_text("precious")
    return folder


def test_what_is_known_and_there(data, monkeypatch):
    catalogue = known_datasets(data)
    entries = {entry.name: entry for entry in catalogue.entries}
    assert catalogue.folder == data
    assert catalogue.chosen_by == "the setting"
    assert entries["glyphs"].state == "in the package"
    assert entries["fc100"].state == "prepared"
    assert entries["fc100"].splits["train"] == {"classes": 60, "images": 60}
    assert entries["fc100"].bytes > 100 * 3072
    assert entries["birds"].state == "prepared"
    assert entries["omniglot"].state == "unfinished"
    assert "continues" in entries["omniglot"].advice
    assert entries["cub"].state == "not there"
    assert "e3bm prepare cub --source PATH" in entries["cub"].advice
    assert "--download" in entries["cub"].advice
    assert "--download" not in entries["miniimagenet"].advice
    for entry in entries.values():
        assert entry.licence
        json.dumps(entry.as_json())
    assert all(entries[name].citation for name in ("fc100", "miniimagenet", "tieredimagenet", "omniglot", "cub"))
    monkeypatch.setenv("E3BM_DATA", str(data))
    assert known_datasets().chosen_by == "the variable E3BM_DATA"
    monkeypatch.delenv("E3BM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(data / "nothing"))
    assert known_datasets().chosen_by == "the default cache folder"


def test_damage_is_seen(data):
    (data / "fc100" / "images.u8").write_bytes(b"")
    entries = {entry.name: entry for entry in known_datasets(data).entries}
    assert entries["fc100"].state == "damaged"


def test_looking_removes_nothing(data):
    report = clean_cache(data)
    assert {(item.kind, item.name) for item in report.items} == {
        ("prepared", "birds"),
        ("prepared", "fc100"),
        ("unfinished", "omniglot"),
        ("download", "cub"),
    }
    assert report.freed == 0
    assert (data / "fc100").is_dir()
    assert json.loads(json.dumps(report.as_json()))["freed"] == 0


def test_one_is_freed_by_name(data):
    report = clean_cache(data, ["FC100"], remove=True)
    assert [item.name for item in report.removed] == ["fc100"]
    assert report.freed > 100 * 3072
    assert not (data / "fc100").exists()
    assert (data / "birds").is_dir()
    with pytest.raises(SettingsError, match="nothing was removed"):
        clean_cache(data, ["birds", "nonsense"], remove=True)
    assert (data / "birds").is_dir()


def test_all_of_ours_is_freed_and_nothing_else(data):
    (data / "birds" / "my_notes.txt").write_text("precious too")
    os.symlink(data / "thesis", data / "link.partial")
    clean_cache(data, remove=True)
    assert sorted(path.name for path in data.iterdir()) == ["birds", "downloads", "link.partial", "thesis"]
    assert (data / "thesis" / "chapter.tex").read_text() == "precious"
    assert not list((data / "downloads").iterdir())


def test_what_is_being_written_stays(data):
    import fcntl

    descriptor = os.open(data / "omniglot.partial", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="another process"):
        clean_cache(data, ["omniglot"], remove=True)
    os.close(descriptor)
    assert clean_cache(data, ["omniglot"], remove=True).freed == 1000
