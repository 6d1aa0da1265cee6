"""Two torchrun agents that meet over the network, as on two machines: the run is that of one process."""

import os
import subprocess
import sys

import pytest
import torch
from worker import FEW

from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.training.train import run_train
from free_ports import free_port
from small_runs import flags, settings, words


@pytest.mark.slow
def test_two_agents(tmp_path):
    dotted = flags(tmp_path, "mtl-scaled+e3bm", **FEW)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "few-shot"]
    command += ["--no-python", "--", sys.executable, "-m", "e3bm", "train"]
    command += ["--run", str(tmp_path / "many"), *words(dotted)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [agent.communicate() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], told
    assert sum(out.count("accuracy on validation classes") for out, _ in told) == 1
    run_train(settings(tmp_path, "mtl-scaled+e3bm", **FEW), tmp_path / "one")
    found, expected = (Checkpoints(tmp_path / name).weights("last") for name in ("many", "one"))
    for key, value in expected.items():
        # By Adam, which blows up the noise of shifts before batch statistics.
        torch.testing.assert_close(found[key], value, rtol=1e-8, atol=1e-8)
