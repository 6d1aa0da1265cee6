"""`e3bm train-prior` on small pictures: a prior that fits, a log, and a second call that has nothing to do."""

import json

import numpy as np
import pytest
import torch

from e3bm.cli.main import main
from e3bm.fewshot.fitted_head import FitOptions, fit_head
from e3bm.fewshot.prior.file import load_prior

WORDS = [
    "--datasets",
    "glyphs",
    "--pixels-only",
    "--classes",
    "12",
    "--images",
    "16",
    "--epochs",
    "3",
    "--optimiser.steps",
    "2",
    "--optimiser.tasks",
    "1",
    "--batch-optimiser.steps",
    "1",
    "--batch-optimiser.tasks",
    "1",
    "--trust-tasks",
    "2",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prior")
    words = ["train-prior", *WORDS, "--out", str(folder / "prior.safetensors"), "--run", str(folder / "run")]
    assert main(words) == 0
    return folder, words


def test_it_leaves_a_prior_that_fits(trained):
    folder, _ = trained
    prior = load_prior(folder / "prior.safetensors")
    features = np.random.default_rng(0).standard_normal((6, 4)) + np.repeat([[0], [5]], 3, 0)
    model = fit_head(prior, features, np.repeat([0, 1], 3), 2, FitOptions())
    assert len(model.ensemble.votes) == 3
    assert model.predict_together(features, prior).probabilities.shape == (6, 2)


def test_the_run_says_what_was_done(trained):
    folder, _ = trained
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["kind"] == "prior"
    assert config["settings"]["datasets"] == ["glyphs"]
    assert config["inputs"].keys() == {"glyphs"}
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["part"] for line in lines} == {"inductive", "together"}
    assert load_prior(folder / "prior.safetensors").training["settings"] == config["settings"]


def test_a_second_call_continues_and_changes_nothing(trained, capsys):
    folder, words = trained
    before = load_prior(folder / "prior.safetensors")
    log = (folder / "run" / "metrics.jsonl").read_bytes()
    assert main(words) == 0
    load_prior.cache_clear()
    after = load_prior(folder / "prior.safetensors")
    assert after.trust == before.trust
    for one, two in ((after.inductive, before.inductive), (after.together, before.together)):
        assert all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())
    assert (folder / "run" / "metrics.jsonl").read_bytes() == log
    assert "use it with" in capsys.readouterr().out


def test_wrong_places_are_refused(trained, capsys):
    folder, words = trained
    assert main([*words[:-4], "--out", "prior.bin", "--run", str(folder / "other")]) == 2
    assert ".safetensors" in capsys.readouterr().err
    assert main([*words, "--seed", "5"]) == 2
    assert "other settings" in capsys.readouterr().err
