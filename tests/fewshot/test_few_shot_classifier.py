"""FewShotClassifier: every form of input, the same answer to the last bit, and a sentence for what cannot be."""

import io
import shutil
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from e3bm import FewShotClassifier, Prediction
from e3bm.errors import DataError, E3BMError
from e3bm.fewshot.fitted_model import SuspiciousPhoto
from photo_models import CLASSES, PIPELINE, network, picture, pictures, same_fit, support, unfitted, write_folder
from recorded_progress import RecordedProgress


@pytest.fixture(scope="module")
def model():
    return unfitted().fit(support())


def test_a_prediction_says_everything(model):
    found = model.predict(picture("sky", 9))
    assert isinstance(found, Prediction)
    assert found.label == "sky"
    assert list(found.probabilities) == list(model.classes) == list(CLASSES)
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert found.confidence == max(found.probabilities.values())
    assert 0 <= found.disagreement <= 1
    assert isinstance(found.unknown, bool)
    assert found.prediction_set is None
    said = "label confidence probabilities unknown unknown_score disagreement"
    assert list(found.as_json()) == said.split()
    assert model.counts == dict.fromkeys(CLASSES, 4)
    assert model.left_out_accuracy == 1
    assert len(model.rates) == len(model.votes) > 1
    assert model.notes == model.suspicions == ()


def test_sets_hold_the_best_class_first(model):
    with pytest.warns(
        UserWarning, match="only 12 photos, so a set of 99 % contains every class; at least 99 photos in"
    ):
        found = model.predict(picture("sky", 9), coverage=0.99)
    assert found.prediction_set == tuple(sorted(CLASSES, key=lambda name: -found.probabilities[name]))
    assert "prediction_set" in found.as_json()


def test_folders_mappings_and_lists_are_the_same(model, tmp_path):
    folder = write_folder(tmp_path / "photos")
    labelled = [(photo, name) for name, photos in support().items() for photo in photos]
    photos, labels = zip(*labelled, strict=True)
    others = [
        unfitted().fit(folder),
        unfitted().fit(str(folder)),
        unfitted().fit({name: folder / name for name in CLASSES}),
        unfitted().fit({name: sorted((folder / name).iterdir()) for name in CLASSES}),
        unfitted().fit({name: np.stack(some) for name, some in support().items()}),
        unfitted().fit(list(photos), list(labels)),
        unfitted().fit(np.stack(photos), labels),
        unfitted().fit_features({name: unfitted().features(some) for name, some in support().items()}),
    ]
    assert all(same_fit(model, other) for other in others)


def test_two_views_are_the_mean_of_a_photo_and_its_mirror_image():
    one, two = unfitted(), unfitted(views=2)
    photo = one.extractor.pipeline.photo_steps(picture("sky", 9))  # as large as the network's input: nothing is rounded
    mirrored = np.ascontiguousarray(photo[:, ::-1])
    as_it_is, turned = one.features(photo), one.features(mirrored)
    assert np.abs(as_it_is - turned).max() > 1e-3
    np.testing.assert_allclose(two.features(photo), (as_it_is + turned) / 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(two.features(photo), two.features(mirrored), rtol=1e-4, atol=1e-5)
    assert same_fit(unfitted(views=1).fit(support()), one.fit(support()))
    two.fit(support())
    assert two.predict(photo) == two.predict_features(two.features(photo))[0] != one.predict(photo)
    assert two.with_fit(None).extractor.views == 2


@pytest.mark.parametrize("views", [0, 3, 1.5, True, "2"])
def test_other_numbers_of_views_are_refused(views):
    refused("1 view, or 2 .with their mirror image.; found", unfitted, views=views)


def test_neither_order_nor_neighbours_matter(model):
    turned = unfitted().fit({name: photos[::-1] for name, photos in reversed(support().items())})
    asked = [picture(name, number) for name in CLASSES for number in range(20, 26)]
    together = model.predict(asked)
    assert together == [model.predict(photo) for photo in asked] == turned.predict(asked)
    assert np.array_equal(model.predict_proba(asked), [list(found.probabilities.values()) for found in together])


def test_every_form_of_a_photo_is_predicted_alike(model):
    pixels, stored = picture("grass", 9), io.BytesIO()
    Image.fromarray(pixels).save(stored, "png")
    forms = [pixels, torch.from_numpy(pixels), Image.fromarray(pixels), stored.getvalue()]
    assert len({str(model.predict(form)) for form in forms}) == 1
    assert model.predict(forms) == [model.predict(pixels)] * 4
    assert model.predict([]) == []
    assert model.predict_proba([]).shape == (0, 3)


def test_changes_equal_a_fit_from_scratch(model):
    sand = pictures("sand", 3)
    four = {**support(), "sand": sand}
    grown = unfitted().fit(support()).add_class("sand", sand)
    assert same_fit(grown, unfitted().fit(four))
    assert grown.counts["sand"] == 3
    more = pictures("sky", 2, first=30)
    grown.add_shots("sky", more)
    assert same_fit(grown, unfitted().fit({**four, "sky": [*more, *four["sky"]]}))
    grown.forget_class("sand")
    assert same_fit(grown, unfitted().fit({**support(), "sky": [*support()["sky"], *more]}))
    assert not same_fit(grown, model)


def test_wrong_labels_are_pointed_out_by_name(tmp_path):
    folder = write_folder(tmp_path / "photos", 6)
    Image.fromarray(picture("sky", 50)).save(folder / "grass" / "wrong.png")
    (found,) = unfitted().fit(folder).suspicions
    assert (found.name, found.label, found.looks_like) == (str(folder / "grass" / "wrong.png"), "grass", "sky")
    assert found.odds > 1
    photos = support(6)
    photos["grass"].append(picture("sky", 50))
    assert [one.name for one in unfitted().fit(photos).suspicions] == ["grass #7"]


def test_a_renamed_class_gives_what_a_fit_under_that_name_gives():
    photos = support(4)
    photos["brick"].pop()
    photos["grass"].append(picture("sky", 50))
    names = {"brick": "wall", "sky": "air"}
    made = unfitted().fit(photos)
    renamed = made.with_fit(made.fitted.renamed(names))
    expected = unfitted().fit({names.get(name, name): some for name, some in photos.items()})
    assert renamed.counts == expected.counts == {"air": 4, "grass": 5, "wall": 3}
    assert renamed.fitted.support.names == expected.fitted.support.names
    (one,), (other,) = renamed.suspicions, expected.suspicions
    assert (one.name, one.label, one.looks_like) == (other.name, other.label, other.looks_like)
    # Sums in another order round otherwise.
    found = renamed.predict(picture("sky", 60)).probabilities
    assert list(found) == ["air", "grass", "wall"]
    assert found == pytest.approx(expected.predict(picture("sky", 60)).probabilities, abs=1e-5)
    amounts, wanted = (
        {one.name: one.amount for one in some.influences(picture("sky", 60))} for some in (renamed, expected)
    )
    assert amounts == pytest.approx(wanted, abs=1e-3)
    again = FewShotClassifier.from_bytes(renamed.to_bytes(), backbone=renamed.extractor)
    assert again.predict(picture("sky", 60)) == renamed.predict(picture("sky", 60))
    with pytest.raises(DataError, match="another class as 'sky'"):
        made.fitted.renamed({"brick": "sky"})


def test_odds_that_nobody_tested_are_not_shown():
    said = [str(SuspiciousPhoto("7.jpg", "crow", "magpie", odds)) for odds in (12.4, 2114.0)]
    assert said[0] == "7.jpg is in 'crow' and looks like 'magpie' (12 to 1)"
    assert said[1].endswith("looks like 'magpie' (more than 100 to 1)")


def test_what_is_odd_and_works_is_noted():
    photos = support(3)
    photos["sky"] = [*photos["sky"], photos["sky"][0]]
    photos["grass"] = photos["grass"][:1]
    found = unfitted().fit(photos).notes
    assert found[0].startswith("Class 'grass' has a single photo")
    assert found[1].startswith("Class 'sky' has the same photo more than once: sky #1 and sky #4")
    alone = unfitted().fit(support(1))
    assert alone.left_out_accuracy is None
    assert alone.notes[0].startswith("Classes 'brick', 'grass', 'sky' have a single photo")
    assert alone.predict(picture("sky", 9)).label == "sky"


def test_names_that_differ_only_in_case_are_noted():
    photos = {"Crow": pictures("sky", 2), "crow": pictures("sand", 2), "Größe": pictures("brick", 2)}
    (note,) = unfitted().fit(photos).notes
    assert note == (
        "The classes 'Crow', 'crow' differ only in upper and lower case; if they are one class, merge their folders."
    )


@pytest.mark.parametrize("name", ["a b", "Größe", "鳥", "👩‍🚀 moon", "in/out", "..", "=1+1", "<b>", '"', "x" * 200])
def test_strange_class_names_work(name):
    photos = {**support(2), name: pictures("sand", 2)}
    found = unfitted().fit(photos)
    assert name in found.classes
    assert found.predict(picture("sand", 9)).label == name


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "bell\a", "half \ud800 pair", "x" * 201, "line\u2028end"])
def test_names_that_fit_on_no_line_are_refused(name):
    with pytest.raises(DataError, match=r"name"):
        unfitted().fit({**support(2), name: pictures("sand", 2)})


def refused(sentence, work, *arguments, **settings):
    with pytest.raises(E3BMError, match=sentence):
        work(*arguments, **settings)


def test_what_cannot_be_learned_from_is_refused(model, tmp_path):
    new = unfitted()
    refused("knows no class yet; call fit", new.predict, picture("sky", 1))
    refused("knows no class yet", new.add_class, "sky", pictures("sky", 1))
    refused("Class 'sky' has no photo", new.fit, {**support(2), "sky": []})
    refused("two or more classes; found only 'sky'", new.fit, {"sky": pictures("sky", 2)})
    refused("two or more classes; found none", new.fit, {})
    refused("needs a label for each", new.fit, pictures("sky", 2))
    refused("2 photos and 1 labels", new.fit, pictures("sky", 2), ["sky"])
    refused("subfolders are the classes", new.fit, str(tmp_path), ["sky"])
    refused("keys are the classes", new.fit, support(), ["sky"])
    shared = support(2)
    shared["grass"].append(shared["sky"][1])
    refused(r"same photo is in class 'grass' \(grass #3\) and in class 'sky' \(sky #2\)", new.fit, shared)
    refused("look the same", new.fit, {"caf\u00e9": pictures("sky", 1), "cafe\u0301": pictures("sand", 1)})
    refused("photo 1 cannot be used: it is an array of float64", model.predict, np.zeros((4, 4, 3)))
    refused("3 columns|5 columns|columns; found shape", model.predict_features, np.zeros((2, 3)))
    refused("needs rows of two or more classes; found only 'a'", new.fit_features, {"a": np.ones((2, 3))})
    refused("NaN", new.fit_features, {"a": np.full((2, 3), np.nan), "b": np.ones((1, 3))})
    refused("No photo was given", model.features, [])
    refused("There is no class 'owl'; there are brick, grass, sky", model.add_shots, "owl", pictures("sky", 1))
    refused("There is no class 'owl'", model.forget_class, "owl")
    refused("is a class 'sky' already", model.add_class, "sky", pictures("sky", 1))
    refused(
        "found only", unfitted().fit(support(2, CLASSES[:2])).forget_class, "sky" if "sky" in CLASSES[:2] else "grass"
    )
    refused("recall", unfitted, recall=2)
    assert model.classes == CLASSES


def test_unreadable_photos_are_named_together_or_left_out(tmp_path):
    folder = write_folder(tmp_path / "photos")
    for name in ("grass", "sky"):
        (folder / name / "bad.png").write_bytes((folder / name / "0.png").read_bytes()[:100])
    named = r"grass.bad.png cannot be used: it is damaged: .*\n.*sky.bad.png cannot be used: .*\.\n"
    advice = r"Remove or replace these 2 photos, or continue without them \(--skip-unreadable; skip_unreadable=True in"
    refused(named + advice, unfitted().fit, folder)
    found = unfitted().fit(folder, skip_unreadable=True)
    assert found.counts == dict.fromkeys(CLASSES, 4)
    assert len(found.notes) == 2
    assert str(folder / "sky" / "bad.png") in found.notes[1]
    for file in (folder / "sky").iterdir():
        file.write_bytes(b"nothing")
    refused("No photo of class 'sky' can be used", unfitted().fit, folder, skip_unreadable=True)


def test_what_is_no_picture_is_refused_before_a_photo_is_seen(tmp_path):
    class Never(nn.Module):
        def forward(self, images):
            raise AssertionError("the network was asked")

    folder = write_folder(tmp_path / "photos")
    shutil.copy(folder / "sky" / "0.png", folder / "loose.png")
    (folder / "sky" / "notes.txt").write_text("x")
    for name in ("grass", "sky"):
        (folder / name / "a.jpg").touch()
    (folder / "sky" / "cut.png").write_bytes((folder / "sky" / "0.png").read_bytes()[:100])
    model = FewShotClassifier(Never(), pipeline=PIPELINE)
    with pytest.raises(DataError) as found:
        model.fit(folder)
    *others, cut, advice = str(found.value).splitlines()
    assert cut.startswith(f"{folder / 'sky' / 'cut.png'} cannot be used: it is damaged: ")
    # "These 3 photos" are the lines right above.
    assert [*others, advice] == [
        f"Not used (not in a class folder): {folder / 'loose.png'}.",
        f"Not used (unknown format .txt): {folder / 'sky' / 'notes.txt'}.",
        f"{folder / 'grass' / 'a.jpg'} cannot be used: the file is empty.",
        f"{folder / 'sky' / 'a.jpg'} cannot be used: the file is empty.",
        "Remove or replace these 3 photos, or continue without them "
        "(--skip-unreadable; skip_unreadable=True in Python).",
    ]
    assert unfitted().fit(folder, skip_unreadable=True).counts == dict.fromkeys(CLASSES, 4)


def test_files_that_are_no_photos_are_named(tmp_path):
    folder = write_folder(tmp_path / "photos")
    (folder / "sand").mkdir()
    (folder / "sky" / "notes.txt").write_text("x")
    found = unfitted().fit(folder)
    assert found.classes == CLASSES
    assert [(one.path, one.reason) for one in found.unused] == [
        (str(folder / "sand"), "an empty folder"),
        (str(folder / "sky" / "notes.txt"), "unknown format .txt"),
    ]
    assert found.notes == (
        f"Not used (an empty folder): {folder / 'sand'}.",
        f"Not used (unknown format .txt): {folder / 'sky' / 'notes.txt'}.",
    )


def test_progress_is_told(tmp_path):
    progress = RecordedProgress()
    unfitted().fit(support(), progress=progress)
    assert (progress.moments[-1].done, progress.moments[-1].total) == (12, 12)


def test_any_module_serves_and_is_left_alone():
    class Flat(nn.Module):
        def forward(self, images):
            return images.mean((2, 3))

    flat = Flat()
    found = FewShotClassifier(flat, pipeline="resize 8, centre_crop 8, normalise none").fit(support())
    assert found.features(picture("sky", 1)).shape == (1, 3)
    assert found.predict(picture("sky", 9)).label == "sky"
    refused("needs its preprocessing", FewShotClassifier, network())
    refused("must not be random", FewShotClassifier, network(), pipeline="resize 32, flip, normalise none")

    class Wrong(nn.Module):
        def forward(self, images):
            return [images]

    wrong = FewShotClassifier(Wrong(), pipeline=PIPELINE)
    refused("the backbone gave list", wrong.features, picture("sky", 1))


def test_backbones_that_are_not_there(tmp_path):
    refused("no run folder or weights file .*nowhere; for a model from the Hugging Face hub write transformers:nowhere",
            FewShotClassifier, "nowhere")  # fmt: skip
    refused("There is no network 'Lite0'; did you mean lite0[?] Networks by name are lite0, lite2, lite0",
            FewShotClassifier, "Lite0")  # fmt: skip
    refused("'lite0_int8'; did you mean lite0-int8[?]", FewShotClassifier, "lite0_int8")
    refused("holds no run", FewShotClassifier, tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"no")
    refused("not a readable weights file", FewShotClassifier, tmp_path / "x.safetensors")


def test_predictions_and_changes_on_many_threads(model):
    """A prediction sees one whole fit: either the one before a change or the one after it."""
    changing = unfitted().fit(support())
    photo = picture("sky", 9)
    after = unfitted().fit({**support(), "sand": pictures("sand", 2)})
    expected = {str(model.predict(photo)), str(after.predict(photo))}
    seen, stop = set(), threading.Event()

    def ask():
        while not stop.is_set():
            seen.add(str(changing.predict(photo)))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        changing.add_class("sand", pictures("sand", 2)).forget_class("sand")
    stop.set()
    for thread in threads:
        thread.join()
    assert seen <= expected
