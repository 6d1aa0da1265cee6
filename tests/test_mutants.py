"""The list of `make mutants` fits the code of today, its last run is kept, and the runner tells killed from alive."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "results" / "mutants.json"
FEWEST, ROOMS = 150, ("core", "methods", "backbones", "data", "runs")


def runner():
    """scripts/mutants.py as a module."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # its records look their module up
    spec.loader.exec_module(module)
    return module


RUNNER = runner()
MUTANTS = RUNNER.listed()


def test_every_mutant_fits_into_one_place_and_names_tests_that_there_are():
    for mutant in MUTANTS:
        mutant.applied((ROOT / "src" / "e3bm" / mutant.path).read_text())  # says which one does not
        assert mutant.tests
        for test in mutant.tests:
            assert (ROOT / test.partition("::")[0]).exists(), f"{mutant.name}: there is no {test}"


def test_there_are_enough_of_them_in_every_room():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= FEWEST
    rooms = Counter(mutant.path.split("/")[0] for mutant in MUTANTS)
    assert set(rooms) == set(ROOMS)
    assert min(rooms.values()) >= 5


@pytest.mark.skipif(not KEPT.exists(), reason="results/ holds no run of `make mutants` yet")
def test_the_last_run_is_of_this_list_and_killed_enough_of_it():
    found = json.loads(KEPT.read_text())
    assert list(found["outcomes"]) == [mutant.name for mutant in MUTANTS], "run: make mutants"
    assert [one["change"] for one in found["outcomes"].values()] == [mutant.change for mutant in MUTANTS]
    survived = {name for name, one in found["outcomes"].items() if one["outcome"] == "survived"}
    assert survived == {mutant.name for mutant in MUTANTS if mutant.survives}
    assert (found["mutants"], found["killed"]) == (len(MUTANTS), len(MUTANTS) - len(survived))
    assert found["killed"] >= RUNNER.RATE * found["mutants"]


def test_a_sample_is_drawn_by_its_seed():
    draw = lambda seed: RUNNER.chosen(MUTANTS, [], 10, seed)
    assert draw(1) == draw(1) != draw(2)
    assert {mutant.path for mutant in RUNNER.chosen(MUTANTS, ["episodes/sampler"], None, 0)} == {
        "data/episodes/sampler.py"
    }


LIST = """
[[file]]
path = "runs/evaluation/protocol.py"
tests = ["runs/evaluation/test_protocol.py"]
mutants = [
  { note = "a leak", old = "set(episode.support) & set(episode.query)", new = "set()" },
  { note = "nothing", old = "BLOCK = 256", new = "BLOCK = 255" },
]
"""


@pytest.mark.timeout(600)
def test_the_runner_tells_what_tests_notice_from_what_they_do_not(tmp_path):
    (tmp_path / "list.toml").write_text(LIST)
    command = [sys.executable, str(ROOT / "scripts" / "mutants.py"), "--list", str(tmp_path / "list.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "   killed  runs/evaluation/protocol.py: a leak\n" in done.stdout, done.stderr
    assert " survived  runs/evaluation/protocol.py: nothing\n" in done.stdout
    assert "1 of 2 killed" in done.stdout
    assert done.stdout.endswith("runs/evaluation/protocol.py: nothing\n    UNEXPLAINED\n")
    assert done.returncode == 1
    assert "BLOCK = 256" in (ROOT / "src" / "e3bm" / "runs" / "evaluation" / "protocol.py").read_text()


def test_a_run_goes_on_where_it_stopped_and_runs_what_was_changed_again(tmp_path):
    first, second, third = MUTANTS[:3]
    out = tmp_path / "mutants.json"
    RUNNER.keep(out, MUTANTS, second, "survived")
    RUNNER.keep(out, MUTANTS, first, "killed")
    known = RUNNER.kept(out, MUTANTS)
    assert {name: one["outcome"] for name, one in known.items()} == {first.name: "killed", second.name: "survived"}
    assert json.loads(out.read_text()) | {"outcomes": None} == {"mutants": 2, "killed": 1, "outcomes": None}
    assert list(json.loads(out.read_text())["outcomes"]) == [first.name, second.name]  # the order of the list

    changed = replace(second, new=second.new + "  ")
    assert set(RUNNER.kept(out, [first, changed, third])) == {first.name}
    assert RUNNER.kept(tmp_path / "none.json", MUTANTS) == {}


def test_no_mutant_is_begun_when_time_is_up():
    assert list(RUNNER.run(MUTANTS[:2], 1, True, minutes=-1)) == []
