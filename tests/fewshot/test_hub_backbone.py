"""Models of a hub, by a stand-in for the library: what is asked of it, and what becomes of its answers."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from e3bm import FewShotClassifier
from e3bm.errors import CheckpointError, SettingsError
from photo_models import picture, support


class Vision(nn.Module):
    """Answers as vision models of that library do: with tokens, and without a pooled vector."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 8, 8, 8)

    def forward(self, pixel_values):
        tokens = self.patches(pixel_values).flatten(2).mT
        return {"last_hidden_state": torch.cat([tokens.mean(1, keepdim=True), tokens], 1)}


OF_TIMM = {"input_size": [3, 32, 32], "crop_pct": 0.8, "interpolation": "bicubic", "mean": [0.4] * 3, "std": [0.2] * 3}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What the library was asked for; its one model is called 'some/vision'."""
    questions = []
    stated = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}, "resample": 3,
              "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.2]}  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))

    def from_pretrained(name, **settings):
        questions.append((name, settings))
        if name == "timm/resnet18":
            found = Vision()
            found.config = SimpleNamespace(pretrained_cfg=OF_TIMM)
            return found
        if name != "some/vision":
            raise OSError(f"{name} is not a local folder\nand more lines")
        return Vision()

    library = SimpleNamespace(
        AutoModel=SimpleNamespace(from_pretrained=from_pretrained),
        utils=SimpleNamespace(cached_file=lambda name, file, local_files_only: str(tmp_path / file)),
    )
    monkeypatch.setitem(sys.modules, "transformers", library)
    return questions


def test_a_model_brings_its_preprocessing(asked, tmp_path):
    model = FewShotClassifier("transformers:some/vision").fit(support())
    assert str(model.extractor.pipeline) == "resize 36 bicubic, centre_crop 32, normalise none"
    assert model.predict(picture("sky", 9)).label == "sky"
    assert asked[0][1]["trust_remote_code"] is False
    assert asked[0][1]["use_safetensors"] is True
    model.save(tmp_path / "model.e3bm")
    assert FewShotClassifier.load(tmp_path / "model.e3bm").predict(picture("sky", 9)) == model.predict(
        picture("sky", 9)
    )
    assert asked[-1][1]["local_files_only"] is True  # a file alone makes nothing be fetched


def test_models_of_timm_by_their_own_prefix(asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace())
    model = FewShotClassifier("timm:resnet18").fit(support())
    assert asked[-1][0] == "timm/resnet18"
    assert str(model.extractor.pipeline) == "resize 40 bicubic, centre_crop 32, normalise none"
    assert model.predict(picture("sky", 9)).label == "sky"
    for library in ("timm", "transformers"):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(SettingsError, match=r"'timm:resnet18' needs .*; run: pip install transformers timm$"):
            FewShotClassifier("timm:resnet18")


def test_what_cannot_be_loaded_is_said(asked):
    with pytest.raises(SettingsError, match="'other/one' cannot be loaded by transformers: other/one is not a local"):
        FewShotClassifier("transformers:other/one")


def test_a_file_whose_model_is_not_stored_says_how_to_fetch_it(asked, tmp_path, monkeypatch):
    FewShotClassifier("transformers:some/vision").fit(support()).save(tmp_path / "model.e3bm")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CheckpointError, match=r"needs the model 'some/vision'.*backbone='transformers:some/vision'"):
        FewShotClassifier.load(tmp_path / "model.e3bm")
