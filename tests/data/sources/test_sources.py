"""What every data set promises, and how a new one joins."""

import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from PIL import Image

from e3bm.data.layouts.base import KnownClasses, Layout
from e3bm.data.layouts.folders import ClassFolders
from e3bm.data.read.prepare import prepare
from e3bm.data.source import (
    SOURCES,
    DataSource,
    SourceCard,
    SplitCount,
    open_dataset,
    registered_name,
    registered_sources,
)
from e3bm.data.store.format import SPLIT_NAMES


@pytest.mark.parametrize("name", list(registered_sources()))
def test_contract(name):
    source = registered_sources()[name]()
    assert isinstance(source, DataSource)
    card = source.card
    assert card.title
    assert card.licence
    assert card.channels in (1, 3)
    assert set(card.published) in (set(), set(SPLIT_NAMES))
    assert not card.accepted_sizes or 0 < card.image_size <= max(card.accepted_sizes)
    assert len(card.pixel_mean) == len(card.pixel_std)
    for layout in source.layouts:
        assert isinstance(layout, Layout)
        assert layout.name
        assert layout.example
    known = source.known_classes()
    assert set(known.split_of.values()) in (set(), set(SPLIT_NAMES))
    assert set(known.by_number) in (set(), set(known.split_of))
    assert registered_name(name.upper().replace("-", "_")) == name


def test_glyphs_need_no_preparation(tmp_path):
    glyphs = open_dataset("glyphs", tmp_path / "nothing here")
    assert glyphs.image_shape == (28, 28, 1)
    assert len(glyphs.class_names) >= 280
    assert min(glyphs.class_counts) >= 20
    assert all(glyphs.splits[split] for split in SPLIT_NAMES)
    # Ink is light, as in Omniglot.
    assert glyphs.images.mean() < 100
    assert open_dataset("GLYPHS") is glyphs


class Digits:
    """A data set of a stranger, in one class."""

    card = SourceCard(
        "Digits",
        image_size=8,
        accepted_sizes=(8,),
        channels=1,
        licence="CC0",
        citation="nobody",
        published={"train": SplitCount(6, 12), "val": SplitCount(2, 4), "test": SplitCount(2, 4)},
        images_per_class=2,
    )
    layouts = (ClassFolders(),)

    def known_classes(self) -> KnownClasses:
        return KnownClasses({str(n): "train" if n < 6 else "val" if n < 8 else "test" for n in range(10)})


def test_a_stranger_adds_a_data_set_in_one_file(tmp_path, monkeypatch):
    module = type(sys)("strangers_module")
    module.Digits = Digits
    monkeypatch.setitem(sys.modules, "strangers_module", module)
    point = EntryPoint("digits", "strangers_module:Digits", "e3bm.sources")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == "e3bm.sources" else [])
    monkeypatch.setattr(SOURCES, "_plugins_loaded", False)
    monkeypatch.setattr(SOURCES, "_entries", dict(SOURCES._entries))
    for n in range(10):
        (tmp_path / "in" / str(n)).mkdir(parents=True)
        for k in range(2):
            Image.fromarray(np.full((8, 8), 20 * n + k, np.uint8)).save(tmp_path / "in" / str(n) / f"{k}.png")
    result = prepare("digits", tmp_path / "in", folder=tmp_path / "data", workers=1)
    assert not result.notes
    packed = open_dataset("Digits", tmp_path / "data")
    assert [packed.class_names[n] for n in packed.splits["test"]] == ["8", "9"]
    assert packed.image_shape == (8, 8, 1)
    assert packed.images[packed.indices_of(3)][:, 0, 0, 0].tolist() == [60, 61]
