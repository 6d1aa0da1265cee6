"""`e3bm reproduce` and `e3bm cost --preset` as a person calls them."""

import json
from pathlib import Path

import pytest

from e3bm.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def empty(tmp_path):
    (tmp_path / "results").mkdir()
    return str(tmp_path / "results")


def test_the_paper_alone_where_nothing_was_run(empty, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # no terminal: one line a row
    assert main(["reproduce", "T1", "--dataset", "fc100", "--results", empty]) == 0
    told = capsys.readouterr().out
    lines = [line for line in told.splitlines() if line.startswith("MTL+E3BM (lstm-inductive)")]
    assert len(lines) == 2
    assert "45.0" in lines[0]
    assert "60.5" in lines[1]


def test_rows_for_scripts(empty, capsys):
    assert main(["reproduce", "S1", "--row", "SIB", "--dataset", "fc100", "--results", empty, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["shots"], row["paper"], row["paper_ci"], row["ours"]) for row in rows] == [
        (1, 46.0, 0.6, None),
        (5, 57.1, 0.4, None),
    ]


def test_costs_and_figures(empty, capsys, tmp_path):
    assert main(["reproduce", "S3", "--results", empty]) == 0
    assert "36,482" in capsys.readouterr().out
    assert main(["reproduce", "F4", "--results", empty, "--out", str(tmp_path / "out")]) == 0
    assert "No run of these ablations is in the results yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["T1", "--dataset", "cub"], "e3bm: The paper has no results on 'cub'; it has miniimagenet"),
        (["T1", "--shot", "2"], "e3bm: The paper has 1-shot and 5-shot results, none with 2 shots."),
        (["T1", "--row", "no such system"], "e3bm: T1 has no such row; it has MatchNets, ProtoNets, MAML"),
        (["T1", "--budget", "later"], "e3bm: 'later' is not a duration; write 90s, 30m, 2h or 1h30m."),
        (["T1", "--results", "nowhere"], "e3bm: There is no folder nowhere; name the folder of kept results"),
        (["T1", "--keep", "nowhere"], "e3bm: nowhere holds no run"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_code_2(empty, words, sentence, capsys):
    results = [] if "--results" in words else ["--results", empty]
    assert main(["reproduce", *words, *results]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.out == ""
    assert len(told.err.strip().splitlines()) == 1


def test_cost_of_a_preset(capsys):
    words = ["cost", "--preset", "small-sib-fc100-1shot-lstm-transductive", "--repeats", "1", "--skip-training"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["system"] for row in rows] == ["SIB", "SIB+E3BM", "ProtoNets", "MatchNets"]
    assert rows[1]["time_percent"] is not None
    assert main(words) == 0
    assert "+time %" in capsys.readouterr().out
    assert main(["cost", "--preset", "nothing"]) == 2
    assert "e3bm: There is no preset 'nothing'" in capsys.readouterr().err
