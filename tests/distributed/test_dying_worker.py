"""Workers that are killed: torchrun starts them again, and the run ends as one that was left in peace."""

import pytest
from worker import DYING, HERE

from e3bm.runs.training.train import run_train
from small_runs import assert_same_run, flags, pretrain_flags, settings, words


@pytest.mark.parametrize(
    "method",
    ["mtl-scaled+e3bm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("maml", "pretrain"))],
)
def test_restarted_workers_go_on_where_the_last_checkpoint_stands(tmp_path, torchrun, method):
    """The undisturbed run has two processes, too: it is the same to the last bit."""
    trains = method != "pretrain"
    dotted = flags(tmp_path, method) if trains else pretrain_flags(tmp_path)
    command = ["-m", "e3bm", "train" if trains else "pretrain", "--run", tmp_path / "peaceful"]
    told = torchrun(*command, *words(dotted)).stdout
    assert told.count("accuracy on validation classes") == 1  # said by the first process only
    done = torchrun(HERE / "worker.py", "dying", tmp_path, method, restarts=3)
    assert done.stderr.count("failed (exitcode: -9)") == len(DYING), done.stderr
    assert_same_run(tmp_path / f"killed-{method}", tmp_path / "peaceful")


def test_a_refusal_is_a_sentence_on_every_process(small_data, tmp_path, torchrun):
    run_train(settings(small_data, "mtl"), tmp_path / "run")
    command = ["-m", "e3bm", "train", "--run", tmp_path / "run", *words(flags(small_data, "mtl", seed=9))]
    refused = torchrun(*command, expected=2)
    assert "seed was 0, now 9" in refused.stderr
    assert "defect" not in refused.stderr
