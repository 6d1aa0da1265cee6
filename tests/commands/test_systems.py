"""`e3bm train` and `e3bm test` of other systems of the tables, each alone and with E3BM, and what they refuse."""

import json
import math

import pytest

from e3bm.cli.main import main
from e3bm.methods import METHODS
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.settings import with_e3bm
from small_runs import E3BM, flags, words

FEW = {"optimiser.steps": 3, "validation.every": 3}
SYSTEMS = ("bayesian_maml", "leo", "maml_plus_plus")


def train(run, data, name, more):
    return main(["train", "--run", str(run), *words(flags(data, name) | FEW | more)])


@pytest.mark.parametrize("name", SYSTEMS)
def test_train_and_test_with_and_without_e3bm(small_data, tmp_path, capsys, name):
    for run, more in (("plain", {}), ("e3bm", E3BM)):
        assert train(tmp_path / run, small_data, name, more) == 0
    capsys.readouterr()
    assert main(["test", str(tmp_path / "plain"), str(tmp_path / "e3bm"), "--episodes", "6", "--json"]) == 0
    plain, other = json.loads(capsys.readouterr().out)
    title = METHODS[name].settings.title
    assert (plain["method"], other["method"]) == (title, with_e3bm(title))
    assert other["paired_with"] == f"{title} (plain)"
    assert plain["setting"] == other["setting"] == "inductive"
    assert len(plain["rates"]) == len(other["weights"]) == 3


def test_the_cosine_of_maml_plus_plus_is_that_of_the_outer_rate(small_data, tmp_path, capsys):
    assert train(tmp_path / "run", small_data, "maml_plus_plus", {}) == 0
    (group,) = Checkpoints(tmp_path / "run").state("last")["optimiser"]["param_groups"]
    # The third of three steps begins after 66 whole hundredths of the training.
    assert group["lr"] / group["base_lr"] == pytest.approx(0.1 + 0.9 * (1 + math.cos(0.66 * math.pi)) / 2)


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("leo", {"method.latent_steps": 4}, "LEO's 4 latent_steps are the first of its epochs, of which there are 3"),
        ("leo", {"backbone.adapt": "full"}, "LEO trains on frozen features; set backbone.adapt to frozen"),
        ("leo", {"method.dropout": 1.0}, "less than 1"),
        ("bayesian_maml", {"method.leader_steps": 2}, "only the chaser loss has a leader"),
        (
            "bayesian_maml",
            {"method.loss": "chaser", "hyperprior.weight": "learned"},
            "the chaser loss does not use the votes, so v cannot be learned or generated with it; set",
        ),
        ("bayesian_maml", {"backbone.batchnorm": "per_step"}, "BMAML does not work with backbone.batchnorm"),
        ("maml_plus_plus", {"backbone.adapt": "frozen"}, "MAML++ adapts the whole network"),
        ("maml_plus_plus", {"method.test_epochs": 9}, "leave out test_epochs or switch both off"),
        ("maml_plus_plus", {"method.order": "first"}, "leave out first_order_epochs"),
        (
            "maml_plus_plus",
            {"method.training_epochs": 20},
            "multi_step_epochs is 60 and cannot be more than training_epochs, 20",
        ),
        ("maml_plus_plus", {"machine.precision": "bfloat16"}, "second derivatives need float32 or float64"),
    ],
)
def test_contradictions_are_one_sentence(small_data, tmp_path, capsys, name, wrong, reason):
    assert train(tmp_path / "run", small_data, name, wrong) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("e3bm: ")]
    assert len(errors) == 1
    assert reason in errors[0]
