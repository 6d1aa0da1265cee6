"""Every logged number also reaches TensorBoard, when it is asked for."""

import json
import subprocess
import sys

import pytest

from e3bm.errors import SettingsError
from e3bm.runs.folder.run_folder import TensorBoard
from e3bm.runs.training.train import run_train
from small_runs import settings

READ = """
import sys, json, warnings
warnings.simplefilter("ignore")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]); events.Reload()
scalars = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
print(json.dumps({tag: [(event.step, event.value) for event in found] for tag, found in scalars.items()}))
"""


def scalars(folder):
    done = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=True)
    return {tag: dict(map(tuple, values)) for tag, values in json.loads(done.stdout).items()}


def test_metrics_and_schedules_are_mirrored(small_data, tmp_path):
    run = run_train(settings(small_data, "mtl+e3bm"), tmp_path / "run", tensorboard=True)
    found = scalars(run.path / "tensorboard")
    for line in run.lines("metrics"):
        assert found[f"{line['split']}/loss"][line["step"]] == pytest.approx(line["loss"], rel=1e-6)
    for line in run.lines("schedules"):
        for epoch, weight in enumerate(line["weights"], 1):
            assert found[f"schedule/weights/{epoch:03d}"][line["step"]] == pytest.approx(weight, rel=1e-6)


def test_a_folder_without_the_flag_has_none(small_data, tmp_path):
    run = run_train(settings(small_data, "mtl"), tmp_path / "run")
    assert not (run.path / "tensorboard").exists()


def test_without_the_package_a_sentence_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SettingsError, match=r"pip install .*tensorboard"):
        TensorBoard(tmp_path)
