"""Evaluations: every number equals the one that is counted by hand, and the page shows what the numbers say."""

import json
import re

import numpy as np
import pytest

from e3bm.cli.main import main
from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.learning.evaluation import COVERAGES, Share, error_if_calibrated, reliability_bins
from photo_models import CLASSES, picture, pictures, support, unfitted, write_folder


@pytest.fixture(scope="module")
def model():
    return unfitted().fit(support(2))


@pytest.fixture(scope="module")
def asked():
    """Photos of the classes with some wrong labels, and of a class that the model does not know."""
    photos = [(name, picture(name, number)) for name in CLASSES for number in range(50, 62)]
    photos += [("sand", picture("sand", number)) for number in range(8)]
    return [("sky" if place % 9 == 0 else name, photo) for place, (name, photo) in enumerate(photos)]


@pytest.fixture(scope="module")
def found(model, asked):
    return model.evaluate([photo for _, photo in asked], [label for label, _ in asked])


def test_numbers_are_those_counted_by_hand(model, asked, found):
    answers = {}
    for label, photo in asked:
        answers.setdefault(label, []).append(model.predict(photo))
    known = [(label, one) for label in CLASSES for one in answers.get(label, [])]
    assert (found.accuracy.count, found.accuracy.of) == (sum(label == one.label for label, one in known), len(known))
    assert found.kept.count == sum(not one.unknown for _, one in known)
    assert found.caught == Share(sum(one.unknown for one in answers["sand"]), len(answers["sand"]))
    assert found.strangers == ("sand",)
    assert found.mean_confidence == pytest.approx(np.mean([one.confidence for _, one in known]))
    for one in found.by_class:
        assert one.recall.count == sum(answer.label == one.name for answer in answers[one.name])
        assert one.precision.of == sum(answer.label == one.name for _, answer in known)
    assert found.confusion.sum() == len(asked)
    wrong = [one for label, one in known if label != one.label] + [one for one in answers["sand"] if not one.unknown]
    assert len(found.mistakes) == len(wrong) > 0
    for row in found.coverages:
        rows = model.features([photo for label, photo in asked if label != "sand"])
        sets = [one.prediction_set for one in model.predict_features(rows, coverage=row.asked)]
        assert row.size == pytest.approx(np.mean([len(one) for one in sets]))


def test_thresholds_are_ordered_and_hold_the_one_in_use(found):
    rows = found.thresholds
    assert sum(row.in_use for row in rows) == 1
    assert next(row for row in rows if row.in_use).kept == found.kept
    kept, caught = [row.kept.count for row in rows], [row.caught.count for row in rows]
    assert kept == sorted(kept, reverse=True)
    assert caught == sorted(caught)


@pytest.mark.parametrize("recall", [0.99, 0.8, 0.5])
def test_a_row_of_thresholds_is_what_predictions_with_its_recall_say(model, asked, found, recall):
    row = next(row for row in found.thresholds if row.recall == recall)
    said = [(label, model.predict(photo, recall=recall)) for label, photo in asked]
    assert [one.unknown for _, one in said] == [one.unknown_score > recall for _, one in said]
    assert row.kept.count == sum(not one.unknown for label, one in said if label != "sand")
    assert row.caught.count == sum(one.unknown for label, one in said if label == "sand")


def test_reliability_counts_every_known_photo_once(found):
    assert sum(one.right.of for one in found.reliability) == found.accuracy.of
    assert sum(one.right.count for one in found.reliability) == found.accuracy.count
    assert 0 <= found.ece <= 1


def test_the_calibration_error_is_compared_with_what_chance_gives(found):
    random = np.random.default_rng(3)
    for count in (60, 2000):
        confidence = random.uniform(0.4, 1, count)
        expected = error_if_calibrated(confidence)
        assert expected == error_if_calibrated(confidence)  # always the same
        errors = []
        for _ in range(300):  # the same by the definition, with other numbers
            bins = reliability_bins(confidence, random.random(count) < confidence)
            errors.append(sum(abs(one.confidence - one.right.value) * one.right.of for one in bins) / count)
        assert expected.mean == pytest.approx(np.mean(errors), rel=0.1)
        assert expected.most == pytest.approx(np.quantile(errors, 0.95), rel=0.15)
    assert error_if_calibrated(np.ones(5)).mean == 0
    chance = found.ece_if_calibrated
    said = f"a perfectly calibrated model would by chance show {100 * chance.mean:.1f} % on average, and at most"
    assert said in found.to_html()
    assert said in str(found)
    assert found.as_json()["ece_if_calibrated"] == {"mean": chance.mean, "most": chance.most}


def test_mistakes_say_what_mattered(found):
    assert all(len(one.influences) == 3 for one in found.mistakes)
    assert found.thumbnails.keys() == {one.number for one in found.mistakes}
    assert all(picture.startswith(b"\xff\xd8") for picture in found.thumbnails.values())
    sure = [one.confidence for one in found.mistakes if one.label != "sand"]
    assert sure == sorted(sure, reverse=True)


@pytest.mark.parametrize(("count", "of"), [(0, 5), (5, 5), (1, 3), (990, 1000)])
def test_intervals_hold_the_share_and_stay_inside(count, of):
    low, high = Share(count, of).interval
    assert 0 <= low <= count / of <= high <= 1
    assert high - low > Share(count * 100, of * 100).interval[1] - Share(count * 100, of * 100).interval[0]


def test_nothing_has_no_share():
    assert Share(0, 0).value is Share(0, 0).interval is None


@pytest.mark.same_anywhere
def test_the_page_is_whole_and_alone(found, tmp_path):
    found.save(tmp_path / "e.html", "a <b>title</b>")
    text = (tmp_path / "e.html").read_text()
    assert "a &lt;b&gt;title" in text
    assert "<script" not in text
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", text)
    assert text.count("data:image/jpeg") == len(found.mistakes)
    numbers = json.loads((tmp_path / "e.json").read_text())
    assert numbers["accuracy"]["count"] == found.accuracy.count
    assert [row["asked"] for row in numbers["coverages"]] == list(COVERAGES)
    with pytest.raises(SettingsError, match="one HTML file"):
        found.save(tmp_path / "e.jpg")


def test_photos_of_the_fit_are_pointed_out(model):
    assert any("The model was fitted on" in note for note in model.evaluate(support(2)).notes)


def test_only_strangers_is_a_sentence(model):
    with pytest.raises(DataError, match="No photo belongs to a class that the model knows") as told:
        model.evaluate({"sand": pictures("sand", 2)})
    assert f"({', '.join(model.classes)}); found sand. " in str(told.value)
    with pytest.raises(DataError, match="Write the labels as in the model"):
        model.evaluate({"sand": [b"no photo"]})  # said before any photo is read
    with pytest.raises(DataError, match="No photo was given"):
        model.evaluate([], [])


def test_only_classes_with_photos_are_counted(model):
    for count, words in ((1, "photos of 1 class right"), (2, "photos of 2 classes right")):
        assert words in str(model.evaluate({name: pictures(name, 2, 70) for name in CLASSES[:count]}))


def test_one_class_has_a_recall_and_no_precision(model, tmp_path):
    folder = write_folder(tmp_path / "photos", 2, ("sky",))
    found = model.evaluate(folder)
    sky = {one.name: one for one in found.by_class}["sky"]
    assert (sky.recall.count, sky.recall.of) == (found.accuracy.count, 2)
    assert all(one.precision.of == 0 for one in found.by_class)
    assert all(one.recall.of == 0 for one in found.by_class if one.name != "sky")
    (_,) = [note for note in found.notes if "are of one, 'sky': the accuracy is its recall" in note]
    assert "not defined" in found.to_html()
    assert found.as_json()["classes"]
    with pytest.raises(DataError, match="a subfolder of its own, even if there is only one"):
        model.evaluate(folder / "sky")


@pytest.mark.same_anywhere
def test_a_perfect_result_has_a_page_too(model):
    page = model.evaluate({name: pictures(name, 1, 70) for name in CLASSES[:2]}).to_html()
    assert "Every photo got its right name" in page or "was called" in page


@pytest.mark.same_anywhere
def test_the_command_prints_and_writes(pretrained_run, tmp_path, capsys):
    photos = write_folder(tmp_path / "photos")
    model, out = tmp_path / "m.e3bm", tmp_path / "of birds.html"
    assert main(["fit", str(photos), "--out", str(model), "--backbone", str(pretrained_run)]) == 0
    (photos / "sky" / "broken.png").write_bytes(b"\x89PNG")
    capsys.readouterr()
    assert main(["evaluate", str(model), str(photos), "--out", str(out)]) == 2
    assert "broken.png cannot be used" in capsys.readouterr().err
    assert not out.exists()
    assert main(["evaluate", str(model), str(photos), "--out", str(out), "--skip-unreadable"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("accuracy: ")
    assert "The model was fitted on" in said
    assert f"'{out}'" in said
    assert out.exists()
    assert main(["evaluate", str(model), str(photos), "--out", str(out), "--skip-unreadable", "--json"]) == 2
    assert "exists already; give another name with --out, or --force" in capsys.readouterr().err
    words = ["evaluate", str(model), str(photos), "--out", str(out), "--skip-unreadable", "--json", "--force"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["photos"] == 12
    assert main(["evaluate", str(model), str(photos), "--out", str(model)]) == 2
    labels = tmp_path / "labels.json"
    labels.write_text("[]")
    capsys.readouterr()
    assert main(["evaluate", str(model), str(labels), "--out", str(labels.with_suffix(".html")), "--force"]) == 2
    assert f"would replace {labels}; give another name" in capsys.readouterr().err
    assert labels.read_text() == "[]"
