"""Preparing: one's own folder, what is done once only, what an interruption costs, what broken images do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from e3bm.data.read.prepare import prepare
from e3bm.data.source import open_dataset
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError, SettingsError
from recorded_progress import Moment, RecordedProgress

PACKING = "packing images"


def test_a_folder_of_ones_own(photos, tmp_path):
    result = prepare("my-birds", photos, folder=tmp_path / "data")
    assert {split: count["classes"] for split, count in result.splits.items()} == {"train": 4, "val": 2, "test": 2}
    packed = open_dataset("my-birds", tmp_path / "data")
    assert packed.image_shape == (84, 84, 3)
    assert len(packed) == 24
    assert not result.skipped
    other = prepare("my-birds", photos, out=tmp_path / "other", seed=1)
    again = prepare("my-birds", photos, out=tmp_path / "again", seed=0)
    same, differs = (PackedImages.open(one.path) for one in (again, other))
    assert same.digest == packed.digest
    assert [same.class_names[n] for n in same.splits["test"]] == [packed.class_names[n] for n in packed.splits["test"]]
    assert differs.splits != packed.splits or differs.class_names != packed.class_names


def test_fractions_and_folders_of_splits(photos, tmp_path):
    result = prepare("birds", photos, out=tmp_path / "out", fractions=(0.5, 0.0, 0.5))
    assert {split: count["classes"] for split, count in result.splits.items()} == {"train": 4, "test": 4}
    for split in ("train", "test"):
        (tmp_path / "divided" / split).mkdir(parents=True)
    for number, folder in enumerate(sorted(photos.iterdir())):
        folder.rename(tmp_path / "divided" / ("test" if number % 4 == 0 else "train") / folder.name)
    result = prepare("birds", tmp_path / "divided", out=tmp_path / "out2")
    assert {split: count["classes"] for split, count in result.splits.items()} == {"train": 6, "test": 2}


def test_a_table_of_ones_own(photos, tmp_path):
    rows = {"train": ["filename,label"], "test": ["filename,label"]}
    for number, path in enumerate(sorted(photos.rglob("*.*"))):
        path.rename(tmp_path / "photos" / f"{number}{path.suffix}")
        rows["train" if number % 3 else "test"].append(
            f"{number}{path.suffix},class {'a' if number % 3 else 'b'}{number % 2}"
        )
    for split, lines in rows.items():
        (photos / f"{split}.csv").write_text("\n".join(lines))
    result = prepare("birds", photos, out=tmp_path / "out")
    assert result.splits == {"train": {"classes": 2, "images": 16}, "test": {"classes": 2, "images": 8}}


def test_nothing_is_done_twice(photos, tmp_path):
    first = prepare("birds", photos, out=tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in first.path.iterdir()}
    second = prepare("birds", photos, out=tmp_path / "out")
    assert (first.unchanged, second.unchanged) == (False, True)
    assert {path.name: path.stat().st_mtime_ns for path in first.path.iterdir()} == before
    assert {**second.as_json(), "seconds": 0, "unchanged": False} == {**first.as_json(), "seconds": 0}
    json.dumps(first.as_json())
    # Another setting, another file, a damaged result: each is a reason to do it again.
    assert not prepare("birds", photos, out=tmp_path / "out", image_size=32).unchanged
    assert not prepare("birds", photos, out=tmp_path / "out").unchanged
    next(photos.rglob("*.png")).unlink()
    assert not prepare("birds", photos, out=tmp_path / "out").unchanged
    (tmp_path / "out" / "images.u8").write_bytes(b"short")
    assert not prepare("birds", photos, out=tmp_path / "out").unchanged
    assert prepare("birds", photos, out=tmp_path / "out").unchanged


class Stop(BaseException):
    """An interruption."""


def stop_after_500_images(moment: Moment) -> None:
    if moment.stage == PACKING and moment.done >= 500:
        raise Stop


@pytest.fixture
def many(tmp_path, write):
    return write.tree(tmp_path / "many", write.split_folders(write.small("fc100", per_class=12)), "zip")


def test_an_interrupted_run_goes_on(many, tmp_path):
    whole = PackedImages.open(prepare("fc100", many, out=tmp_path / "whole", workers=1).path)

    with pytest.raises(Stop):
        prepare("fc100", many, out=tmp_path / "out", workers=1, progress=RecordedProgress(stop_after_500_images))
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial").is_dir()
    progress = RecordedProgress()
    prepare("fc100", many, out=tmp_path / "out", workers=1, progress=progress)
    packing = progress.of(PACKING)
    assert packing[0].done == 512
    assert packing[-1].done == packing[-1].total == 1200
    assert PackedImages.open(tmp_path / "out", verify=True).digest == whole.digest
    assert not (tmp_path / "out.partial").exists()


def test_a_killed_run_goes_on(many, tmp_path):
    whole = PackedImages.open(prepare("fc100", many, out=tmp_path / "whole", workers=1).path)
    script = (
        "import os, sys; from pathlib import Path; from e3bm.data.read.prepare import prepare\n"
        "sys.path.insert(0, sys.argv[3]); from recorded_progress import RecordedProgress\n"
        "stop = lambda moment: os._exit(9) if moment.stage == 'packing images' and moment.done >= 700 else None\n"
        "prepare('fc100', Path(sys.argv[1]), out=Path(sys.argv[2]), workers=1, progress=RecordedProgress(stop))"
    )
    arguments = [str(many), str(tmp_path / "out"), str(Path(__file__).parents[2])]
    died = subprocess.run([sys.executable, "-c", script, *arguments], check=False)
    assert died.returncode == 9
    assert not (tmp_path / "out").exists()
    progress = RecordedProgress()
    prepare("fc100", many, out=tmp_path / "out", workers=1, progress=progress)
    assert progress.of(PACKING)[0].done == 768
    assert PackedImages.open(tmp_path / "out", verify=True).digest == whole.digest


def test_an_interrupted_run_of_another_source_starts_anew(many, tmp_path, write):
    with pytest.raises(Stop):
        prepare("fc100", many, out=tmp_path / "out", workers=1, progress=RecordedProgress(stop_after_500_images))
    other = write.tree(tmp_path / "few", write.split_folders(write.small("fc100", per_class=2)), "zip")
    prepare("fc100", other, out=tmp_path / "out", workers=1)
    assert len(PackedImages.open(tmp_path / "out", verify=True)) == 200


def test_processes_pack_the_same(tmp_path, write):
    source = write.tree(tmp_path / "s", write.split_folders(write.small("fc100", per_class=21)), "zip")
    one = prepare("fc100", source, out=tmp_path / "one", workers=1)
    two = prepare("fc100", source, out=tmp_path / "two", workers=2)
    assert PackedImages.open(one.path).digest == PackedImages.open(two.path).digest


def test_every_stage_is_told_to_its_end(many, tmp_path):
    progress = RecordedProgress()
    prepare("fc100", many, out=tmp_path / "out", workers=1, progress=progress)
    assert progress.of(PACKING)[-1] == Moment(PACKING, 1200, 1200)
    assert progress.ended == ["looking through the source", PACKING]


def break_some(photos):
    broken = sorted(photos.rglob("*.*"))[::5]
    for number, path in enumerate(broken):
        path.write_bytes([b"", b"no image", path.read_bytes()[:40]][number % 3])
    return broken


def test_broken_images_stop_the_run_or_are_skipped(photos, tmp_path):
    broken = break_some(photos)
    with pytest.raises(DataError, match="cannot be used") as error:
        prepare("birds", photos, out=tmp_path / "out")
    assert all(str(path.relative_to(photos)) in str(error.value) for path in broken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]
    result = prepare("birds", photos, out=tmp_path / "out", on_broken="skip")
    assert [one.path for one in result.skipped] == [str(path.relative_to(photos)) for path in broken]
    packed = PackedImages.open(result.path)
    assert len(packed) == 24 - len(broken)
    assert prepare("birds", photos, out=tmp_path / "out", on_broken="skip").skipped == result.skipped


def test_a_class_that_loses_all_its_images_is_an_error(photos, tmp_path):
    for path in next(iter(sorted(photos.iterdir()))).iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(DataError, match="has no images"):
        prepare("birds", photos, out=tmp_path / "out", on_broken="skip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_a_full_disk_keeps_what_is_done(many, tmp_path, monkeypatch):
    from e3bm.data.store.packed import PackedWriter

    append, calls = PackedWriter.append, []

    def fails_once(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return append(self, *arguments)

    monkeypatch.setattr(PackedWriter, "append", fails_once)
    with pytest.raises(DataError, match="No space left"):
        prepare("fc100", many, out=tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
    progress = RecordedProgress()
    prepare("fc100", many, out=tmp_path / "out", workers=1, progress=progress)
    assert progress.of(PACKING)[0].done == 512


def test_too_little_space_is_seen_before_the_start(photos, tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(DataError, match="MB free"):
        prepare("birds", photos, out=tmp_path / "out")


def test_nothing_foreign_is_replaced(photos, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(DataError, match="is not a packed data set"):
        prepare("birds", photos, out=tmp_path / "mine")
    for inside in (photos, photos / "packed"):
        with pytest.raises(DataError, match=r"inside|not a packed"):
            prepare("birds", photos, out=inside)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    prepare("birds", photos, out=tmp_path / "empty")
    assert len(open_dataset(str(tmp_path / "empty"))) == 24


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can write anywhere")
def test_an_unwritable_folder(photos, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(DataError, match="cannot be written"):
        prepare("birds", photos, out=tmp_path / "closed" / "out")


def test_parts_of_a_data_set(tmp_path, write):
    small = write.small("miniimagenet", per_class=3)
    files = write.csv_images(small)
    part = {name: content for name, content in files.items() if name != "split/test.csv"}
    result = prepare("miniimagenet", write.tree(tmp_path / "part", part), out=tmp_path / "out", workers=1)
    assert set(result.splits) == {"train", "val"}
    assert any("test split is not in the source" in note for note in result.notes)
    assert any("the same number of every class" in note for note in result.notes)
    uneven = {name: content for name, content in files.items() if not name.startswith("images/n0153282900000002")}
    uneven["split/train.csv"] = files["split/train.csv"].replace(b"n0153282900000002.jpg,n01532829\n", b"")
    source = write.tree(tmp_path / "uneven", uneven)
    with pytest.raises(DataError, match="'n01532829' has 2, most have 3"):
        prepare("miniimagenet", source, out=tmp_path / "out2", workers=1)
    result = prepare("miniimagenet", source, out=tmp_path / "out2", workers=1, allow_other_counts=True)
    assert result.splits["train"]["images"] == 191


def test_data_folders(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("E3BM_DATA", str(tmp_path / "from_variable"))
    assert prepare("birds", photos).path == tmp_path / "from_variable" / "birds"
    assert open_dataset("birds").name == "birds"
    monkeypatch.delenv("E3BM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert prepare("birds", photos).path == tmp_path / "cache" / "e3bm" / "birds"
    with pytest.raises(DataError, match="e3bm prepare fc100 --source PATH"):
        open_dataset("FC100")
    with pytest.raises(DataError, match="there: birds"):
        open_dataset("brids")
    with pytest.raises(SettingsError, match="did you mean 'miniimagenet'"):
        prepare("minimagenet", photos)
    with pytest.raises(SettingsError, match="needs no preparation"):
        prepare("glyphs", photos)
    with pytest.raises(SettingsError, match="--source"):
        prepare("fc100")


def test_strange_images_come_out_right(tmp_path):
    grey = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)
    kinds = {
        "grey.png": Image.fromarray(grey),
        "wide.png": Image.fromarray(grey.astype(np.uint16) * 257),
        "alpha.png": Image.fromarray(np.dstack([grey, grey, grey, np.full_like(grey, 255)])),
        "palette.gif": Image.fromarray(grey).convert("P"),
    }
    for label in "abcdef":
        for name, image in kinds.items():
            path = tmp_path / "photos" / label / name
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
    result = prepare("mine", tmp_path / "photos", out=tmp_path / "out", image_size=8)
    images = PackedImages.open(result.path).images
    np.testing.assert_array_equal(images, np.broadcast_to(grey[None, ..., None], images.shape))


def test_a_class_called_test_is_a_class(tmp_path, write):
    image = write.png(np.zeros((9, 9, 3), np.uint8))
    names = [f"{label}/{k}.png" for label in "abcdef" for k in range(3)] + [f"test/set {k}/x.png" for k in range(2)]
    result = prepare("mine", write.tree(tmp_path / "in", dict.fromkeys(names, image)), out=tmp_path / "out")
    assert "test" in PackedImages.open(result.path).class_names
    assert sum(count["images"] for count in result.splits.values()) == 20
