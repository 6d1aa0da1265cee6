"""One of several processes that torchrun started.

worker.py cases FOLDER          every case of CASES, a pretraining, and a test of them all; gradients by
                                DistributedDataParallel beside ours; which threads are left when all is said and done
worker.py peaceful FOLDER       the command line trains every kind of KINDS
worker.py standing FOLDER       a training in which rank 1 stops (SIGSTOP) at step 5 of its first start
worker.py hunted FOLDER         a longer training whose processes say their numbers, so that somebody can kill them
worker.py dying FOLDER          the same, but in each training rank 1 is killed at step 5 and, after the restart, rank 0
                                at step 8

Starting processes takes longer than what they do here, so that one start does as much as it can.
"""

import atexit
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch.nn.parallel import DistributedDataParallel

from e3bm.cli.main import main
from e3bm.core.learner import meta_loss
from e3bm.progress import Silent
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.gradient_sum import summed_gradients
from e3bm.runs.settings import TestSettings
from e3bm.runs.tasks import episode_sampler, open_data
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train import build_tasks, run_train
from small_runs import flags, pretrain_flags, pretrain_settings, settings, words

# Three tasks for two processes: one has more to do. One task: the other has nothing at all.
SGD = {"optimiser__kind": "sgd", "optimiser__theta": 0.1, "optimiser__encoder": 0.1, "optimiser__weight_decay": 5e-4}
CASES = {
    "maml": ("maml", {}),
    "maml+e3bm": ("maml+e3bm", {}),
    "maml per step": ("maml", {"backbone__batchnorm": "per_step", "optimiser__tasks": 4}),
    "mtl": ("mtl", {"optimiser__tasks": 4}),
    "mtl+e3bm": ("mtl+e3bm", {"optimiser__tasks": 1, "validation__episodes": 1}),
    "mtl+e3bm with kl": ("mtl+e3bm", {"hyperprior__kl": 1e-3, **SGD}),
    "mtl-scaled": ("mtl-scaled", {"optimiser__tasks": 4, **SGD}),
    "mtl-scaled+e3bm": ("mtl-scaled+e3bm", SGD),
    "mtl-scaled by adam": ("mtl-scaled", {}),
    "mtl-scaled of one task": ("mtl-scaled", {"optimiser__tasks": 1}),
    "bayesian_maml+e3bm": ("bayesian_maml+e3bm", {}),
    "leo+e3bm": ("leo+e3bm", {}),
    "maml_plus_plus": ("maml_plus_plus", SGD),
    "maml_plus_plus+e3bm": ("maml_plus_plus+e3bm", {"optimiser__tasks": 1, **SGD}),
    "sib": ("sib", SGD),
    "sib+e3bm": ("sib+e3bm", {"hyperprior__setting": "transductive", **SGD}),
    "sib+e3bm by adam": ("sib+e3bm", {}),
    "ctm": ("ctm", SGD),
    "tadam": ("tadam", {"episode__shots": (1, 2), **SGD}),
    "robust": ("robust", SGD),
    "robust of one task": ("robust", {"optimiser__tasks": 1, **SGD}),
}
# A shift before batch statistics has no gradient but rounding noise, which Adam divides by 1e-8.
LOOSER = {"mtl-scaled by adam": 1e-9, "sib+e3bm by adam": 1e-7}
HUNTED = {"optimiser__steps": 400, "validation__every": 50, "checkpoint_every": 5}
HERE = Path(__file__).parent
FEW = {"optimiser__steps": 6, "validation__every": 3, "machine__precision": "float64"}
KINDS = ("mtl-scaled+e3bm", "maml", "pretrain")
DYING = [(kind, rank, step) for kind in KINDS for rank, step in ((1, 5), (0, 8))]  # one after each start


def run_cases(folder, place):
    for name, (method, changes) in CASES.items():
        run_train(settings(folder, method, **FEW, **changes), place / name)
    rows = run_test([place / name for name in CASES], TestSettings(episodes=7, batch=2))
    if os.environ.get("RANK", "0") == "0":
        (place / "rows.json").write_text(json.dumps([row.as_json() for row in rows]))
    run_pretrain(pretrain_settings(folder, machine__precision="float64"), place / "pretrain")


def gradients_beside_ddp(folder):
    """Second-order gradients: ours, summed over the processes, and those of DistributedDataParallel around it all."""
    found = {}
    for method in ("maml+e3bm", "mtl-scaled+e3bm", "sib+e3bm"):
        wanted = settings(folder, method, **FEW)
        engine, data = Engine.start(wanted.machine), open_data(wanted.data)
        torch.manual_seed(0)
        backbone = build_backbone(wanted.backbone, *data.input_shape)
        learner = build_learner(wanted, backbone)
        sampler = episode_sampler(data, "train", wanted.episode, 0, "training")
        batch = build_tasks(wanted, data, backbone, sampler, Silent(), engine).load(engine.mine(range(4)))
        gradients = []
        for wrapped in (learner, DistributedDataParallel(learner, find_unused_parameters=True)):
            learner.zero_grad()
            loss = meta_loss(wrapped(batch).scores, batch.query_labels)
            if wrapped is learner:
                # Buckets of a single parameter: as many messages as there can be.
                with summed_gradients(learner.parameters(), bucket_bytes=1):
                    (loss / engine.world).backward()
            else:
                loss.backward()
            gradients.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in learner.parameters()])
        found[method] = gradients
    torch.save(found, folder / f"gradients{os.environ['RANK']}.pt")


def thread_names():
    """The names of the threads that the kernel lists for this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # ended since it was listed
            names.append((task / "comm").read_text().strip())
    return names


def list_threads(folder):
    """The names of the threads alive, written down: an ended one is listed a moment longer, a live one for good."""
    deadline, names = time.monotonic() + 5, thread_names()
    while any("gloo" in name or "tcpstore" in name for name in names) and time.monotonic() < deadline:
        time.sleep(0.01)
        names = thread_names()
    (folder / f"threads{os.environ['RANK']}.json").write_text(json.dumps(names))


class Dying(Silent):
    """Kills this process when its turn has come."""

    def __init__(self, kind):
        restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        doomed, rank, self.step = DYING[restarts] if restarts < len(DYING) else ("", -1, -1)
        self.doomed = kind == doomed and int(os.environ["RANK"]) == rank

    def advance(self, done, **numbers):
        if self.doomed and done == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Standing(Silent):
    """Makes the second process stand still, once."""

    def advance(self, done, **numbers):
        if done == 5 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if mode == "cases":
        atexit.register(list_threads, folder)  # the first registered is the last called
        run_cases(folder, folder / "many")
        gradients_beside_ddp(folder)
    elif mode == "standing":
        run_train(settings(folder, "mtl"), folder / "standing", Standing())
    elif mode == "hunted":
        place = folder / f"start{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        place.mkdir(exist_ok=True)
        (place / f"{os.environ['RANK']}.partial").write_text(str(os.getpid()))
        (place / f"{os.environ['RANK']}.partial").rename(place / os.environ["RANK"])
        run_train(settings(folder, "mtl", **HUNTED), folder / "hunted")
    elif mode == "peaceful":
        for kind in KINDS:
            place = ["--run", str(folder / f"peaceful-{kind}")]
            if kind == "pretrain":
                done = main(["pretrain", *place, *words(pretrain_flags(folder))])
            else:
                done = main(["train", *place, *words(flags(folder, kind))])
            assert done == 0
    else:
        for kind in KINDS:
            if kind == "pretrain":
                run_pretrain(pretrain_settings(folder), folder / f"killed-{kind}", Dying(kind))
            else:
                run_train(settings(folder, kind), folder / f"killed-{kind}", Dying(kind))
