"""Models over HTTP: downloaded, opened again, and refused where they ask for more than themselves."""

import json
from pathlib import Path

import pytest
import safetensors.numpy

from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.model_file import ABOUT, DIGEST, content_digest, read_model


def sent(visitor, content: bytes, name: str = "my.e3bm"):
    return visitor.put("/model", files={"model": (name, content)})


@pytest.fixture
def model(visitor) -> bytes:
    """The download of a server with two classes."""
    visitor.teach("g", "&")
    visitor.fit()
    answer = visitor.get("/model")
    assert answer.headers["content-disposition"] == 'attachment; filename="model.e3bm"'
    return answer.content


def altered(content: bytes, **changes) -> bytes:
    """The same model that says something else of itself, with a digest that agrees."""
    about, tensors = read_model(Path("m.e3bm"), content)
    about |= changes
    text = json.dumps({**about, DIGEST: content_digest(about, tensors)}, sort_keys=True)
    return safetensors.numpy.save(tensors, {ABOUT: text})


def test_a_download_is_what_save_writes_and_predicts_the_same(visitor, model, glyph_png, quick, tmp_path) -> None:
    (tmp_path / "m.e3bm").write_bytes(model)
    loaded = FewShotClassifier.load(tmp_path / "m.e3bm", backbone=quick().extractor)
    (told,) = visitor.photos("/predict", glyph_png("g", 7)).json()["predictions"]
    assert told["probabilities"] == pytest.approx(loaded.predict(glyph_png("g", 7)).probabilities, abs=1e-5)
    loaded.save(tmp_path / "again.e3bm")
    assert (tmp_path / "again.e3bm").read_bytes() == model


def test_an_opened_model_is_asked_and_changed(visitor, model, glyph_png) -> None:
    expected = visitor.photos("/predict", glyph_png("g", 7)).json()["predictions"][0]["probabilities"]
    visitor.delete("/workspace")
    state = sent(visitor, model).json()
    assert [(one["name"], len(one["photos"])) for one in state["classes"]] == [("&", 4), ("g", 4)]
    assert state["model"]["fresh"]
    (told,) = visitor.photos("/predict", glyph_png("g", 7)).json()["predictions"]
    assert told["probabilities"] == expected
    assert {one["photo"] for one in told["influences"]} <= {n for one in state["classes"] for n in one["photos"]}
    visitor.teach("Ж")
    assert visitor.fit()["classes"] == ["&", "g", "Ж"]


def test_a_model_without_its_features_is_asked_only(visitor, model, glyph_png, quick) -> None:
    loaded = FewShotClassifier.from_bytes(model, backbone=quick().extractor)
    state = sent(visitor, loaded.to_bytes(keep_support=False)).json()
    assert "without the features" in state["unchangeable"]
    (told,) = visitor.photos("/predict", glyph_png("g", 7)).json()["predictions"]
    assert (told["label"], told["influences"]) == ("g", [])
    for answer in (visitor.post("/fit"), visitor.post("/classes", json={"name": "new"})):
        assert answer.status_code == 409
        assert answer.json()["error"] == state["unchangeable"]
    visitor.delete("/workspace")
    assert visitor.get("/workspace").json()["unchangeable"] is None


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 100, (10).to_bytes(8, "little") + b"[" * 10_000])
def test_what_is_no_model_is_refused_and_changes_nothing(visitor, model, content) -> None:
    before = visitor.get("/workspace").json()
    answer = sent(visitor, content)
    assert answer.status_code == 422
    assert "my.e3bm" in answer.json()["error"]
    assert visitor.get("/workspace").json() == before


def test_a_damaged_model_is_refused(visitor, model) -> None:
    for place in (len(model) - 3, len(model) // 2, 200):
        damaged = bytearray(model)
        damaged[place] ^= 1
        assert sent(visitor, bytes(damaged)).status_code == 422


@pytest.mark.parametrize("kind", ["transformers", "module"])
def test_no_request_names_a_folder_or_a_hub(visitor, model, kind) -> None:
    backbone = {"kind": kind, "name": "/etc", "digest": "0" * 64, "settings": {}, "channels": 3}
    answer = sent(visitor, altered(model, backbone=backbone))
    assert answer.status_code == 422
    assert "not this server's" in answer.json()["error"]


def test_the_name_of_an_upload_is_never_opened(visitor, model, tmp_path) -> None:
    (tmp_path / "there.e3bm").write_bytes(model)
    answer = sent(visitor, b"nothing", str(tmp_path / "there.e3bm"))
    assert answer.status_code == 422
    assert str(tmp_path) not in answer.json()["error"]


def test_content_and_file_are_read_alike(model, tmp_path) -> None:
    path = tmp_path / "m.e3bm"
    path.write_bytes(model)
    from_file, from_content = read_model(path), read_model(path, model)
    assert from_file[0] == from_content[0]
    assert all(bool((from_file[1][name] == value).all()) for name, value in from_content[1].items())
    assert set(from_file[1]) == set(from_content[1])


def test_photos_are_averaged_with_their_mirror_images_where_that_was_chosen(serve_with, glyph_png, quick, tmp_path):
    expected = quick().with_views(2).fit({name: [glyph_png(name, n) for n in range(4)] for name in ("g", "&")})
    keep = tmp_path / "kept.workspace"
    with serve_with(keep=keep) as visitor:
        assert visitor.get("/workspace").json()["views"] == 1
        answer = visitor.patch("/workspace", json={"views": 3})
        assert (answer.status_code, answer.json()["error"]) == (422, "'views' must be 1 or 2.")
        assert visitor.patch("/workspace", json={"views": 2}).json()["views"] == 2
        visitor.teach("g", "&")
        visitor.fit()
        answer = visitor.patch("/workspace", json={"views": 1})
        assert answer.status_code == 409
        assert "before the first photo" in answer.json()["error"]
        model = visitor.get("/model").content
        assert FewShotClassifier.from_bytes(model, backbone=quick().extractor).extractor.views == 2
    with serve_with(keep=keep) as visitor:  # the next start knows it too
        assert visitor.get("/workspace").json()["views"] == 2
        (told,) = visitor.photos("/predict", glyph_png("g", 7)).json()["predictions"]
        assert told["probabilities"] == pytest.approx(expected.predict(glyph_png("g", 7)).probabilities, abs=1e-5)
        visitor.delete("/workspace")
        assert visitor.get("/workspace").json()["views"] == 1
        assert sent(visitor, model).json()["views"] == 2
