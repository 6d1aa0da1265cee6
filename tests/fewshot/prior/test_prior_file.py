"""A prior's file comes back as it was, and anything else is refused in a sentence."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch

from e3bm.errors import CheckpointError
from e3bm.fewshot.fitted_head import FitOptions, fit_head
from e3bm.fewshot.prior.file import SHIPPED, load_prior, save_prior


def test_it_comes_back_as_it_was(tmp_path):
    prior = load_prior()
    path = tmp_path / "prior.safetensors"
    save_prior(path, prior.inductive, prior.together, prior.trust, {"note": "copy"})
    again = load_prior(path)
    assert again.trust == prior.trust
    assert again.training == {"note": "copy"}
    features = np.random.default_rng(0).standard_normal((8, 6))
    labels = np.repeat([0, 1], 4)
    one, two = (fit_head(each, features, labels, 2, FitOptions()) for each in (prior, again))
    np.testing.assert_array_equal(one.probabilities(features), two.probabilities(features))


def test_the_shipped_one_is_small_and_says_where_it_comes_from():
    assert SHIPPED.stat().st_size < 1_000_000
    assert {"settings", "inputs", "commit"} <= load_prior().training.keys()


def test_what_is_no_prior_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="There is no prior"):
        load_prior(tmp_path / "nowhere.safetensors")
    text = tmp_path / "text.safetensors"
    text.write_text("a prior, honestly")
    with pytest.raises(CheckpointError, match="not a readable prior"):
        load_prior(text)
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(2)}, other)
    with pytest.raises(CheckpointError, match="not a prior for few-shot classifiers"):
        load_prior(other)


def test_a_prior_without_all_of_its_numbers_is_refused(tmp_path):
    with safetensors.safe_open(SHIPPED, "pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del tensors["inductive.method.log_scale"]
    path = tmp_path / "part.safetensors"
    safetensors.torch.save_file(tensors, path, {"about": json.dumps(about)})
    with pytest.raises(CheckpointError, match="do not fit a prior"):
        load_prior(path)
    safetensors.torch.save_file(tensors, tmp_path / "old.safetensors", {"about": json.dumps(about | {"version": 1})})
    with pytest.raises(CheckpointError, match="make one with"):
        load_prior(tmp_path / "old.safetensors")
