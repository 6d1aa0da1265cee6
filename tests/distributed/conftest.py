"""Lets the tests of this folder import the worker beside them, and start several of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def torchrun():
    """Starts two processes on this machine and waits for them."""

    def start(*words, restarts=0, expected=0, **variables):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        # After "--", or torchrun takes our --run for an abbreviation of an option of its own.
        command += ["--max-restarts", str(restarts), "--no-python", "--", sys.executable, *map(str, words)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **variables}
        environment["PYTHONFAULTHANDLER"] = "1"
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert (done.returncode == 0) == (expected == 0), done.stdout + done.stderr
        return done

    return start
