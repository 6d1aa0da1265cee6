"""Accuracy over the time of training: the best rows have their names, and the file is what was asked for."""

import re

import pytest

from e3bm.errors import SettingsError
from e3bm.report.accuracy_over_time import (
    UNTRAINED,
    accuracy_over_time,
    best_of_methods,
    clear_offsets,
    front,
    write_figure,
)
from result_records import result_of

RESULTS = [
    result_of("a", "SIB+E3BM", accuracy=63.0, train_seconds=30.0, seed="mean", seeds=[0, 1, 2],
              setting="transductive", hyperprior="fc transductive"),
    result_of("b", "SIB", accuracy=62.5, train_seconds=20.0, setting="transductive"),
    result_of("c", "nearest class mean", accuracy=60.0, train_seconds=0.0),
]  # fmt: skip


def test_the_best_row_of_every_method_has_its_name():
    """In its panel and, with all its words, in the list; the lines and markers are explained."""
    drawing = accuracy_over_time(RESULTS)
    names = [re.sub("<[^>]*>", "", text) for text in re.findall(r"<text.*?</text>", drawing.svg, re.DOTALL)]
    for words in ("SIB+E3BM", "SIB+E3BM (fc transductive)", "nearest class mean", "63.00 ± 0.71", "30.0 s", "1 min"):
        assert words in names
    assert "SIB" not in names  # the other row of the method: a grey point
    assert {"best row of a method, with E3BM", "best with as little training", "other rows of the table"} <= set(names)
    assert "without the pre-training of its backbone" in drawing.caption
    assert accuracy_over_time(RESULTS).svg == drawing.svg


def test_rows_that_share_batch_statistics_stand_with_the_transductive_ones():
    """Whatever their setting says: a dagger is at their names, and the title of the panel says what it means."""
    words = lambda drawing: [re.sub("<[^>]*>", "", text) for text in re.findall(r"<text.*?</text>", drawing.svg)]
    maml = [
        result_of("d", "MAML", accuracy=39.0, transductive_batchnorm=True, batchnorm="batch"),
        result_of("e", "MAML+E3BM", accuracy=39.5, transductive_batchnorm=True, batchnorm="batch"),
    ]
    names = words(accuracy_over_time(maml))
    assert "transductive: queries are used together (†: in batch statistics)" in names
    assert names.count("MAML+E3BM †") == 2  # in the panel and in the list
    assert not any(name.startswith("inductive") for name in names)
    names = words(accuracy_over_time(RESULTS))
    assert "transductive: queries are used together" in names
    assert "inductive: every query by itself" in names
    assert not any("†" in name for name in names)


def test_one_row_of_a_method_whatever_its_options():
    options = {"EGNN (inductive)": 44.0, "EGNN (transductive)+E3BM": 45.0}
    rows = options | {"MAML++ + E3BM": 39.0, "MAML++": 38.0, "MAML": 37.0}
    more = [result_of(name, name, accuracy=accuracy) for name, accuracy in rows.items()]
    methods = [row.method for row in best_of_methods([*more, *RESULTS])]
    assert methods == ["SIB+E3BM", "nearest class mean", "EGNN (transductive)+E3BM", "MAML++ + E3BM", "MAML"]


def test_the_front_is_what_nothing_beats_with_as_little_training():
    assert front(RESULTS) == [RESULTS[2], RESULTS[1], RESULTS[0]]
    assert front([*RESULTS, result_of("i", "PT+MAP", accuracy=64.0, train_seconds=0.0)])[0].method == "PT+MAP"


def test_names_keep_clear_of_points_and_of_each_other():
    places, frame = [(50.0 + 4 * i, 50.0) for i in range(5)], (0.0, 0.0, 300.0, 100.0)
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    offsets = clear_offsets(places, [60.0] * 5, frame, taken)
    boxes = [(x + a - 30, y + b - 4, x + a + 30, y + b + 4) for (x, y), (a, b) in zip(places, offsets, strict=True)]
    for i, box in enumerate(boxes):
        assert 0 <= box[0] < box[2] <= 300
        assert 0 <= box[1] < box[3] <= 100
        for other in [*taken, *boxes[:i]]:
            assert box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]


def test_methods_without_any_training_can_be_drawn():
    assert UNTRAINED in accuracy_over_time([RESULTS[2]]).svg


def test_files(tmp_path):
    write_figure(RESULTS, tmp_path / "times.png")
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    write_figure(RESULTS, tmp_path / "times.svg")
    assert "<svg" in (tmp_path / "times.svg").read_text()
    with pytest.raises(SettingsError, match=r"A figure is a \.png or \.svg file, found 'times\.pdf'"):
        write_figure(RESULTS, tmp_path / "times.pdf")
