"""Corrections are fits with one photo more; suggestions are the unsure and the strange, and no two alike."""

import json

import numpy as np
import pytest
from PIL import Image

from e3bm.cli.main import main
from e3bm.errors import DataError
from photo_models import CLASSES, picture, pictures, same_fit, support, unfitted, write_folder


@pytest.fixture
def model():
    return unfitted().fit(support())


def test_a_correction_equals_a_fit_with_the_photo(model):
    photo = picture("sky", 40)
    corrected = model.correct(photo, "sky")
    assert corrected is model
    assert same_fit(model, unfitted().fit({**support(), "sky": [*pictures("sky", 4), photo]}))
    assert same_fit(model.correct(photo, "sky"), unfitted().fit({**support(), "sky": [*pictures("sky", 4), photo]}))


def test_a_photo_of_another_class_moves(model):
    model.correct(picture("grass", 1), "sky")
    expected = {**support(), "grass": [picture("grass", place) for place in (0, 2, 3)]}
    expected["sky"] = [*pictures("sky", 4), picture("grass", 1)]
    assert same_fit(model, unfitted().fit(expected))


def test_the_last_photo_of_a_class_takes_it_along():
    model = unfitted().fit({**support(), "sand": pictures("sand", 1)})
    model.correct(picture("sand", 0), "grass")
    assert model.classes == CLASSES


def test_a_new_class_must_be_meant(model):
    before = model.to_bytes()
    with pytest.raises(
        DataError, match=r"no class 'skyy'; there are brick, grass, sky\. Did you mean sky\? .*: --new-class \(new"
    ):
        model.correct(picture("sky", 9), "skyy")
    assert model.to_bytes() == before
    assert "sand" in model.correct(picture("sand", 9), "sand", new_class=True).classes


def test_suggestions_prefer_the_strange_and_are_not_alike(model):
    sure = [picture(name, 60 + place) for place in range(3) for name in CLASSES]
    strange = picture("sand", 0)
    photos = [*sure, strange, strange, strange]
    answers = model.predict(photos)
    found = model.suggest(photos, count=4)
    assert [one.gain for one in found] == sorted((one.gain for one in found), reverse=True)
    assert len({one.number for one in found}) == 4
    unsure = max(range(len(photos)), key=lambda place: (answers[place].unknown, -answers[place].confidence))
    assert found[0].number == unsure
    assert sum(one.number >= len(sure) for one in found[:2]) <= 1, "the same photo thrice is suggested once"
    assert all(one.reason and one.looks_like in CLASSES for one in found)
    assert len(model.suggest(photos, count=100)) == len(photos)


def test_reasons_name_no_kind_of_example_and_nothing_that_came_before_the_first(model):
    found = model.suggest([picture(name, 3) for name in CLASSES], count=len(CLASSES))
    sure = [one.reason for one in found if one.reason.startswith("it is probably")]
    assert sure[1:]
    assert found[0].reason.endswith("no other is less certain")
    assert all(reason.endswith("; it is unlike those suggested before it") for reason in sure[1:])


def test_suggested_labels_help_more_than_random_ones():
    """Half of the classes have photos of one kind only; over several draws, asking beats not asking."""
    random = np.random.default_rng(0)
    gains = []
    for draw in range(4):
        pool = [(name, picture(name, 100 + 30 * draw + place)) for name in (*CLASSES, "sand") for place in range(12)]
        test = [(name, picture(name, 900 + place)) for name in (*CLASSES, "sand") for place in range(10)]
        right = []
        for chosen in (
            [one.number for one in unfitted().fit(support(1)).suggest([photo for _, photo in pool], 3)],
            random.permutation(len(pool))[:3].tolist(),
        ):
            model = unfitted().fit(support(1))
            for place in chosen:
                model.correct(pool[place][1], pool[place][0], new_class=True)
            right.append(np.mean([model.predict(photo).label == name for name, photo in test]))
        gains.append(right[0] - right[1])
    assert np.mean(gains) > 0


def test_unreadable_photos_are_named_or_skipped(model, tmp_path):
    Image.fromarray(picture("sky", 3)).save(tmp_path / "b.png")
    (tmp_path / "a.png").write_bytes(b"no")
    with pytest.raises(DataError, match=r"a\.png cannot be used"):
        model.suggest(tmp_path)
    (found,) = model.suggest(tmp_path, skip_unreadable=True)
    assert found.name == str(tmp_path / "b.png")
    assert found.number == 1
    with pytest.raises(DataError, match="No photo was given"):
        model.suggest([])


@pytest.mark.same_anywhere
def test_the_commands_go_round(pretrained_run, tmp_path, capsys):
    model = tmp_path / "m.e3bm"
    photos = write_folder(tmp_path / "photos")
    assert main(["fit", str(photos), "--out", str(model), "--backbone", str(pretrained_run)]) == 0
    new = write_folder(tmp_path / "new", count=2, names=("sand", "sky"))
    capsys.readouterr()
    assert main(["suggest", str(model), str(new), "--count", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["gain"] >= second["gain"]
    assert main(["correct", str(model), first["path"], "sand"]) == 2
    assert "--new-class" in capsys.readouterr().err
    kept, backup, other = model.read_bytes(), tmp_path / "m.backup.e3bm", tmp_path / "n.e3bm"
    assert main(["correct", str(model), first["path"], "sand", "--new-class"]) == 0
    said = capsys.readouterr().out
    assert "'sand' has 1" in said
    assert f"saved {model} (as it was before: {backup})" in said
    assert model.read_bytes() != kept == backup.read_bytes()
    assert main(["correct", str(model), first["path"], "sand"]) == 0
    assert capsys.readouterr().out == "'sand' has this photo already; nothing changed\n"
    assert kept == backup.read_bytes()
    words = ["correct", str(model), second["path"], "sand", "--out", str(other), "--json"]
    other.write_bytes(kept)
    assert main(words) == 2
    assert "exists already; give another name with --out, or --force" in capsys.readouterr().err
    assert kept == other.read_bytes() == backup.read_bytes()
    assert main([*words, "--force"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"]["sand"] == 2
    assert main(["suggest", str(model), str(new)]) == 0
    assert f"next: e3bm correct {model} PHOTO LABEL" in capsys.readouterr().out
    assert main(["suggest", str(model), str(new / "sky"), str(new / "sand" / "0.png"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    bare = tmp_path / "bare.e3bm"
    assert main(["fit", str(photos), "--out", str(bare), "--backbone", str(pretrained_run), "--drop-support"]) == 0
    assert main(["suggest", str(bare), str(new)]) == 0
    assert "e3bm correct" not in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    for words, sentence in (
        ([str(new), "--count", "0"], "(--count) is 1 or more, found 0."),
        ([str(tmp_path / "empty")], f"There are no photos in {tmp_path / 'empty'};"),
    ):
        assert main(["suggest", str(model), *words]) == 2
        assert sentence in capsys.readouterr().err
