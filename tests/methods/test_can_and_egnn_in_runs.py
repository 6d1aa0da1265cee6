"""CAN, CAN+T and EGNN from settings to a trained run: their own losses, class numbers, maps and running averages."""

import math

import pytest

from e3bm.errors import SettingsError
from e3bm.methods.egnn import EgnnSettings
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.settings import TrainSettings
from e3bm.runs.training.train import run_train
from e3bm.settings import read_settings
from small_runs import COMMON, E3BM, flags, lines, nested

TRAINED = {"backbone.adapt": "full", "backbone.batchnorm": "batch_then_running"}
GRAPH = {"method.name": "egnn", "method.hidden": 6, "method.embedding": 5}
ROWS = {
    "can": {"method.name": "can"},
    "can, trained": {"method.name": "can", **TRAINED},
    "can_t": {"method.name": "can_t"},
    "can_t+e3bm": {"method.name": "can_t", **TRAINED, **E3BM},
    "egnn": GRAPH,
    "egnn+e3bm": {**GRAPH, **E3BM},
    "egnn, inductive": {**GRAPH, "method.graph": "inductive"},
    "egnn+e3bm, trained": {**GRAPH, **TRAINED, **E3BM, "method.dropout": 0.2},
}


def settings(folder, row):
    found = {**flags(folder, "mtl"), **ROWS[row]}
    found = {name: value for name, value in found.items() if name != "method.rate"}
    if ROWS[row]["method.name"] == "can":
        found.pop("method.epochs")
    return read_settings(TrainSettings, nested(found))


@pytest.mark.parametrize("row", ROWS)
def test_a_small_run(row, small_data, tmp_path):
    run_train(settings(small_data, row), tmp_path / "run")
    metrics = lines(tmp_path / "run", "metrics")
    assert all(math.isfinite(line["loss"]) for line in metrics)
    assert {line["split"] for line in metrics} == {"train", "val"}
    weights = Checkpoints(tmp_path / "run").weights("last")
    moved = {name: int(value) for name, value in weights.items() if name.endswith("norm.num_batches_tracked")}
    head = {count for name, count in moved.items() if "backbone" not in name}
    # Every task of every step is a call: twice for CAN's two sides, of every round.
    calls = COMMON["optimiser.steps"] * COMMON["optimiser.tasks"]
    sides = {"can": 2, "can_t": 2 * (1 + COMMON["method.epochs"]), "egnn": 1}[ROWS[row]["method.name"]]
    assert head == {calls * sides}


def test_egnn_has_the_settings_of_a_graph():
    assert EgnnSettings(graph="transductive").transductive
    assert not EgnnSettings(graph="inductive").transductive
    for wrong in ({"order": "first"}, {"test_epochs": 2}, {"rate": 0.0}):
        with pytest.raises(SettingsError):
            read_settings(EgnnSettings, wrong)
