"""CTM, TADAM and robust ensembles as a person calls them: trained, tested, continued, and refused in one sentence."""

import json
import signal

import pytest

from e3bm.cli.main import main
from e3bm.errors import SettingsError
from e3bm.interruption import Interrupted
from e3bm.progress import Silent
from e3bm.runs import assembly
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.train import run_train
from small_runs import assert_same_run, flags, settings, words

TITLES = {"ctm": "CTM", "tadam": "TADAM", "robust": "Robust2-dist"}
FEW = {"optimiser__steps": 4, "validation__every": 2}


def train(run, dotted):
    return main(["train", "--run", str(run), *words(dotted)])


@pytest.mark.parametrize("system", TITLES)
def test_trained_and_tested(small_data, tmp_path, capsys, system):
    run = tmp_path / system
    assert train(run, flags(small_data, system, **FEW)) == 0
    assert f"meta-train {TITLES[system]}: 4/4" in capsys.readouterr().err
    assert main(["test", str(run), "--episodes", "6", "--shots", "2", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["method"], row["setting"], row["hyperprior"]) == (TITLES[system], "inductive", "none")
    assert (row["batchnorm"], row["transductive_batchnorm"], row["epochs"]) == ("running", False, 0)
    assert 0 <= row["accuracy"] <= 100


@pytest.mark.parametrize("system", ["tadam", "robust"])
def test_any_ways_at_test_and_uneven_shots_in_training(small_data, tmp_path, capsys, system):
    run_train(settings(small_data, system, episode__shots=(1, 3), **FEW), tmp_path / "run")
    assert main(["test", str(tmp_path / "run"), "--episodes", "6", "--ways", "5", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["ways"] == 5


def test_ctm_is_bound_to_its_ways(small_data, tmp_path, capsys):
    run_train(settings(small_data, "ctm", **FEW), tmp_path / "run")
    assert main(["test", str(tmp_path / "run"), "--episodes", "6", "--ways", "5"]) == 2
    assert "made for 3 ways because of its projector" in capsys.readouterr().err
    assert main(["train", "--run", str(tmp_path / "other"), *words(flags(small_data, "ctm", validation__ways=2))]) == 2
    assert "made for 3 ways because of its projector" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("ctm", {}),
        ("bayesian_maml", {}),
        ("mtl", {}),
        ("sib", {}),
        ("mtl+e3bm", {"hyperprior__summary": "flat", "method__start": "prototype"}),
    ],
)
def test_other_ways_are_refused_before_images_pass_through_the_backbone(
    small_data, tmp_path, monkeypatch, system, changes
):
    """Whatever of a model is bound to its ways: a method, a part of one, or what a hyperprior reads."""
    run_train(settings(small_data, system, **changes, **FEW), tmp_path / "run")
    monkeypatch.setattr("e3bm.runs.tasks.embed_images", lambda *_: pytest.fail("images were looked at"))
    with pytest.raises(SettingsError, match="made for 3 ways"):
        run_test([tmp_path / "run"], TestSettings(episodes=6, ways=5))
    assert list(RunFolder(tmp_path / "run").lines("test_log")) == []  # nobody has looked at the test classes


@pytest.mark.parametrize("adapt", ["frozen", "scale_shift", "full"])
def test_ctm_takes_maps_of_any_backbone_that_gives_them(small_data, tmp_path, capsys, adapt):
    wanted = flags(small_data, "ctm", backbone__adapt=adapt, **FEW)
    assert train(tmp_path / "run", wanted) == 0
    capsys.readouterr()
    assert main(["test", str(tmp_path / "run"), "--episodes", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["backbone"] == "conv4 x0.25"


@pytest.mark.parametrize("system", ["tadam", "robust"])
def test_bfloat16_around_the_backbone(small_data, tmp_path, system):
    run_train(settings(small_data, system, machine__precision="bfloat16", **FEW), tmp_path / "run")


def test_tadam_is_tested_on_what_is_kept_of_images(small_data, tmp_path, capsys, monkeypatch):
    """The same answers as with images in every episode, up to rounding in single precision."""
    few = {"backbone__name": "resnet12", "backbone__pretrained": None, "method__conditioned": 3, **FEW}
    run_train(settings(small_data, "tadam", **few), tmp_path / "run")
    rows = []
    for longest in (assembly.LONGEST_ROW, 0):
        monkeypatch.setattr(assembly, "LONGEST_ROW", longest)
        assert main(["test", str(tmp_path / "run"), "--episodes", "6", "--json"]) == 0
        told = capsys.readouterr()
        assert ("features of" in told.err) == bool(longest)
        rows += json.loads(told.out)
    assert rows[0]["nll"] == pytest.approx(rows[1]["nll"], rel=1e-4)
    assert rows[0]["parameters"] == rows[1]["parameters"]


class SignalAt(Silent):
    """Sends this process a signal when a step is reached."""

    def __init__(self, step):
        self.step = step

    def advance(self, done, **numbers):
        if done == self.step and "loss" in numbers:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("step", [3, 8])
def test_a_robust_ensemble_continues_in_either_stage(small_data, tmp_path, step):
    """Before half of the training the networks have moments of Adam, afterwards the student too; all come back."""
    wanted = settings(small_data, "robust", optimiser__weight_decay=0.01)
    with pytest.raises(Interrupted, match=f"after step {step} of 12"):
        run_train(wanted, tmp_path / "stopped", SignalAt(step))
    run_train(wanted, tmp_path / "stopped")
    run_train(wanted, tmp_path / "undisturbed")
    assert_same_run(tmp_path / "stopped", tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("system", "wrong", "reason"),
    [
        ("ctm", {"method.batchnorm": "batch_then_running"}, "a map of 1x1 has no batch statistics"),
        ("ctm", {"method.metric": "relation"}, "needs 2x2 or more, found 1x1"),
        ("ctm", {"backbone.name": "resnet12", "backbone.whitened": True}, "this method needs feature maps; choose"),
        ("ctm", {"method.widths": (0,)}, "greater than or equal to 1"),
        ("ctm", {"method.epochs": 3}, "CTM has no option --method.epochs; it has --method.widths"),
        ("tadam", {"backbone.adapt": "frozen"}, "TADAM conditions the network for every task"),
        ("tadam", {"backbone.batchnorm": "per_step"}, "TADAM does not work with backbone.batchnorm 'per_step'"),
        ("tadam", {"method.conditioned": 9}, "Conv4 has 4 of them, and 9 were asked for"),
        ("robust", {"backbone.batchnorm": "running"}, "begin untrained and learn their running averages"),
        ("robust", {"backbone.adapt": "scale_shift"}, "are trained as a whole; set backbone.adapt to full"),
        ("robust", {"method.distil-from": 1.0}, "less than 1"),
        ("robust", {"episode.ways": 9}, "9 ways need 9 classes"),
    ],
)
def test_wrong_settings_are_one_sentence(small_data, tmp_path, capsys, system, wrong, reason):
    dotted = flags(small_data, system) | wrong
    whitened = dotted.pop("backbone.whitened", False)
    if whitened:
        del dotted["backbone.pretrained"]
        dotted["backbone.adapt"] = "full"
    more = ["--backbone.whitened"] if whitened else []
    assert main(["train", "--run", str(tmp_path / "run"), *words(dotted), *more]) == 2
    told = capsys.readouterr()
    (error,) = [line for line in told.err.splitlines() if line.startswith("e3bm: ")]
    assert reason in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("system", ["tadam", "ctm", "robust"])
def test_presets_are_listed_and_shown(capsys, system):
    assert main(["presets", f"small-{system}-"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {f"small-{system}-fc100-1shot", f"small-{system}-fc100-5shot"} <= set(listed)
    assert main(["presets", f"small-{system}-fc100-1shot"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["train"]["method"]["name"].startswith(system)
    assert main(["cost", "--preset", f"small-{system}-fc100-1shot"]) == 2
    assert "has no inner epochs, so E3BM adds nothing that could be timed" in capsys.readouterr().err
