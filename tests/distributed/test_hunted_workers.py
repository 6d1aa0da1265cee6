"""Workers that are killed at random moments, also while they start, and one that stands still.

E3BM_WORKER_KILLS asks for more kills than the suite makes.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from worker import ENOUGH, HERE, HUNTED

from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.training.train import run_train
from small_runs import assert_equal, settings

KILLS = int(os.environ.get("E3BM_WORKER_KILLS", "3"))


def torchrun_command(mode: str, folder: Path, restarts: int) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # One that stands still does not hear that it should end: it is killed after these seconds, of which 30 are usual.
    command += ["--max-restarts", str(restarts), "--monitor-interval", "0.2", "--shutdown-timeout", "3"]
    command += ["--no-python", "--"]
    return [*command, sys.executable, str(HERE / "worker.py"), mode, str(folder)]


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **variables}


def until_it_is_there(path: Path, process: subprocess.Popen) -> bool:
    """Whether the file came before the process ended."""
    for _ in range(15_000):
        if path.exists():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.02)
    pytest.fail(f"{path.name} did not come within five minutes")


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILLS)
def test_kills_at_random_moments_change_nothing(tmp_path, torchrun):
    random, kills = Random(11), 0
    settings(tmp_path, "mtl")  # writes the inputs
    with subprocess.Popen(
        torchrun_command("hunted", tmp_path, KILLS + 1), env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as agent:  # fmt: skip
        try:
            for start in range(KILLS):
                prey = tmp_path / f"start{start}" / str(random.randrange(2))
                if not until_it_is_there(prey, agent):
                    break
                time.sleep(random.choice([0, 1, 3]) * random.random())
                os.kill(int(prey.read_text()), signal.SIGKILL)
                kills += 1
            (tmp_path / ENOUGH).touch()
            told = agent.communicate()[0]
        finally:
            agent.kill()
    assert agent.returncode == 0, told
    assert kills == KILLS, told
    (tmp_path / "hunted").rename(tmp_path / "killed")
    torchrun(HERE / "worker.py", "hunted", tmp_path)
    for which in ("last", "best"):
        found, expected = (Checkpoints(tmp_path / name).weights(which) for name in ("killed", "hunted"))
        assert_equal(found, expected)
    assert Checkpoints(tmp_path / "killed").state("last")["step"] == HUNTED["optimiser__steps"]


@pytest.mark.slow
def test_a_worker_that_stands_still_is_noticed_and_started_again(tmp_path):
    settings(tmp_path, "mtl")  # writes the inputs
    # More starts than it needs: on a busy machine one that only starts slowly is taken for one that stands still, too.
    done = subprocess.run(
        torchrun_command("standing", tmp_path, 9), env=environment(E3BM_PATIENCE="5"), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "has not answered for 5 seconds" in done.stderr
    assert (tmp_path / "stood").exists()
    run_train(settings(tmp_path, "mtl"), tmp_path / "one")
    assert (
        Checkpoints(tmp_path / "standing").state("last")["step"] == Checkpoints(tmp_path / "one").state("last")["step"]
    )
