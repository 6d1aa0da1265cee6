"""Workers that are killed: torchrun starts them again, and the run ends as one that was left in peace."""

import pytest
from worker import DYING, HERE, KINDS

from e3bm.runs.training.train import run_train
from small_runs import assert_same_run, flags, settings, words


@pytest.fixture(scope="module")
def runs(tmp_path_factory, torchrun):
    """Every kind trained by two processes in peace, and by two that die again and again."""
    folder = tmp_path_factory.mktemp("dying")
    settings(folder, "mtl")  # writes the inputs
    told = torchrun(HERE / "worker.py", "peaceful", folder).stdout
    assert told.count("accuracy on validation classes") == len(KINDS)  # said by the first process only
    done = torchrun(HERE / "worker.py", "dying", folder, restarts=len(DYING) + 1)
    assert done.stderr.count("failed (exitcode: -9)") == len(DYING), done.stderr
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_restarted_workers_go_on_where_the_last_checkpoint_stands(runs, kind):
    """The undisturbed run has two processes, too: it is the same to the last bit."""
    assert_same_run(runs / f"killed-{kind}", runs / f"peaceful-{kind}")


def test_a_refusal_is_a_sentence_on_every_process(small_data, tmp_path, torchrun):
    run_train(settings(small_data, "mtl"), tmp_path / "run")
    command = ["-m", "e3bm", "train", "--run", tmp_path / "run", *words(flags(small_data, "mtl", seed=9))]
    refused = torchrun(*command, expected=2)
    assert "seed was 0, now 9" in refused.stderr
    assert "defect" not in refused.stderr
