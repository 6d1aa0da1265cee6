"""A run that is killed with SIGKILL, anywhere and any number of times, ends as the run that was left in peace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from small_runs import assert_same_run

DRIVER = Path(__file__).parent / "kill_driver.py"


def drive(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(DRIVER), *map(str, words)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_all(folder, runs):
    for number in range(runs):
        assert_same_run(folder / f"run-{number}", folder / "undisturbed")


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("mtl+e3bm", 20),
        ("pretrain", 20),
        pytest.param("mtl-scaled", 20, marks=pytest.mark.slow),
        pytest.param("sib+e3bm", 20, marks=pytest.mark.slow),
        pytest.param("maml+e3bm", 20, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(tmp_path, kind, kills):
    told = drive("random", tmp_path, kind, kills, 0)
    assert told["kills"] >= kills
    check_all(tmp_path, told["runs"])


@pytest.mark.parametrize("kind", ["mtl+e3bm", pytest.param("pretrain", marks=pytest.mark.slow)])
def test_killed_at_every_file_operation(tmp_path, kind):
    told = drive("operations", tmp_path, kind)
    assert told["kills"] > 30  # several operations for each of: creation, log lines, two checkpoints
    check_all(tmp_path, told["runs"])
    # Nothing that a kill left behind stays for ever.
    for run in tmp_path.glob("run-*"):
        assert not list(run.rglob("*.partial"))
        assert len(list((run / "checkpoints").glob("step-*"))) <= 2
