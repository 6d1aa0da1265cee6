"""A folder or archive with a subfolder per class, and every way in which it can be another thing."""

import os
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from e3bm.data.read import decode
from e3bm.data.read.decode import image_size, is_image_name
from e3bm.data.read.photos import UnusedFile, photo_pixels, photos_by_class, photos_in, unused_sentences, why_no_picture
from e3bm.errors import DataError
from photo_models import CLASSES, picture, write_folder


def listed(source):
    with photos_by_class(source) as found:
        return {name: [str(photo) for photo in photos] for name, photos in found.by_class.items()}


def test_subfolders_are_classes(tmp_path):
    folder = write_folder(tmp_path / "photos", 2)
    (folder / "sky" / "notes.txt").write_text("no photo")
    assert listed(folder) == {name: [str(folder / name / f"{number}.png") for number in (0, 1)] for name in CLASSES}


def test_an_archive_is_as_good_as_a_folder(tmp_path):
    folder = write_folder(tmp_path / "photos", 2)
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", folder)
    with photos_by_class(tmp_path / "packed.zip") as found:
        assert list(found.by_class) == list(CLASSES)
        assert found.unused == ()
        assert np.array_equal(photo_pixels(found.by_class["sky"][1]), picture("sky", 1))
        assert str(found.by_class["sky"][1]).startswith(archive)


def test_all_photos_of_a_folder(tmp_path):
    folder = write_folder(tmp_path / "photos", 2)
    found, unused = photos_in(folder)
    assert unused == ()
    assert [str(photo) for photo in found] == [
        str(folder / name / f"{number}.png") for name in CLASSES for number in (0, 1)
    ]


UNUSED = {
    ".DS_Store": "hidden",
    "__MACOSX": "left there by an operating system",
    "empty": "an empty folder",
    "sky/.hidden.png": "hidden",
    "sky/film.MOV": "unknown format .mov",
    "sky/nameless": "no file extension",
    "texts": "a folder without photos",
    "texts/deep/notes.txt": "unknown format .txt",
}


def write_unused(folder):
    """A folder of photos with everything in it that is none, as it happens."""
    write_folder(folder, 1)
    for name in ("__MACOSX/sky", "empty", "texts/deep"):
        (folder / name).mkdir(parents=True)
    for name in (".DS_Store", "__MACOSX/sky/._0.png", "sky/.hidden.png", "sky/film.MOV", "sky/nameless"):
        (folder / name).write_bytes(b"x")
    (folder / "texts" / "deep" / "notes.txt").write_text("x")
    return folder


def reasons(folder, unused):
    return {one.path.removeprefix(f"{folder}/"): one.reason for one in unused}


def test_whatever_is_no_photo_is_named_with_the_reason(tmp_path):
    folder = write_unused(tmp_path / "photos")
    shutil.make_archive(str(tmp_path / "zipped"), "zip", folder)
    shutil.make_archive(str(tmp_path / "tarred"), "gztar", folder)
    for archive in (tmp_path / "zipped.zip", tmp_path / "tarred.tar.gz"):
        with photos_by_class(archive) as found:
            assert list(found.by_class) == list(CLASSES)
            assert reasons(archive, found.unused) == UNUSED
    (folder / "sky" / "lost.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(folder / "sky" / "pipe.png")
    lost = {"sky/lost.png": "a link that leads nowhere", "sky/pipe.png": "not an ordinary file"}
    with photos_by_class(folder) as found:
        assert list(found.by_class) == list(CLASSES)
        assert reasons(folder, found.unused) == {**UNUSED, **lost}
    assert reasons(folder, photos_in(folder)[1]) == {**UNUSED, **lost}


def test_a_folder_that_is_there_twice_by_a_link_is_read_once_and_named(tmp_path):
    folder = tmp_path / "photos"
    write_folder(folder, 1)
    (folder / "sky" / "round").symlink_to(folder)
    (folder / "sky again").symlink_to(folder / "sky")
    with photos_by_class(folder) as found:
        assert sum(map(len, found.by_class.values())) == len(CLASSES)
        linked = reasons(folder, found.unused)
    assert set(linked.values()) == {"the same folder as another one, by a link"}
    assert len(linked) == 2


def test_unused_files_become_a_sentence_for_each_reason():
    many = [UnusedFile(f"{number}.txt", "unknown format .txt") for number in range(52)]
    first, second = unused_sentences([UnusedFile("a", "an empty folder"), *many])
    assert first == "Not used (an empty folder): a."
    assert second.startswith("Not used (unknown format .txt): 0.txt, 1.txt, ")
    assert second.endswith(", 49.txt and 2 more.")


@pytest.mark.parametrize(("suffix", "form"), [("heic", "HEIF"), ("HEIF", "HEIF"), ("avif", "AVIF")])
def test_photos_of_phones_are_read(tmp_path, suffix, form):
    pytest.importorskip("pillow_heif", reason="the extra 'pretrained' is not installed")
    folder = write_folder(tmp_path / "photos", 1)
    assert is_image_name(f"x.{suffix}")  # registers the format with Pillow
    grey = np.full((40, 48, 3), 120, dtype=np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown turned by a quarter
    Image.fromarray(grey).save(folder / "sky" / f"x.{suffix}", form, quality=90, exif=turned.tobytes())
    with photos_by_class(folder) as found:
        assert found.unused == ()
        pixels = photo_pixels(found.by_class["sky"][1])
    assert pixels.shape == (48, 40, 3)
    assert np.abs(pixels.astype(int) - 120).max() <= 3  # the formats lose a little
    assert image_size((folder / "sky" / f"x.{suffix}").read_bytes()) in ((48, 40), (40, 48))


def test_photos_of_phones_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "_readable_formats", lambda: ("PNG", "JPEG"))
    monkeypatch.setattr(decode, "_image_suffixes", lambda: frozenset({".png", ".jpg"}))
    folder = write_folder(tmp_path / "photos", 1)
    (folder / "sky" / "x.heic").write_bytes(b"\0\0\0\x1cftypheic")
    advice = "photos of this format (HEIC) need pillow-heif; run: pip install pillow-heif"
    with photos_by_class(folder) as found:
        assert found.unused == (UnusedFile(str(folder / "sky" / "x.heic"), advice),)
    with pytest.raises(DataError, match="need pillow-heif"):
        photo_pixels(folder / "sky" / "x.heic")


@pytest.mark.parametrize("inside", ["", "data/"])
def test_photos_beside_the_class_folders_are_named_and_not_used(tmp_path, inside):
    folder = write_folder(tmp_path / "photos" / inside, 2)
    shutil.copy(folder / "sky" / "0.png", tmp_path / "photos" / "loose.png")
    with photos_by_class(tmp_path / "photos") as found:
        assert {name: len(photos) for name, photos in found.by_class.items()} == dict.fromkeys(CLASSES, 2)
        assert found.unused == (UnusedFile(str(tmp_path / "photos" / "loose.png"), "not in a class folder"),)


def test_what_is_no_picture_is_seen_by_its_first_bytes(tmp_path):
    folder = write_folder(tmp_path / "photos", 1)
    for kind in ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm", "tga"):
        Image.open(folder / "sky" / "0.png").save(tmp_path / f"a.{kind}")
        assert why_no_picture(tmp_path / f"a.{kind}") is None
    shutil.copy(tmp_path / "a.tga", tmp_path / "tga.jpg")  # has no beginning of its own
    assert why_no_picture(tmp_path / "tga.jpg") is None
    (tmp_path / "empty.jpg").touch()
    assert why_no_picture(tmp_path / "empty.jpg") == "the file is empty"
    (tmp_path / "page.jpg").write_text("<!doctype html><p>not found")
    assert why_no_picture(tmp_path / "page.jpg") == (
        "it is not a picture in a format that can be read (it begins with '<!doctyp')"
    )
    assert why_no_picture(tmp_path / "none.jpg") is None  # whoever reads it says so
    assert why_no_picture(str(tmp_path / "empty.jpg")) is None  # a string may be a sentence
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("a/empty.jpg", b"")
        archive.write(folder / "sky" / "0.png", "b/0.png")
    with photos_by_class(tmp_path / "photos.zip") as found:
        assert [why_no_picture(photos[0]) for photos in found.by_class.values()] == ["the file is empty", None]


def test_other_things_are_refused(tmp_path):
    def refused(source, sentence):
        with pytest.raises(DataError, match=sentence), photos_by_class(source):
            pass

    refused(tmp_path / "nothing", "There is no folder .*nothing; expected a subfolder for each class")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "holds no files; expected a subfolder")
    (tmp_path / "texts" / "a").mkdir(parents=True)
    (tmp_path / "texts" / "a" / "x.mov").touch()
    refused(tmp_path / "texts", r"holds one file and no photo \(a/x.mov: unknown format .mov\); expected")
    (tmp_path / "texts" / "b").touch()
    refused(tmp_path / "texts", r"holds 2 files and no photo \(the first, a/x.mov: unknown format .mov\); expected")
    one = write_folder(tmp_path / "one", 2, ("sky",))
    refused(
        one, r"lie in one folder \('sky'\); at least two classes are needed, with the photos of each in a subfolder"
    )
    with photos_by_class(one, one_class=True) as found:
        assert {name: len(photos) for name, photos in found.by_class.items()} == {"sky": 2}
    refused(one / "sky" / "0.png", "is a single file")
    loose = write_folder(tmp_path / "loose", 1, ("sky",))
    shutil.copy(loose / "sky" / "0.png", loose / "x.png")
    refused(loose, "'x.png' in .* is not in a class folder; move it into one or remove it")
    for name in ("y.png", "z.png"):
        shutil.copy(loose / "x.png", loose / name)
    refused(loose, r"3 photos in .* are not in a class folder \('x.png', 'y.png', \.\.\.\); move them into one")
    parts = tmp_path / "parts"
    write_folder(parts / "train", 1)
    write_folder(parts / "test", 1)
    refused(parts, r"are test and train, which are splits of a data set, not classes; .* such as .*train\.$")
    with (
        pytest.raises(DataError, match=r"which are splits of a data set, .* such as .*test\.$"),
        photos_by_class(parts, one_class=True),
    ):
        pass
    lines = write_folder(tmp_path / "lines", 1)
    (lines / "sky").rename(lines / "s\nky")
    refused(lines, "control characters; rename it")
