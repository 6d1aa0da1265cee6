"""Whatever happens while a checkpoint is written, the last good one can be loaded; damaged ones are named."""

import json
import shutil

import pytest
import torch
from failing_disk import full_after, operations_of
from torch import nn

from e3bm.errors import CheckpointError
from e3bm.runs.folder.checkpoint import Checkpoints, read_weights
from e3bm.runs.folder.files import read_json, write_json
from small_runs import assert_equal


def model(value):
    made = nn.Linear(3, 2)
    nn.init.constant_(made.weight, value)
    return made


def state(step, best=50.0):
    optimiser = torch.optim.Adam(model(0.0).parameters())
    return {"step": step, "best": best, "optimiser": optimiser.state_dict()}


def weight(checkpoints, which):
    return float(checkpoints.weights(which)["weight"][0, 0])


def folders(checkpoints):
    return {place.name for place in checkpoints.folder.glob("step-*")}


def test_round_trip(tmp_path):
    checkpoints, trained = Checkpoints(tmp_path), model(1.0).double()
    optimiser = torch.optim.Adam(trained.parameters())
    trained(torch.ones(1, 3, dtype=torch.double)).sum().backward()
    optimiser.step()
    checkpoints.save(trained, {"step": 7, "best": 61.5, "optimiser": optimiser.state_dict()}, best=True)
    fresh = model(0.0).double()
    other = torch.optim.Adam(fresh.parameters())
    assert checkpoints.resume(fresh, other) == (7, 61.5)
    assert_equal(dict(fresh.state_dict()), dict(trained.state_dict()))
    assert_equal(other.state_dict(), optimiser.state_dict())


def test_without_a_checkpoint_a_run_starts_at_the_beginning(tmp_path):
    fresh = model(0.0)
    step, best = Checkpoints(tmp_path).resume(fresh, torch.optim.Adam(fresh.parameters()))
    assert (step, best) == (0, float("-inf"))
    with pytest.raises(CheckpointError, match=r"no best checkpoint.*train the run first"):
        Checkpoints(tmp_path).place("best")


def test_last_and_best_are_kept_and_nothing_else(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    checkpoints.save(model(2.0), state(2), best=False)
    checkpoints.save(model(3.0), state(3), best=False)
    assert (weight(checkpoints, "best"), weight(checkpoints, "last")) == (1.0, 3.0)
    assert folders(checkpoints) == {checkpoints.place("best").name, checkpoints.place("last").name}
    checkpoints.save(model(4.0), state(4), best=True)
    assert (weight(checkpoints, "best"), weight(checkpoints, "last")) == (4.0, 4.0)
    assert len(folders(checkpoints)) == 1


@pytest.mark.parametrize("best", [False, True])
def test_a_disk_that_fills_up_at_any_operation(tmp_path, best):
    """The old checkpoint stays; one that became the best before the failure is whole, too."""
    save = lambda checkpoints: checkpoints.save(model(2.0), state(2), best=best)
    trial = Checkpoints(tmp_path / "trial")
    trial.save(model(1.0), state(1), best=True)
    total = operations_of(lambda: save(trial), tmp_path / "trial")
    assert total >= 10 - 2 * (not best)
    for done in range(total):
        checkpoints = Checkpoints(tmp_path / f"run-{done}")
        checkpoints.save(model(1.0), state(1), best=True)
        with full_after(done, checkpoints.folder), pytest.raises(CheckpointError, match=r"Cannot write.*No space left"):
            save(checkpoints)
        assert weight(checkpoints, "last") == 1.0
        assert checkpoints.state("last")["step"] == 1
        assert weight(checkpoints, "best") in ((1.0, 2.0) if best else (1.0,))
        assert folders(checkpoints) == {checkpoints.place("last").name, checkpoints.place("best").name}
        save(checkpoints)
        assert weight(checkpoints, "last") == 2.0


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "removed"])
def test_damaged_files_are_named(tmp_path, name, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    path = checkpoints.place("last") / name
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:-1], "flipped": flipped, "emptied": b""}[damage])
    fresh = model(0.0)
    with pytest.raises(CheckpointError, match=f"{name}.*(is damaged|cannot be read).*another --run folder"):
        checkpoints.resume(fresh, torch.optim.Adam(fresh.parameters()))


def changed(path, **values):
    """A pointer with other values and, as a careful liar would, the right digest."""
    write_json(path, read_json(path) | values)


def resume(checkpoints):
    fresh = model(0.0)
    return checkpoints.resume(fresh, torch.optim.Adam(fresh.parameters()))


@pytest.mark.parametrize("former", [False, True])
def test_a_lost_best_checkpoint_is_noticed_and_nothing_is_swept(tmp_path, former):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    checkpoints.save(model(2.0), state(2), best=False)
    before = folders(checkpoints)
    (checkpoints.folder / "best.json").unlink()
    if former:
        pointer = json.loads((checkpoints.folder / "last.json").read_text())
        del pointer["content_sha256"], pointer["validated"], pointer["saves"]
        (checkpoints.folder / "last.json").write_text(json.dumps(pointer))
    for work in (lambda: resume(checkpoints), checkpoints.tested):
        with pytest.raises(CheckpointError, match=r"best checkpoint of .* is lost.*--checkpoint last"):
            work()
    checkpoints.sweep()
    assert folders(checkpoints) == before
    assert weight(checkpoints, "last") == 2.0  # for those who ask for it


def test_before_the_first_validation_the_last_is_tested(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1, best=float("-inf")), best=False)
    assert checkpoints.tested() == "last"
    assert resume(checkpoints) == (1, float("-inf"))


def test_one_changed_letter_of_a_pointer_removes_nothing(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    checkpoints.save(model(2.0), state(2), best=False)
    before, path = folders(checkpoints), checkpoints.folder / "best.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        checkpoints.sweep()
        assert folders(checkpoints) == before
        try:
            assert weight(checkpoints, "best") == 1.0
        except CheckpointError:
            with pytest.raises(CheckpointError, match=r"best\.json is damaged"):
                resume(checkpoints)


@pytest.mark.parametrize(
    "values",
    [{"folder": "step-none"}, {"folder": "../other"}, {"folder": ""}, {"sha256": ["a"]}, {"sha256": {"state.pt": 3}},
     {"step": "seven"}],
)  # fmt: skip
def test_a_pointer_that_lies_removes_nothing(tmp_path, values):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    checkpoints.save(model(2.0), state(2), best=False)
    before = folders(checkpoints)
    changed(checkpoints.folder / "best.json", **values)
    with pytest.raises(CheckpointError, match=r"is damaged|cannot be read"):
        resume(checkpoints)
    with pytest.raises(CheckpointError, match=r"is damaged|cannot be read"):
        checkpoints.weights("best")
    checkpoints.sweep()
    assert folders(checkpoints) == before


def test_a_lost_last_checkpoint_is_no_new_start(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    (checkpoints.folder / "last.json").unlink()
    assert resume(checkpoints) == (0, float("-inf"))  # as a run that was killed in its first save
    for step in (2, 3, 4):
        checkpoints.save(model(float(step)), state(step), best=step < 4)
    (checkpoints.folder / "last.json").unlink()
    with pytest.raises(CheckpointError, match=r"last checkpoint of .* is lost"):
        resume(checkpoints)
    assert weight(checkpoints, "best") == 3.0


@pytest.mark.parametrize("content", ["", "[]", '{"step": 1}', '{"folder": 3}'])
def test_damaged_pointers_are_named(tmp_path, content):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    (checkpoints.folder / "last.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"last\.json is damaged"):
        checkpoints.state("last")


def test_older_pointers_without_digests_are_read(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    path = checkpoints.folder / "last.json"
    pointer = json.loads(path.read_text())
    for name in ("sha256", "content_sha256", "validated", "saves"):
        del pointer[name]
    path.write_text(json.dumps(pointer))
    assert weight(checkpoints, "last") == 1.0
    (checkpoints.place("last") / "weights.safetensors").write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match="not a readable weights file"):
        checkpoints.weights("last")


def test_state_that_could_run_code_is_not_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), {**state(1), "surprise": shutil.rmtree}, best=False)
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged"):
        checkpoints.state("last")


def test_weights_of_another_model_are_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model(1.0), state(1), best=True)
    with pytest.raises(CheckpointError, match=r"do not fit the model.*size mismatch"):
        checkpoints.load_weights(nn.Linear(4, 2), "last")
    with pytest.raises(CheckpointError, match=r"do not fit the model.*[Mm]issing"):
        checkpoints.load_weights(nn.Sequential(nn.Linear(3, 2)), "last")
    with pytest.raises(CheckpointError, match=r"[Mm]issing.* \.\.\.$") as refused:
        checkpoints.load_weights(nn.Sequential(*[nn.Linear(3, 2) for _ in range(100)]), "last")
    assert len(str(refused.value)) < len(str(tmp_path)) + 300
    fresh = model(0.0)
    with pytest.raises(CheckpointError, match=r"state\.pt does not fit this run"):
        checkpoints.resume(fresh, torch.optim.Adam([fresh.weight]))


def test_a_weights_file_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="There is no weights file"):
        read_weights(tmp_path / "none.safetensors")
