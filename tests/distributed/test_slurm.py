"""The script for SLURM, as it stands there, with stand-ins for SLURM's own commands on one machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.training.train import run_train
from free_ports import free_port
from small_runs import flags, settings, words

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm_train.sh"
# As many of the command as there are nodes, all on this machine; as srun does, it fails where one of them fails.
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do case $1 in --kill-on-bad-exit=1) shift;; *) shift 2;; esac; done
for node in $(seq "$SLURM_NNODES"); do "$@" & done
for node in $(seq "$SLURM_NNODES"); do wait -n || exit 1; done
"""
SCONTROL = "#!/bin/bash\n[ \"$1 $2\" = 'show hostnames' ] && echo localhost\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a script for bash")
def test_the_script_trains_on_two_nodes(tmp_path):
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    dotted = flags(tmp_path, "mtl", machine__precision="float64")
    job = {
        "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "17", "E3BM_PORT": str(free_port()),
        "SLURM_CPUS_PER_TASK": "1", "SLURM_TMPDIR": str(tmp_path / "disk"),
        "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "many"), *words(dotted)],
        env={**os.environ, **job}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name.startswith("small-") for path in (tmp_path / "disk" / "e3bm").iterdir()] == [True]
    run_train(settings(tmp_path, "mtl", machine__precision="float64"), tmp_path / "one")
    found, expected = (Checkpoints(tmp_path / name).weights("last") for name in ("many", "one"))
    for key, value in expected.items():
        # Two processes add up in another order than one.
        assert float((found[key] - value).abs().max()) < 1e-8, key


def test_it_says_what_it_needs():
    for job, told in (({}, "give the run folder"), ({"arguments": "runs/x"}, "start this with sbatch")):
        words_given = job.get("arguments", "").split()
        done = subprocess.run(["bash", str(SCRIPT), *words_given], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert told in done.stderr
