"""Other people's methods, each a file in a package of its own, found by entry point and used from the command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from small_runs import flags, words

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_method.py"
POINTS = """[e3bm.methods]
squared = own_method:Squared
nearest_example = own_method:NearestExample
broken = nowhere:Nothing
"""


@pytest.fixture(scope="module")
def e3bm(tmp_path_factory):
    """Runs `e3bm` with the example's two methods installed beside it."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(EXAMPLE, site)
    about = site / "own_method-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own_method\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "e3bm", *map(str, arguments)],
            capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    return run


def own(folder, name, **changes):
    """Flags of a small run of this method; only those of an inner loop that it has."""
    dotted = flags(folder, "mtl", **changes)
    kept = {flag: value for flag, value in dotted.items() if not flag.startswith("method.")}
    return words({**kept, "method.name": name})


def test_a_method_with_settings_of_its_own_and_e3bm_on_top(e3bm, small_data, tmp_path):
    inner = ("--method.epochs", 3, "--method.sharpness", 5)
    e3bm("train", "--run", tmp_path / "plain", *own(small_data, "squared"), *inner)
    generated = ("--hyperprior.rate", "generated", "--hyperprior.weight", "generated")
    e3bm("train", "--run", tmp_path / "both", *own(small_data, "squared"), *inner, *generated)
    told = e3bm("test", tmp_path / "plain", tmp_path / "both", "--episodes", 5, "--json")
    plain, both = json.loads(told.stdout)
    assert (plain["method"], both["method"]) == ("Squared", "Squared+E3BM")
    assert both["paired_with"].startswith("Squared ")
    assert len(both["rates"]) == both["epochs"] == 3
    kept = json.loads((tmp_path / "plain" / "config.json").read_text())["settings"]["method"]
    assert kept == {
        "name": "squared", "epochs": 3, "test_epochs": None, "rate": 0.5, "order": "second", "sharpness": 5.0,
    }  # fmt: skip


def test_a_method_without_an_inner_loop(e3bm, small_data, tmp_path):
    e3bm("train", "--run", tmp_path / "run", *own(small_data, "nearest_example"))
    assert not (tmp_path / "run" / "schedules.jsonl").exists()
    (row,) = json.loads(e3bm("test", tmp_path / "run", "--episodes", 5, "--json").stdout)
    assert row["method"] == "Nearest example"
    assert not row["rates"]
    assert not row["weights"]
    assert not row["epoch_accuracy"]
    table = e3bm("test", tmp_path / "run", "--episodes", 5).stdout
    assert "Nearest example" in table
    e3bm("report", tmp_path / "run", "--out", tmp_path / "report")
    assert "Nearest example" in (tmp_path / "report" / "index.html").read_text()


def test_its_help_shows_its_own_options_and_no_hyperprior(e3bm):
    told = e3bm("train", "--method.name", "nearest_example", "--help").stdout
    assert "nearest_example" in told
    assert "--method.epochs" not in told
    assert "--hyperprior" not in told
    assert "--method.sharpness" in e3bm("train", "--method.name", "squared", "--help").stdout


def test_a_broken_package_breaks_only_its_own_method(e3bm, small_data, tmp_path):
    told = e3bm("train", "--run", tmp_path / "run", *own(small_data, "broken"), code=2).stderr
    assert "The method 'broken' cannot be loaded: its entry point nowhere:Nothing fails with ModuleNotFound" in told


@pytest.mark.parametrize(
    ("name", "wrong", "sentence"),
    [
        ("nearest_example", ("--method.epochs", "3"), "Nearest example has no option --method.epochs; it has none."),
        (
            "nearest_example",
            ("--hyperprior.weight", "equal"),
            "no inner loop, so there is no alpha and no v",
        ),
        ("squared", ("--method.sharpness", "-1"), "method.sharpness: it must be greater than 0"),
        ("squared", ("--method.head", "cosine"), "--method.sharpness"),  # the list of what it has
    ],
)
def test_what_it_does_not_have_is_refused(e3bm, small_data, tmp_path, name, wrong, sentence):
    told = e3bm("train", "--run", tmp_path / "run", *own(small_data, name), *wrong, code=2).stderr
    assert sentence in told
    assert "Traceback" not in told
    assert not (tmp_path / "run").exists()
