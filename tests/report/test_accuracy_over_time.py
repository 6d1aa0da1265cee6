"""Accuracy over the time of training: every row is a point with its number, and the file is what was asked for."""

import pytest

from e3bm.errors import SettingsError
from e3bm.report.accuracy_over_time import UNTRAINED, accuracy_over_time, write_figure
from result_records import result_of

RESULTS = [
    result_of("a", "SIB+E3BM", accuracy=63.0, train_seconds=90.0, seed="mean", seeds=[0, 1, 2],
              setting="transductive", hyperprior="fc transductive"),
    result_of("b", "SIB", accuracy=62.5, train_seconds=20.0, setting="transductive"),
    result_of("c", "nearest class mean", accuracy=60.0, train_seconds=0.0),
]  # fmt: skip


def test_every_row_has_a_point_and_a_name():
    drawing = accuracy_over_time(RESULTS)
    names = ("SIB+E3BM (fc transductive) · conv4", "SIB · conv4", "nearest class mean · conv4")
    for words in (*names, UNTRAINED, "1 min", *(f">{rank}<" for rank in (1, 2, 3))):
        assert words in drawing.svg
    assert "without the pre-training of its backbone" in drawing.caption
    assert accuracy_over_time(RESULTS).svg == drawing.svg


def test_methods_without_any_training_can_be_drawn():
    assert UNTRAINED in accuracy_over_time([RESULTS[2]]).svg


def test_files(tmp_path):
    write_figure(RESULTS, tmp_path / "times.png")
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    write_figure(RESULTS, tmp_path / "times.svg")
    assert "<svg" in (tmp_path / "times.svg").read_text()
    with pytest.raises(SettingsError, match=r"A figure is a \.png or \.svg file, found 'times\.pdf'"):
        write_figure(RESULTS, tmp_path / "times.pdf")
