"""The embedded data set: whole, well-posed, disjoint, small, licensed."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from e3bm.data.sources.glyphs import (
    CLASSES_FILE,
    DIGESTS_FILE,
    IMAGES_FILE,
    PACKAGE_FOLDER,
    TYPEFACES_FILE,
    GlyphArrays,
    load_glyphs,
)
from e3bm.errors import DataError

REPOSITORY = Path(__file__).resolve().parents[3]
FILES = (IMAGES_FILE, CLASSES_FILE, TYPEFACES_FILE, DIGESTS_FILE)
# Pinned here too, so that data and recorded digest cannot change together unnoticed.
IMAGES_SHA256 = "f1d60cc6ab997916b52c433e91c51f742abe53958692d3e880558ea67d8f1718"


@pytest.fixture(scope="module")
def glyphs() -> GlyphArrays:
    return load_glyphs()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in FILES:
        shutil.copy(PACKAGE_FOLDER / name, tmp_path / name)
    return tmp_path


def test_recorded_digest_is_the_pinned_one() -> None:
    assert f"{IMAGES_SHA256}  {IMAGES_FILE}" in (PACKAGE_FOLDER / DIGESTS_FILE).read_text().splitlines()


def test_arrays_have_the_promised_form(glyphs: GlyphArrays) -> None:
    count = len(glyphs.images)
    assert glyphs.images.shape == (count, 28, 28, 1)
    assert glyphs.images.dtype == np.uint8
    assert glyphs.labels.shape == glyphs.typefaces.shape == (count,)
    assert glyphs.labels.dtype == glyphs.typefaces.dtype == np.int64
    assert set(np.unique(glyphs.images).tolist()) == set(range(0, 256, 17))
    assert len(set(glyphs.class_names)) == len(glyphs.class_names) == len(glyphs.characters) == len(glyphs.scripts)
    assert not glyphs.images.flags.writeable
    assert load_glyphs() is glyphs


def test_classes_are_many_and_each_has_enough_different_typefaces(glyphs: GlyphArrays) -> None:
    counts = np.bincount(glyphs.labels, minlength=len(glyphs.class_names))
    assert len(counts) >= 280
    assert counts.min() >= 20
    assert counts.max() <= 100
    pairs = set(zip(glyphs.labels.tolist(), glyphs.typefaces.tolist(), strict=True))
    assert len(pairs) == len(glyphs.images)
    assert glyphs.typefaces.max() < len(glyphs.typeface_names)


def test_splits_are_disjoint_cover_all_and_test_has_an_unseen_script(glyphs: GlyphArrays) -> None:
    numbers = [number for split in glyphs.splits.values() for number in split]
    assert list(glyphs.splits) == ["train", "val", "test"]
    assert sorted(numbers) == list(range(len(glyphs.class_names)))
    scripts = {split: {glyphs.scripts[number] for number in members} for split, members in glyphs.splits.items()}
    assert scripts["train"].isdisjoint(scripts["val"] | scripts["test"])
    assert "Greek" in scripts["test"] - scripts["val"]


def test_variants_of_one_cyrillic_letter_are_in_one_split(glyphs: GlyphArrays) -> None:
    def letters(split: str) -> set[str]:
        names = [glyphs.class_names[number] for number in glyphs.splits[split] if glyphs.scripts[number] == "Cyrillic"]
        return {name.split(" WITH ")[0].split()[-1] for name in names}

    assert letters("val")
    assert letters("val").isdisjoint(letters("test"))


def test_no_image_appears_twice(glyphs: GlyphArrays) -> None:
    assert len({image.tobytes() for image in glyphs.images}) == len(glyphs.images)


def test_every_drawing_has_ink_and_a_blank_frame(glyphs: GlyphArrays) -> None:
    grey = glyphs.images[..., 0]
    assert (grey.sum(axis=(1, 2), dtype=np.int64) >= 10 * 255).all()
    assert not grey[:, [0, -1], :].any()
    assert not grey[:, :, [0, -1]].any()


def test_only_one_of_each_known_set_of_look_alikes_is_a_class(glyphs: GlyphArrays) -> None:
    for look_alikes in ("AΑА", "BΒВ", "OΟО0", "oοо", "cс", "Il", "ΓГ", "ΠП", "ΦФ", "μµ"):
        assert sum(character in glyphs.characters for character in look_alikes) <= 1, look_alikes
    assert {"C", "c", "S", "s"} <= set(glyphs.characters)


def test_capitals_stay_larger_than_small_letters_of_the_same_form(glyphs: GlyphArrays) -> None:
    def heights(character: str) -> dict[int, int]:
        members = np.flatnonzero(glyphs.labels == glyphs.characters.index(character))
        rows = glyphs.images[members, :, :, 0].max(axis=2) > 127
        return dict(zip(glyphs.typefaces[members].tolist(), rows.sum(axis=1).tolist(), strict=True))

    for capital in "CSVWXZ":
        large, small = heights(capital), heights(capital.lower())
        shared = large.keys() & small.keys()
        assert len(shared) > 20
        assert np.mean([large[face] > small[face] for face in shared]) > 0.95


def test_package_carries_at_most_three_megabytes() -> None:
    assert sum((PACKAGE_FOLDER / name).stat().st_size for name in FILES) <= 3_000_000


@pytest.mark.parametrize("name", [IMAGES_FILE, CLASSES_FILE, TYPEFACES_FILE])
def test_damaged_file_is_named(copied: Path, name: str) -> None:
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(bytes(content))
    with pytest.raises(DataError, match=rf"{re.escape(name)} .*damaged.*reinstall"):
        load_glyphs(copied)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(DataError, match=rf"{re.escape(name)} .*cannot be read.*reinstall"):
        load_glyphs(copied)


def test_unreadable_digest_list_is_no_valid_digest(copied: Path) -> None:
    (copied / DIGESTS_FILE).write_bytes(b"\xff\xfe nothing\n")
    with pytest.raises(DataError, match="damaged"):
        load_glyphs(copied)


def test_copied_files_load_like_the_package(copied: Path, glyphs: GlyphArrays) -> None:
    np.testing.assert_array_equal(load_glyphs(copied).images, glyphs.images)


def test_every_typeface_used_is_listed_with_open_licence_and_copyright(glyphs: GlyphArrays) -> None:
    listed = json.loads((PACKAGE_FOLDER / TYPEFACES_FILE).read_text("utf-8"))
    table = (REPOSITORY / "docs" / "glyphs_licences.md").read_text("utf-8")
    for number in np.unique(glyphs.typefaces).tolist():
        row = listed[number]
        assert row["licence"] in {"OFL-1.1", "Apache-2.0"}
        assert row["copyright"].startswith("Copyright")
        assert re.fullmatch(r"[0-9a-f]{64}", row["wheel_sha256"])
        assert (
            f"| {row['family']} | {(glyphs.typefaces == number).sum()} | {row['package']} {row['version']} |" in table
        )


def test_counts_in_the_docs_are_true(glyphs: GlyphArrays) -> None:
    page = (REPOSITORY / "docs" / "glyphs.md").read_text("utf-8")
    for script in (*sorted(set(glyphs.scripts)), "all"):
        counts = [
            sum(script in ("all", glyphs.scripts[number]) for number in glyphs.splits[split])
            for split in ("train", "val", "test")
        ]
        cells = " | ".join(str(count) if count else "" for count in (*counts, sum(counts)))
        assert re.sub(r" +", " ", f"| {script} | {cells} |") in re.sub(r" +", " ", page), script
    assert f"{len(glyphs.images):,} images" in page
    assert f"{len(np.unique(glyphs.typefaces))} typefaces" in page
