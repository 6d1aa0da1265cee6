import subprocess
import sys
from pathlib import Path

import pytest

from e3bm.errors import CheckpointError
from e3bm.report.page import report
from e3bm.runs.folder.files import write_json
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TrainSettings
from result_records import result_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run")
    write_json(folder.path / "config.json", {"kind": "train", "settings": TrainSettings().model_dump(mode="json")})
    for step in (250, 500):
        folder.append("metrics", {"step": step, "split": "val", "accuracy": 40 + step / 50, "ci": 0.9, "best": True})
    return folder.path


def test_a_page_and_its_figures_are_written(run: Path, tmp_path: Path):
    index = report([run], tmp_path / "out", title="Two validations")
    assert index == tmp_path / "out" / "index.html"
    assert "<title>Two validations</title>" in index.read_text(encoding="utf-8")
    assert sorted(path.name for path in index.parent.iterdir()) == [
        "index.html",
        "validation-glyphs-5-way-1-shot.png",
        "validation-glyphs-5-way-1-shot.svg",
    ]


def test_the_same_runs_give_the_same_bytes_and_are_left_alone(run: Path, tmp_path: Path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    first, second = report([run], tmp_path / "a").parent, report([run], tmp_path / "b").parent
    assert [path.read_bytes() for path in sorted(first.iterdir())] == [
        path.read_bytes() for path in sorted(second.iterdir())
    ]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_given_results_replace_those_of_the_runs(run: Path, tmp_path: Path):
    results = [result_of("run", "MTL over seeds", accuracy=55.5, ci=0.5, seeds=(0, 1, 2))]
    assert "MTL over seeds" in report([run], tmp_path / "out", results=results).read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_one_sentence(run: Path, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="Cannot write in"):
        report([run], tmp_path / "file" / "out")


def test_no_model_is_touched():
    code = "import sys, e3bm.report.page; sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
