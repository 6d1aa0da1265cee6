"""A data set on a machine's own disk: each process reads its share, and what is trained is the same."""

import pytest

from e3bm.errors import DataError
from e3bm.runs.engine import Engine
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.local_copy import copy_share, on_local_disk
from e3bm.runs.training.train import run_train
from small_runs import assert_equal, settings


@pytest.mark.parametrize("count", [1, 2, 7])
def test_shares_are_even_and_give_the_whole(small_data, tmp_path, count):
    settings(small_data, "mtl")  # writes the data
    source = small_data / "small"
    copied = [copy_share(source, tmp_path, rank, count) for rank in range(count)]
    files = [path for path in source.iterdir() if path.is_file()]
    for path in files:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert sum(copied) == sum(path.stat().st_size for path in files)
    assert max(copied) - min(copied) <= len(files)


def test_a_run_from_the_copy_is_the_same_run(small_data, tmp_path, monkeypatch):
    wanted = settings(small_data, "mtl", optimiser__steps=4)
    run_train(wanted, tmp_path / "plain")
    monkeypatch.setenv("E3BM_SCRATCH", str(tmp_path / "scratch"))
    run_train(wanted, tmp_path / "copied")
    (copy,) = (tmp_path / "scratch").iterdir()
    assert copy.name.startswith("small-")
    assert_equal(Checkpoints(tmp_path / "copied").weights("last"), Checkpoints(tmp_path / "plain").weights("last"))
    # The same command continues it, with or without a copy.
    monkeypatch.delenv("E3BM_SCRATCH")
    run_train(wanted, tmp_path / "copied")


def test_what_a_killed_run_left_is_gone_on_with_and_damage_is_refused(small_data, tmp_path, monkeypatch):
    wanted = settings(small_data, "mtl").data
    monkeypatch.setenv("E3BM_SCRATCH", str(tmp_path))
    made = on_local_disk(wanted, Engine())
    assert on_local_disk(wanted, Engine()) == made
    place = tmp_path / made.dataset.rpartition("/")[2]
    place.rename(place.with_name(f".{place.name}.partial"))
    (place.with_name(f".{place.name}.partial") / "images.u8").write_bytes(b"half")
    assert on_local_disk(wanted, Engine()) == made
    assert (place / "images.u8").read_bytes() == (small_data / "small" / "images.u8").read_bytes()


def test_a_place_that_cannot_be_written_is_a_sentence(small_data, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("E3BM_SCRATCH", str(tmp_path / "file"))
    with pytest.raises(DataError, match="E3BM_SCRATCH"):
        on_local_disk(settings(small_data, "mtl").data, Engine())


def test_embedded_data_are_not_copied(tmp_path, small_data, monkeypatch):
    monkeypatch.setenv("E3BM_SCRATCH", str(tmp_path / "scratch"))
    wanted = settings(small_data, "mtl").data.but(dataset="glyphs")
    assert on_local_disk(wanted, Engine()) == wanted
