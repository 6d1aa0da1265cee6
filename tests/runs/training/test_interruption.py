"""Ctrl-C and SIGTERM: the step in hand is finished and saved, and the run continues as if nothing had been."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from e3bm.interruption import Interrupted, stop_politely
from e3bm.progress import Silent
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train import run_train
from small_runs import assert_same_run, flags, pretrain_settings, settings, words


class SignalAt(Silent):
    """Sends this process a signal when a step is reached."""

    def __init__(self, step, number):
        self.step, self.number, self.ended = step, number, 0

    def advance(self, done, **numbers):
        if done == self.step and "loss" in numbers:
            signal.raise_signal(self.number)

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_training_stops_politely_and_continues(small_data, tmp_path, number):
    wanted, before = settings(small_data, "mtl+e3bm"), signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"after step 5 of 12; run the same command again"):
        run_train(wanted, tmp_path / "stopped", SignalAt(5, number))
    assert Checkpoints(tmp_path / "stopped").state("last")["step"] == 5
    assert signal.getsignal(number) == before
    run_train(wanted, tmp_path / "stopped")
    run_train(wanted, tmp_path / "undisturbed")
    assert_same_run(tmp_path / "stopped", tmp_path / "undisturbed")


@pytest.mark.parametrize("taught", [False, True])
def test_pretraining_stops_politely_and_continues(small_data, tmp_path, taught):
    wanted = pretrain_settings(small_data)
    if taught:
        run_pretrain(pretrain_settings(small_data, epochs=1, backbone__width=0.5), tmp_path / "teacher")
        wanted = wanted.but(teacher=tmp_path / "teacher")
    with pytest.raises(Interrupted, match=r"after step 7 of 12"):
        run_pretrain(wanted, tmp_path / "stopped", SignalAt(7, signal.SIGINT))
    run_pretrain(wanted, tmp_path / "stopped")
    run_pretrain(wanted, tmp_path / "undisturbed")
    assert_same_run(tmp_path / "stopped", tmp_path / "undisturbed")


def test_a_signal_at_the_last_step_is_no_interruption(small_data, tmp_path):
    progress = SignalAt(12, signal.SIGINT)
    run = run_train(settings(small_data, "mtl"), tmp_path / "run", progress)
    assert Checkpoints(run.path).state("last")["step"] == 12


def test_a_second_signal_is_taken_at_its_word():
    with stop_politely() as request:
        signal.raise_signal(signal.SIGINT)
        assert request.made
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_outside_the_main_thread_there_is_nothing_to_catch():
    seen = []

    def work():
        with stop_politely() as request:
            seen.append(request.made)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_ctrl_c_at_the_command_line(small_data, tmp_path):
    """The real command: exit code 130, a sentence that says how to continue, and a second run that does."""
    run = tmp_path / "run"
    many = flags(small_data, "mtl", optimiser__steps=500, validation__every=500, checkpoint_every=10)
    command = [sys.executable, "-m", "e3bm", "train", "--run", str(run), *words(many)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    while process.poll() is None and not (run / "checkpoints" / "last.json").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130, told
    assert "run the same command again to continue" in told
    reached = Checkpoints(run).state("last")["step"]
    assert 10 <= reached < 500
    again = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert again.returncode == 0, again.stderr
    assert f"continuing after {reached} of 500" in again.stderr
    assert "best accuracy on validation classes" in again.stdout
