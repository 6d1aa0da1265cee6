"""A folder or archive with a subfolder per class, and every way in which it can be another thing."""

import shutil

import numpy as np
import pytest

from e3bm.data.read.photos import photo_pixels, photos_by_class, photos_in
from e3bm.errors import DataError
from photo_models import CLASSES, picture, write_folder


def listed(source):
    with photos_by_class(source) as found:
        return {name: [str(photo) for photo in photos] for name, photos in found.items()}


def test_subfolders_are_classes(tmp_path):
    folder = write_folder(tmp_path / "photos", 2)
    (folder / "sky" / "notes.txt").write_text("no photo")
    assert listed(folder) == {name: [str(folder / name / f"{number}.png") for number in (0, 1)] for name in CLASSES}


def test_an_archive_is_as_good_as_a_folder(tmp_path):
    folder = write_folder(tmp_path / "photos", 2)
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", folder)
    with photos_by_class(tmp_path / "packed.zip") as found:
        assert list(found) == list(CLASSES)
        assert np.array_equal(photo_pixels(found["sky"][1]), picture("sky", 1))
        assert str(found["sky"][1]).startswith(archive)


def test_all_photos_of_a_folder(tmp_path):
    folder = write_folder(tmp_path / "photos", 2)
    assert [str(photo) for photo in photos_in(folder)] == [
        str(folder / name / f"{number}.png") for name in CLASSES for number in (0, 1)
    ]


def test_other_things_are_refused(tmp_path):
    def refused(source, sentence):
        with pytest.raises(DataError, match=sentence), photos_by_class(source):
            pass

    refused(tmp_path / "nothing", "There is no folder .*nothing; expected a subfolder for each class")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "holds no files; expected a subfolder")
    (tmp_path / "texts" / "a").mkdir(parents=True)
    (tmp_path / "texts" / "a" / "x.heic").touch()
    refused(tmp_path / "texts", "holds 1 files, none of them an image")
    one = write_folder(tmp_path / "one", 2, ("sky",))
    refused(one, "lie in one folder .*two or more")
    refused(one / "sky" / "0.png", "is a single file")
    loose = write_folder(tmp_path / "loose", 1)
    shutil.copy(loose / "sky" / "0.png", loose / "x.png")
    refused(loose, "'x.png' in .* lies in no class folder")
    hollow = write_folder(tmp_path / "hollow", 1)
    (hollow / "sand").mkdir()
    refused(hollow, "class folder 'sand' .* holds no image")
    parts = tmp_path / "parts"
    write_folder(parts / "train", 1)
    write_folder(parts / "test", 1)
    refused(parts, "are test and train, which are parts of a data set")
    lines = write_folder(tmp_path / "lines", 1)
    (lines / "sky").rename(lines / "s\nky")
    refused(lines, "control characters; rename it")
