"""`e3bm train` and `e3bm pretrain` as a person calls them: results on stdout, one sentence on stderr, exit codes."""

import functools
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch

from e3bm.cli.main import main
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.files import held
from e3bm.runs.training.train import run_train
from small_runs import assert_same_run, flags, pretrain_flags, settings, words


def train(run, dotted, *more):
    return main(["train", "--run", str(run), *words(dotted), *more])


def one_sentence(capsys):
    told = capsys.readouterr()
    assert told.out == ""
    errors = [line for line in told.err.splitlines() if line.startswith("e3bm: ")]
    assert len(errors) == 1, told.err
    assert "Traceback" not in told.err
    return errors[0]


@pytest.mark.parametrize("kept", [True, False])
def test_a_preset_that_begins_with_a_backbone_names_the_kept_one(kept, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[2] if kept else tmp_path)
    preset = "small-leo-fc100-1shot-plain"
    assert main(["train", "--preset", preset, "--run", str(tmp_path / "run")]) != 0
    told = one_sentence(capsys)
    assert f"e3bm pretrain --preset {preset}" in told
    assert ("--backbone.pretrained results/fc100/resnet12-half-s0" in told) is kept


def test_a_preset_of_several_runs_says_that_one_is_trained_and_what_trains_all(tmp_path, capsys):
    preset = "small-5xmaml-pretrained-fc100-1shot"
    assert main(["train", "--preset", preset, "--run", str(tmp_path / "run")]) == 2  # it needs a backbone
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"{preset} stands for 5 runs that answer together; this trains one of them.")
    assert "e3bm reproduce S2" in first


def test_train_says_what_came_out_and_what_to_do_next(small_data, tmp_path, capsys):
    assert train(tmp_path / "run", flags(small_data, "mtl+e3bm")) == 0
    told = capsys.readouterr()
    assert "best accuracy on validation classes" in told.out
    assert f"e3bm test {tmp_path / 'run'}" in told.out
    assert "meta-train MTL+E3BM: 12/12" in told.err
    # Once more: nothing is left to do, and the same is said again.
    assert train(tmp_path / "run", flags(small_data, "mtl+e3bm"), "--json") == 0
    best = json.loads(capsys.readouterr().out)
    assert best.keys() >= {"run", "step", "accuracy", "ci"}


def test_pretrain_then_train_on_it(small_data, tmp_path, capsys):
    assert main(["pretrain", "--run", str(tmp_path / "features"), *words(pretrain_flags(small_data))]) == 0
    assert "best few-shot accuracy" in capsys.readouterr().out
    on_it = flags(small_data, "mtl", backbone__pretrained=tmp_path / "features")
    assert train(tmp_path / "run", on_it) == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--left-out", "1", "2"], "set either --folds or --left-out"),
        (["--teacher", "runs/teacher"], "train the folds one by one"),
    ],
)
def test_folds_that_cannot_follow_are_refused_first(small_data, tmp_path, capsys, more, reason):
    run = tmp_path / "run"
    assert main(["pretrain", "--run", str(run), *words(pretrain_flags(small_data)), "--folds", "2", *more]) == 2
    assert reason in one_sentence(capsys)
    assert not run.exists()


def test_a_preset_that_begins_pre_trained_is_not_trained_from_scratch(tmp_path, capsys):
    name = "small-maml-pretrained-fc100-1shot-plain"
    assert main(["train", "--preset", name, "--run", str(tmp_path / "run")]) == 2
    told = one_sentence(capsys)
    assert f"e3bm pretrain --preset {name} --run RUN" in told
    assert "--backbone.pretrained RUN" in told
    assert not (tmp_path / "run").exists()


def test_other_settings_are_refused_with_the_difference(small_data, tmp_path, capsys):
    assert train(tmp_path / "run", flags(small_data, "mtl")) == 0
    capsys.readouterr()
    assert train(tmp_path / "run", flags(small_data, "mtl", method__rate=0.5, seed=3)) == 2
    assert "method.rate was 0.1, now 0.5; seed was 0, now 3" in one_sentence(capsys)


def test_a_backbone_that_changed_since_is_refused(small_data, tmp_path, capsys):
    copy = tmp_path / "backbone.safetensors"
    flags(small_data, "mtl")  # writes the inputs
    copy.write_bytes((small_data / "backbone.safetensors").read_bytes())
    assert train(tmp_path / "run", flags(small_data, "mtl", backbone__pretrained=copy)) == 0
    weights = {name: value + 1 for name, value in safetensors.torch.load_file(copy).items()}
    safetensors.torch.save_file(weights, copy)
    capsys.readouterr()
    assert train(tmp_path / "run", flags(small_data, "mtl", backbone__pretrained=copy)) == 2
    assert "its pre-trained backbone changed" in one_sentence(capsys)
    assert main(["test", str(tmp_path / "run"), "--episodes", "5"]) == 2
    assert "its pre-trained backbone changed" in one_sentence(capsys)


def test_a_damaged_checkpoint_is_named(small_data, tmp_path, capsys):
    assert train(tmp_path / "run", flags(small_data, "mtl")) == 0
    capsys.readouterr()
    path = Checkpoints(tmp_path / "run").place("last") / "state.pt"
    path.write_bytes(path.read_bytes()[:100])
    assert train(tmp_path / "run", flags(small_data, "mtl")) == 2
    assert f"{path} is damaged" in one_sentence(capsys)


def test_a_foreign_folder_is_refused(small_data, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert train(tmp_path, flags(small_data, "mtl")) == 2
    assert "is not empty (it has thesis.tex) but does not hold a run" in one_sentence(capsys)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_in_place_of_the_run_folder(small_data, tmp_path, capsys):
    (tmp_path / "run").write_text("a file")
    assert train(tmp_path / "run", flags(small_data, "mtl")) == 2
    assert "Cannot write in" in one_sentence(capsys)
    assert train(tmp_path / "run" / "below", flags(small_data, "mtl")) == 2
    assert "Cannot write in" in one_sentence(capsys)


def test_two_trainings_in_one_folder_are_refused(small_data, tmp_path, capsys):
    run_train(settings(small_data, "mtl"), tmp_path / "run")
    with held(tmp_path / "run"):
        assert train(tmp_path / "run", flags(small_data, "mtl")) == 2
    assert "Another process is training" in one_sentence(capsys)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"method.name": "malm"}, "no method named 'malm'"),
        ({"data.dataset": "nowhere"}, "There is no data set 'nowhere'"),
        ({"backbone.name": "conv5"}, "no backbone named 'conv5'"),
        ({"episode.ways": 9}, "9 ways need 9 classes"),
        ({"episode.queries": 10}, "ask for fewer or add images"),
        ({"backbone.adapt": "full", "method.name": "sib"}, "SIB trains on frozen features"),
        ({"backbone.batchnorm": "batch"}, "a frozen backbone has running statistics"),
        ({"hyperprior.rate": "frozen"}, "needs frozen_from"),
        ({"method.test-epochs": 9, "hyperprior.rate": "learned"}, "learned alpha and v have exactly M values"),
        ({"optimiser.tasks": 0}, "greater than or equal to 1"),
        ({"validation.split": "test"}, "Selecting on the test classes is refused"),
        ({"machine.device": "mps"}, "no mps device"),
        ({"backbone.pretrained": "no_such_file"}, "there is no run folder or weights file no_such_file"),
    ],
)
def test_wrong_settings_are_one_sentence(small_data, tmp_path, capsys, wrong, reason):
    assert train(tmp_path / "run", flags(small_data, "mtl") | wrong) == 2
    assert reason in one_sentence(capsys)
    assert not (tmp_path / "run").exists()


def test_unknown_flags_are_refused(small_data, tmp_path, capsys):
    assert train(tmp_path / "run", flags(small_data, "mtl"), "--method.epoch", "3") == 2
    told = one_sentence(capsys)
    assert "MTL has no option --method.epoch; it has --method.epochs, --method.test-epochs" in told
    assert told.endswith("Did you mean --method.epochs?")


def limited_to(size):
    """For a child process: no file can grow beyond so many bytes, as on a full disk but without needing one."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def command(run, dotted):
    return [sys.executable, "-m", "e3bm", "train", "--run", str(run), *words(dotted)]


def test_files_that_cannot_grow_stop_the_run_and_leave_the_last_checkpoint(small_data, tmp_path):
    """A quota reached in mid-run: exit code 2, a sentence, and the run can be continued when there is room."""
    longer = {"optimiser__steps": 60, "validation__every": 60, "method__epochs": 40}
    wanted, run = flags(small_data, "mtl", **longer), tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    run_train(settings(small_data, "mtl", **longer), tmp_path / "undisturbed")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "undisturbed").rglob("*") if path.is_file()}
    # Room for every checkpoint but not for all lines of the schedules.
    limit = max(sizes["state.pt"], sizes["weights.safetensors"], sizes["config.json"]) + 10
    assert sizes["schedules.jsonl"] > limit
    start = functools.partial(subprocess.run, command(run, wanted), capture_output=True, text=True, env=environment)
    done = start(preexec_fn=limited_to(limit), check=False)
    assert done.returncode == 2, done.stderr
    assert "Cannot write in" in done.stderr
    assert "What was saved before is intact" in done.stderr
    step = Checkpoints(run).state("last")["step"]
    assert 0 < step < 60
    again = start(check=False)
    assert again.returncode == 0, again.stderr
    assert f"continuing after {step} of 60" in again.stderr
    assert_same_run(run, tmp_path / "undisturbed")


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for 256 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"mounting a small file system is not allowed here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(small_data, tmp_path, small_disk, capsys):
    """With ever more room a run gets further; where it stops between two checkpoints, it can be continued."""
    wanted, run, filler = flags(small_data, "mtl+e3bm"), small_disk / "run", small_disk / "filler"
    assert train(tmp_path / "undisturbed", wanted) == 0
    stopped_at = set()
    for room in range(8, 128, 8):
        filler.write_bytes(b"0" * 1024 * (256 - room))
        capsys.readouterr()
        code = train(run, wanted)
        if code == 0:
            break
        assert code == 2
        assert "No space left" in one_sentence(capsys)
        filler.unlink()
        if Checkpoints(run).has("last"):
            stopped_at.add(Checkpoints(run).state("last")["step"])
        assert train(run, wanted) == 0
        assert_same_run(run, tmp_path / "undisturbed")
        shutil.rmtree(run)
    assert stopped_at - {12}, "the disk was never full between two checkpoints"
