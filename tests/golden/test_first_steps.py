"""The losses of the first 20 meta-steps of every method, in float64: what training computes does not change unnoticed.

`python tests/golden/test_first_steps.py` writes first_steps.json anew, after a change that is meant to change them.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from e3bm.progress import Silent
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.engine import Engine
from e3bm.runs.tasks import episode_sampler, open_data
from e3bm.runs.training.meta_train import meta_step
from e3bm.runs.training.optimisers import build_optimiser
from e3bm.runs.training.train import build_tasks
from small_runs import settings

GOLDEN = Path(__file__).parent / "first_steps.json"
STEPS, TASKS = 20, 2
# SGD where a bias before batch statistics has no gradient but rounding noise, which Adam would blow up.
SGD = {"optimiser__kind": "sgd", "optimiser__theta": 0.05, "optimiser__encoder": 0.05}
CASES = {
    "MAML": ("maml", {}),
    "MAML+E3BM": ("maml+e3bm", {}),
    "MTL": ("mtl", {"method__epochs": 10}),
    "MTL+E3BM": ("mtl+e3bm", {"method__epochs": 10}),
    "MTL+E3BM, cosine head, FC": (
        "mtl+e3bm",
        {"method__head": "cosine", "method__start": "prototype", "hyperprior__generator": "fc"},
    ),
    "MTL, scale and shift": ("mtl-scaled", SGD),
    "MTL+E3BM, scale and shift": ("mtl-scaled+e3bm", SGD),
    "SIB": ("sib", SGD | {"method__gradient_net_rate": 0.01}),
    "SIB+E3BM": ("sib+e3bm", SGD | {"method__gradient_net_rate": 0.01, "hyperprior__setting": "transductive"}),
}


def losses(folder: Path, name: str) -> list[float]:
    """The meta-loss before each of the first steps."""
    method, changes = CASES[name]
    wanted = settings(folder, method, machine__precision="float64", optimiser__tasks=TASKS, **changes)
    data, engine = open_data(wanted.data), Engine()
    torch.manual_seed(wanted.seed)
    # Float64 here too: features of a frozen backbone would differ between machines in float32.
    backbone = build_backbone(wanted.backbone, *data.input_shape).double()
    learner = build_learner(wanted, backbone)
    sampler = episode_sampler(data, "train", wanted.episode, wanted.seed, "training")
    tasks = build_tasks(wanted, data, backbone, sampler, Silent(), engine)
    optimiser = build_optimiser(learner, wanted.optimiser, wanted.method.learning_rates())
    found = []
    for step in range(STEPS):
        batch = tasks.load(range(step * TASKS, (step + 1) * TASKS))
        _, (loss, _) = meta_step(learner, batch, optimiser, wanted, step, engine)
        found.append(loss)
    return found


# Torch draws the float32 starting weights with other code on processors without AVX2: they differ in their last bit
# (6e-8), and 20 steps make up to 2e-5 of it.
SAME_START = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@pytest.mark.parametrize("name", CASES)
def test_first_losses(small_data, name):
    expected = json.loads(GOLDEN.read_text())[name]
    assert losses(small_data, name) == pytest.approx(expected, rel=1e-9 if SAME_START else 1e-4)


def test_baseline_and_e3bm_see_the_same_tasks():
    """v = 1/M and v = last differ at once, but not by much: weights and tasks are the same."""
    golden = json.loads(GOLDEN.read_text())
    for name in ("MAML", "MTL", "SIB"):
        assert golden[name] != golden[f"{name}+E3BM"]
        assert golden[name][0] == pytest.approx(golden[f"{name}+E3BM"][0], rel=0.5)


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        values = {name: losses(Path(place), name) for name in CASES}
    GOLDEN.write_text(json.dumps(values, indent=1) + "\n")
