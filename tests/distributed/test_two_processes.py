"""Two processes give what one gives: weights, running statistics, logs, validation and test, to 1e-12 in float64."""

import json
from pathlib import Path

import pytest
import torch
from worker import CASES, HERE, LOOSER, run_cases

from e3bm.runs.folder.checkpoint import Checkpoints
from small_runs import lines, settings


@pytest.fixture(scope="module")
def runs(tmp_path_factory, torchrun):
    """All cases trained and tested by two processes and by one."""
    folder = tmp_path_factory.mktemp("distributed")
    settings(folder, "mtl")  # writes the inputs
    torchrun(HERE / "worker.py", "cases", folder)
    run_cases(folder, folder / "one")
    return folder


def assert_close(found, expected, tolerance=1e-12):
    """Nested values with numbers agree."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_close(found[key], expected[key], tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)
    else:
        assert found == expected


@pytest.mark.parametrize("name", CASES)
def test_training(runs, name):
    many, one = Checkpoints(runs / "many" / name), Checkpoints(runs / "one" / name)
    tolerance = LOOSER.get(name, 1e-12)
    for which in ("last", "best"):
        found, expected = many.weights(which), one.weights(which)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert value.dtype in (torch.float64, torch.int64)
            torch.testing.assert_close(found[key], value, rtol=tolerance, atol=tolerance)
    assert one.state("last")["step"] == many.state("last")["step"] == 6
    for kind in ("metrics", "schedules"):
        assert_close(lines(runs / "many" / name, kind), lines(runs / "one" / name, kind), tolerance)
    # Equality would be cheap if nothing had moved.
    losses = [line["loss"] for line in lines(runs / "one" / name, "metrics") if line["split"] == "val"]
    assert abs(losses[0] - losses[1]) > 1e-6


@pytest.mark.parametrize("name", ["mtl-scaled", "mtl-scaled of one task", "maml per step"])
def test_running_statistics_moved(runs, name):
    weights = Checkpoints(runs / "one" / name).weights("last")
    counts = [value for key, value in weights.items() if key.endswith("num_batches_tracked")]
    assert counts
    assert max(int(count) for count in counts) > 0


def test_testing_is_shared_out_too(runs):
    clock = ("seconds", "train_seconds", "commit")
    rows = [
        [{key: value for key, value in row.items() if key not in clock} for row in json.loads(path.read_text())]
        for path in (runs / "many" / "rows.json", runs / "one" / "rows.json")
    ]
    assert len(rows[0]) >= len(CASES)
    for found, expected in zip(*rows, strict=True):
        assert_close(found, expected, LOOSER.get(expected["run"], 1e-12))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("method", ["maml+e3bm", "mtl-scaled+e3bm", "sib+e3bm"])
def test_distributed_data_parallel_around_the_episode(runs, method, rank):
    """Second-order gradients of DistributedDataParallel around the whole episode equal the summed ones."""
    ours, theirs = torch.load(runs / f"gradients{rank}.pt", weights_only=True)[method]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert any(float(part.abs().max()) > 1e-6 for part in ours)


def test_no_thread_of_the_process_group_outlives_it(runs):
    """One that still holds a tensor when the interpreter ends aborts the process, once in some hundred runs."""
    if not Path("/proc/self/task").exists():
        pytest.skip("the names of threads are read from /proc")
    for rank in range(2):
        names = json.loads((runs / f"threads{rank}.json").read_text())
        assert names
        assert not [name for name in names if "gloo" in name or "tcpstore" in name]
