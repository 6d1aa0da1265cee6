"""`e3bm ablate` as a person calls it."""

import json

from e3bm.cli.main import main
from small_runs import flags, words


def ablate(folder, study, dotted, *more):
    return main(["ablate", "--study", study, "--run", str(folder), "--episodes", "6", *words(dotted), *more])


def small(small_data, **changes):
    return flags(small_data, "mtl+e3bm", optimiser__steps=4, **changes)


def test_a_study_prints_one_row_per_arm_and_says_where_the_report_is(small_data, tmp_path, capsys):
    assert ablate(tmp_path, "rate", small(small_data)) == 0
    told = capsys.readouterr()
    for title in ("MTL (a1) E3BM", "MTL (a2) learnable", "MTL (a3) optimal", "MTL (a4, v5)"):
        assert title in told.out
    page = tmp_path / "report-rate" / "index.html"
    assert f"Report: {page}" in told.out
    assert page.exists()
    assert list(page.parent.glob("validation-*.svg"))
    # The same folder again: nothing is trained, rows for scripts on stdout.
    assert ablate(tmp_path, "rate", small(small_data), "--json") == 0
    told = capsys.readouterr()
    rows = json.loads(told.out)
    assert len(rows) == 4
    assert all(row.keys() >= {"method", "accuracy", "ci", "episodes_hash", "paired_difference"} for row in rows)
    assert "meta-train" not in told.err


def test_what_is_wrong_is_one_sentence_and_exit_code_2(small_data, tmp_path, capsys):
    assert main(["ablate", "--study", "rate", "--run", str(tmp_path / "a")]) == 2
    assert "e3bm: The backbone of this study is frozen and must have been trained" in capsys.readouterr().err
    assert ablate(tmp_path / "b", "rate", small(small_data), "--budget", "soon") == 2
    assert "e3bm: 'soon' is not a duration; write 90s, 30m, 2h or 1h30m." in capsys.readouterr().err
    assert ablate(tmp_path / "c", "rate", small(small_data), "--budget", "0s") == 2
    assert "give the study more time" in capsys.readouterr().err
