"""Trains in child processes and kills them; the parent stays single-threaded, so that forking is safe and fast.

    python kill_driver.py random FOLDER KIND KILLS SEED     SIGKILL after random times, again and again
    python kill_driver.py operations FOLDER KIND             SIGKILL at the first, second, .. file operation of a run

KIND is `pretrain` or a method of small_runs. The run never disturbed is FOLDER/undisturbed; the others are
FOLDER/run-0, run-1 and so on. Prints {"kills": how many hit a living process, "runs": how many run folders}.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import small_runs
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train import run_train

# As small as a run can be that has several checkpoints, validations and a best one.
PRETRAIN = {"epochs": 2, "batch": 40, "checkpoint_every": 2, "validation__episodes": 2}
TRAIN = {"method__epochs": 2, "optimiser__tasks": 1, "validation__episodes": 2}
FILE_OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


def train(folder, kind, run, steps):
    if kind == "pretrain":
        run_pretrain(small_runs.pretrain_settings(folder, **PRETRAIN), run)
    else:
        run_train(small_runs.settings(folder, kind, optimiser__steps=steps, **TRAIN), run)


def die_at_operation(number, run):
    """From now on the numbered operation on a file of the run is the last thing this process tries."""
    count = 0

    def hook(event, arguments):
        nonlocal count
        if event in FILE_OPERATIONS and str(arguments[0]).startswith(str(run)):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def child(work):
    """The process id of a fork that does the work."""
    number = os.fork()
    if number == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return number


def ended(number):
    """Wait for a child: True if it finished, False if it was killed; anything else is an error."""
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a child ended with {code}")
    return code == 0


def at_random(folder, kind, kills, seed):
    chance, done, runs = random.Random(seed), 0, 0
    train(folder, kind, folder / "undisturbed", steps=12)
    started = time.perf_counter()
    train(folder, kind, folder / "warm", steps=12)
    whole = time.perf_counter() - started
    while done < kills:
        finished, tries, run = False, 0, folder / f"run-{runs}"
        while not finished:
            number = child(lambda run=run: train(folder, kind, run, steps=12))
            if tries < kills:  # a run that never gets anywhere would be an error, not an endless loop
                time.sleep(chance.uniform(0, 0.8 * whole))
                os.kill(number, signal.SIGKILL)
            finished = ended(number)
            done += not finished
            tries += 1
        runs += 1
    return done, runs


def at_operations(folder, kind):
    train(folder, kind, folder / "undisturbed", steps=4)
    number, finished = 0, False
    while not finished:
        run = folder / f"run-{number}"

        def doomed(run=run, number=number):
            die_at_operation(number + 1, run)
            train(folder, kind, run, steps=4)

        finished = ended(child(doomed))
        if not ended(child(lambda run=run: train(folder, kind, run, steps=4))):
            raise SystemExit("killed without a reason")
        number += 1
    return number - 1, number


if __name__ == "__main__":
    torch.set_num_threads(1)
    mode, where, kind, *numbers = sys.argv[1:]
    kills, runs = (at_random if mode == "random" else at_operations)(Path(where), kind, *map(int, numbers))
    print(json.dumps({"kills": kills, "runs": runs}))
