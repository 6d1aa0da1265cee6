"""A packed folder is whole or absent, is checked when opened, and is shared rather than copied."""

import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from e3bm.data.store import format as packed_format
from e3bm.data.store.blocks import BLOCK_BYTES
from e3bm.data.store.format import read_record, recover, write_json
from e3bm.data.store.packed import Origin, PackedImages, PackedWriter
from e3bm.errors import DataError

SHAPE = (4, 5, 3)
NAMES = ("ant", "bee", "cat", "dog", "elk")
SPLITS = {"train": [0, 1, 2], "val": [3], "test": [4]}
ORIGIN = Origin(source="made up", preprocessing="none", fingerprint="f1", licence="CC0", citation="nobody")


def batch(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    images = np.stack([np.full(SHAPE, i % 251, np.uint8) for i in range(start, start + count)])
    images[:, 0, 0, 0] = 255 - images[:, 0, 0, 0]
    return images, np.arange(start, start + count, dtype=np.int64) % len(NAMES)


def write(path: Path, total: int = 25, step: int = 10) -> PackedImages:
    with PackedWriter(path, SHAPE, "tiny", origin=ORIGIN) as writer:
        for start in range(0, total, step):
            writer.append(*batch(start, min(step, total - start)))
        return writer.finish(NAMES, SPLITS)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    packed = PackedImages.open(tmp_path / "tiny", verify=True)
    images, labels = batch(0, 25)
    np.testing.assert_array_equal(packed.images, images)
    np.testing.assert_array_equal(packed.labels, labels)
    assert packed.class_names == NAMES
    assert packed.splits == {"train": (0, 1, 2), "val": (3,), "test": (4,)}
    assert packed.origin == ORIGIN
    assert packed.name == "tiny"
    assert len(packed) == 25
    assert packed.image_shape == SHAPE
    assert packed.class_counts.tolist() == [5, 5, 5, 5, 5]
    assert packed.indices_of(3).tolist() == [3, 8, 13, 18, 23]
    np.testing.assert_array_equal(packed.gather(np.array([24, 0, 24])), images[[24, 0, 24]])
    about = json.loads((tmp_path / "tiny" / "classes.json").read_text())
    assert about["class_counts"] == [5] * 5
    assert about["origin"]["licence"] == "CC0"
    names = ["blocks.json", "classes.json", "images.u8", "labels.npy", "tiny"]
    assert sorted(p.name for p in tmp_path.rglob("*")) == names


def test_the_pixels_cannot_be_changed_by_accident(tmp_path: Path) -> None:
    on_disk, in_memory = write(tmp_path / "tiny"), PackedImages.from_arrays(*batch(0, 25), NAMES, SPLITS)
    for packed in (on_disk, in_memory):
        with pytest.raises(ValueError, match="read-only"):
            packed.images[0] = 0
        with pytest.raises(ValueError, match="read-only"):
            packed.labels[0] = 0
    assert on_disk.digest == in_memory.digest


def test_batch_borders_do_not_matter(tmp_path: Path) -> None:
    assert write(tmp_path / "a", step=1).digest == write(tmp_path / "b", step=25).digest


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": [0, 1, 2], "val": [3, 2], "test": [4]}, "Class 'cat' is in train and again in val"),
        ({"train": [0, 1, 1, 2], "val": [3], "test": [4]}, "Class 'bee' is in train and again in train"),
        ({"train": [0, 1], "val": [3], "test": [4]}, "Class 'cat' is in no split"),
        ({"train": [0, 1, 2, 3, 4, 5]}, "class number 5; there are"),
        ({"base": [0, 1, 2, 3, 4]}, "no split 'base'; the splits are train, val, test"),
    ],
)
def test_wrong_splits_are_refused(splits: dict[str, list[int]], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        PackedImages.from_arrays(*batch(0, 25), NAMES, splits)
    with PackedWriter(tmp_path / "tiny", SHAPE, "tiny") as writer:
        writer.append(*batch(0, 25))
        with pytest.raises(DataError, match=message):
            writer.finish(NAMES, splits)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arrays_are_refused(tmp_path: Path) -> None:
    images, labels = batch(0, 10)
    with pytest.raises(DataError, match=r"unsigned bytes of shape .* found float64"):
        PackedImages.from_arrays(images / 255.0, labels, NAMES, SPLITS)
    with pytest.raises(DataError, match="found 10 images and labels of shape"):
        PackedImages.from_arrays(images, labels[:9], NAMES, SPLITS)
    with pytest.raises(DataError, match=r"Labels must lie in 0\.\.3; found 0\.\.4"):
        PackedImages.from_arrays(images, labels, NAMES[:4], {"train": [0, 1, 2, 3]})
    with pytest.raises(DataError, match="Two classes are named 'ant'"):
        PackedImages.from_arrays(images, labels, ("ant", "bee", "cat", "dog", "ant"), SPLITS)
    with PackedWriter(tmp_path / "tiny", SHAPE, "tiny") as writer:
        with pytest.raises(DataError, match=r"expected \(4, 5, 3\), found \(5, 4, 3\)"):
            writer.append(images.transpose(0, 2, 1, 3), labels)
        with pytest.raises(DataError, match="No images were found for 'tiny'"):
            writer.finish(NAMES, SPLITS)
        writer.append(images[:4], labels[:4])
        with pytest.raises(DataError, match="Class 'elk' has no images"):
            writer.finish(NAMES, SPLITS)
    assert list(tmp_path.iterdir()) == []


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write(folder)

    def damage(name: str, change: bytes | None) -> None:
        content = (folder / name).read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        (folder / name).write_bytes(flipped if change is None else change)

    for name, change in (
        ("classes.json", b"{"),
        ("classes.json", b"[]"),
        ("labels.npy", b""),
        ("labels.npy", None),
        ("images.u8", b""),
        ("images.u8", (folder / "images.u8").read_bytes()[:-1]),
        ("images.u8", (folder / "images.u8").read_bytes() + b"\0"),
    ):
        whole = (folder / name).read_bytes()
        damage(name, change)
        with pytest.raises(DataError, match=name.replace(".", r"\.")):
            PackedImages.open(folder)
        (folder / name).write_bytes(whole)
    about = (folder / "classes.json").read_text()
    (folder / "classes.json").write_text(about.replace('"dog"', '"fox"'))
    with pytest.raises(DataError, match=r"classes\.json is damaged"):
        PackedImages.open(folder)
    (folder / "classes.json").write_text(about)
    damage("images.u8", None)
    with pytest.raises(DataError, match=r"images\.u8 is damaged: the pixels of images 0 to 24 are not"):
        PackedImages.open(folder).gather(np.arange(3))
    with pytest.raises(DataError, match=r"images\.u8 is damaged: its content is not what was written"):
        PackedImages.open(folder, verify=True)
    (folder / "images.u8").unlink()
    with pytest.raises(DataError, match=r"images\.u8 has 0 bytes, expected 1500"):
        PackedImages.open(folder)
    with pytest.raises(DataError, match="not a prepared data set"):
        PackedImages.open(tmp_path)


def test_pixels_are_checked_when_they_are_read(tmp_path: Path) -> None:
    """Damage in one block is found by whoever reads an image of it, and by nobody else."""
    shape, count = (32, 32, 3), 1000
    with PackedWriter(tmp_path / "set", shape, "set") as writer:
        images = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
        writer.append(images, np.zeros(count, np.int64))
        digest = writer.finish(["one"], {"train": [0]}).digest
    assert count * 3072 > 2 * BLOCK_BYTES
    with (tmp_path / "set" / "images.u8").open("r+b") as file:
        file.seek(500 * 3072)
        file.write(bytes(3072))
    packed = PackedImages.open(tmp_path / "set")
    assert packed.digest == digest
    np.testing.assert_array_equal(packed.gather(np.array([0, 999, 340])), images[[0, 999, 340]])
    for _ in range(2):
        with pytest.raises(DataError, match=r"images\.u8 is damaged: the pixels of images 341 to 682"):
            packed.gather(np.array([0, 500]))
    with pytest.raises(DataError, match=r"images\.u8 is damaged"):
        packed.gather(np.array([341]))  # begins in one block and ends in the next


def test_images_larger_than_a_block_are_checked(tmp_path: Path) -> None:
    shape = (700, 1000, 3)
    with PackedWriter(tmp_path / "set", shape, "set") as writer:
        writer.append(np.zeros((3, *shape), np.uint8), np.zeros(3, np.int64))
        writer.finish(["one"], {"train": [0]})
    with (tmp_path / "set" / "images.u8").open("r+b") as file:
        file.seek(2_100_000 + 1_050_000)  # the middle of the second
        file.write(b"x")
    packed = PackedImages.open(tmp_path / "set")
    with pytest.raises(DataError, match="the pixels of images 1 to"):
        packed.gather(np.array([1]))


@pytest.mark.parametrize("blocks", ["absent", "damaged", "of other pixels"])
def test_folders_without_good_blocks_are_checked_whole(tmp_path: Path, blocks: str) -> None:
    """As former versions wrote them: the first use compares the whole, then there are blocks."""
    write(tmp_path / "tiny")
    path = tmp_path / "tiny" / "blocks.json"
    good = path.read_bytes()
    if blocks == "absent":
        path.unlink()
    elif blocks == "damaged":
        path.write_bytes(b"[" * 10_000)
    else:
        write_json(path, {**read_record(path), "images": "0" * 64})
    changed, images = path.read_bytes() if path.exists() else None, tmp_path / "tiny" / "images.u8"
    np.testing.assert_array_equal(PackedImages.open(tmp_path / "tiny").gather(np.array([3])), batch(3, 1)[0])
    assert path.read_bytes() == good
    path.unlink() if changed is None else path.write_bytes(changed)
    images.write_bytes(b"x" + images.read_bytes()[1:])
    with pytest.raises(DataError, match=r"images\.u8 is damaged: its content is not what was written"):
        PackedImages.open(tmp_path / "tiny").gather(np.array([3]))


@pytest.mark.parametrize("can_swap", [True, False])
def test_killed_at_any_moment_of_a_replacement_one_of_the_two_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_swap: bool
) -> None:
    """Every rename and removal in turn is the last thing that a killed writer does."""
    old = write(tmp_path / "old").digest
    new = write(tmp_path / "new", total=20).digest
    swap = packed_format.swap_folders if can_swap else lambda one, other: False
    left = 0

    class Killed(BaseException):
        pass

    def last(work):  # type: ignore[no-untyped-def]
        def step(*arguments, **options):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return work(*arguments, **options)

        return step

    rename, remove, path = Path.rename, packed_format.shutil.rmtree, tmp_path / "here" / "set"
    for steps in range(12):
        remove(path.parent, ignore_errors=True)
        path.parent.mkdir()
        write(path)
        writer = PackedWriter(path, SHAPE, "tiny", origin=ORIGIN, replace=True, resume=True)
        writer.append(*batch(0, 20))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", last(rename))
            patch.setattr(packed_format.shutil, "rmtree", last(remove))
            patch.setattr(packed_format, "swap_folders", last(swap))
            left = steps
            try:
                writer.finish(NAMES, SPLITS)
            except Killed:
                writer.pause()
            else:
                break
        if can_swap:
            assert path.exists()  # whoever looks with other eyes finds a data set, too
        assert PackedImages.open(path, verify=True).digest in (old, new)
        recover(path)
        assert not path.with_name("set.retired").exists()
    else:
        pytest.fail("the replacement never ended")
    assert PackedImages.open(path, verify=True).digest == new


def test_another_format_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    file = tmp_path / "tiny" / "classes.json"
    write_json(file, {**read_record(file), "version": 9})
    with pytest.raises(DataError, match="has format 9, this version reads 1"):
        PackedImages.open(tmp_path / "tiny")


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> None:
        with PackedWriter(tmp_path / "tiny", SHAPE, "tiny") as writer:
            writer.append(*batch(0, 10))
            assert (tmp_path / "tiny.partial").is_dir()
            assert not (tmp_path / "tiny").exists()
            raise RuntimeError("decoding failed")

    with pytest.raises(RuntimeError, match="decoding failed"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_data_set_is_replaced_only_when_asked(tmp_path: Path) -> None:
    old = write(tmp_path / "tiny")
    with pytest.raises(DataError, match="already exists"):
        PackedWriter(tmp_path / "tiny", SHAPE, "tiny")
    with PackedWriter(tmp_path / "tiny", SHAPE, "tiny", replace=True) as writer:
        writer.append(*batch(1, 20))
        assert PackedImages.open(tmp_path / "tiny", verify=True).digest == old.digest
        new = writer.finish(NAMES, SPLITS)
    assert new.digest != old.digest
    assert [p.name for p in tmp_path.iterdir()] == ["tiny"]
    np.testing.assert_array_equal(old.images[0], batch(0, 1)[0][0])  # an open map outlives the replacement
    with pytest.raises(DataError, match="replaced by other data"):
        pickle.loads(pickle.dumps(old))


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    with PackedWriter(tmp_path / "tiny", SHAPE, "tiny") as writer:
        with pytest.raises(DataError, match="being written by another process"):
            PackedWriter(tmp_path / "tiny", SHAPE, "tiny")
        writer.append(*batch(0, 25))
        writer.finish(NAMES, SPLITS)


KILLED_WRITER = """
import sys, time
sys.path.insert(0, {here!r})
import test_packed
from e3bm.data.store.packed import PackedWriter
with PackedWriter({path!r}, test_packed.SHAPE, "tiny", origin=test_packed.ORIGIN, resume=True) as writer:
    writer.append(*test_packed.batch(0, 10), state={{"next": 10}})
    writer.append(*test_packed.batch(10, 7), state={{"next": 17}})
    writer._pixels.write(b"half a batch")
    writer._pixels.flush()
    print("written", flush=True)
    time.sleep(60)
"""


def kill_a_writer(path: Path) -> None:
    code = KILLED_WRITER.format(here=str(Path(__file__).parent), path=str(path))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_a_killed_writer_leaves_no_data_set_and_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "tiny"
    kill_a_writer(path)
    assert not path.exists()
    with PackedWriter(path, SHAPE, "tiny", origin=ORIGIN, resume=True) as writer:
        assert writer.count == 17
        assert writer.state == {"next": 17}
        writer.append(*batch(17, 8))
        packed = writer.finish(NAMES, SPLITS)
    assert PackedImages.open(path, verify=True).digest == packed.digest == write(tmp_path / "whole").digest


def test_a_partial_folder_that_does_not_fit_is_started_again(tmp_path: Path) -> None:
    path = tmp_path / "tiny"

    def interrupted() -> None:
        with PackedWriter(path, SHAPE, "tiny", origin=ORIGIN, resume=True) as writer:
            writer.append(*batch(0, 10))

    for origin, shape, resume in (
        (Origin(fingerprint="f2"), SHAPE, True),
        (ORIGIN, (4, 5, 1), True),
        (ORIGIN, SHAPE, False),
    ):
        interrupted()
        writer = PackedWriter(path, shape, "tiny", origin=origin, resume=resume)
        assert writer.count == 0
        writer.abort()
    for name in ("images.u8", "labels.i64", "progress.json"):
        interrupted()
        whole = (path.with_name("tiny.partial") / name).read_bytes()
        for content in (b"", whole[:-1], b"7" + whole[1:]):
            (path.with_name("tiny.partial") / name).write_bytes(content)
            writer = PackedWriter(path, SHAPE, "tiny", origin=ORIGIN, resume=True)
            assert writer.count == 0, (name, content)
            writer.pause()
        writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_it_travels_to_another_process_as_a_path(tmp_path: Path) -> None:
    packed = write(tmp_path / "tiny", total=5000, step=1000)
    parcel = pickle.dumps(packed)
    assert len(parcel) < 1000 < packed.images.nbytes
    code = (
        "import pickle, sys; p = pickle.load(sys.stdin.buffer); "
        "print(p.digest, int(p.images.sum()), type(p.images).__name__)"
    )
    answer = subprocess.run([sys.executable, "-c", code], input=parcel, capture_output=True, check=True)
    assert answer.stdout.decode().split() == [packed.digest, str(int(packed.images.sum())), "memmap"]


def test_a_data_set_in_memory_travels_whole() -> None:
    packed = PackedImages.from_arrays(*batch(0, 25), NAMES, SPLITS, name="here", origin=ORIGIN)
    twin = pickle.loads(pickle.dumps(packed))
    np.testing.assert_array_equal(twin.images, packed.images)
    assert (twin.digest, twin.name, twin.origin, twin.splits) == (packed.digest, "here", ORIGIN, packed.splits)
    with pytest.raises(ValueError, match="read-only"):
        twin.images[0] = 0


def test_memory_stays_bounded_while_writing(tmp_path: Path) -> None:
    import tracemalloc

    images = np.zeros((64, 32, 32, 3), np.uint8)
    tracemalloc.start()
    with PackedWriter(tmp_path / "long", (32, 32, 3), "long") as writer:
        for _ in range(100):
            writer.append(images, np.zeros(64, np.int64))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 * images.nbytes < 100 * images.nbytes
