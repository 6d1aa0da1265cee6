"""The .e3bm file: what goes in comes out to the last bit; what is not one is refused, and nothing in it runs."""

import io
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from e3bm import FewShotClassifier
from e3bm.errors import CheckpointError, E3BMError
from e3bm.fewshot.model_file import ABOUT, DIGEST, VIEWS, parse_fit, read_model
from e3bm.fewshot.prior.file import SHIPPED
from e3bm.runs.folder.tensor_files import update_by_tensors
from photo_models import CLASSES, network, picture, pictures, same_fit, support, unfitted

ASKED = [picture(name, number) for name in CLASSES for number in (20, 21)]


@pytest.fixture(scope="module")
def model(pretrained_run):
    return FewShotClassifier(pretrained_run).fit(support())


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "model.e3bm"
    model.save(path)
    return path


def test_a_file_holds_everything(model, file):
    found = FewShotClassifier.load(file)
    assert found.to_bytes() == model.to_bytes() == file.read_bytes()
    assert found.predict(ASKED, coverage=0.9) == model.predict(ASKED, coverage=0.9)
    assert (found.classes, found.counts, found.left_out_accuracy) == (CLASSES, model.counts, model.left_out_accuracy)
    assert np.array_equal(found.rates, model.rates)
    assert np.array_equal(found.votes, model.votes)
    assert FewShotClassifier.from_bytes(file.read_bytes()).predict(ASKED) == model.predict(ASKED)


def arrays_of(value, place="fitted"):
    """Every tensor and array that a record holds, by its place in it."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return {place: value}
    if is_dataclass(value):
        inside = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        inside = value if isinstance(value, Mapping) else {}
    return {name: one for key, part in inside.items() for name, one in arrays_of(part, f"{place}.{key}").items()}


def layout(model):
    """Type, shape, strides and alignment of every number that a classifier holds, and of its network's weights."""
    held = arrays_of(model.fitted) | dict(model.extractor.network.state_dict())
    tensors = {name: torch.as_tensor(value) for name, value in held.items()}
    return {
        name: (
            value.dtype,
            tuple(value.shape),
            value.stride() if value.numel() else None,  # no numbers lie nowhere
            (isinstance(held[name], np.ndarray) and ".ensemble." not in name) or aligned(value),
        )
        for name, value in tensors.items()
    }


def aligned(value):
    return value.data_ptr() % 64 == 0


@pytest.mark.parametrize("kind", ["photos", "features in columns", "one shot"])
def test_fitted_and_loaded_models_hold_their_numbers_in_one_form(pretrained_run, tmp_path, kind):
    made = FewShotClassifier(pretrained_run)
    if kind == "photos":
        made.fit(support())
    else:
        shots = {name: made.features(photos) for name, photos in support(1 if kind == "one shot" else 4).items()}
        made.fit_features({name: np.asfortranarray(rows.astype(np.float64)) for name, rows in shots.items()})
    made.save(tmp_path / "model.e3bm")
    loaded = {
        "file": FewShotClassifier.load(tmp_path / "model.e3bm"),
        "bytes": FewShotClassifier.from_bytes(made.to_bytes()),
        "pickle": pickle.loads(pickle.dumps(made)),
        "copy": deepcopy(made),
    }
    expected = layout(made)
    assert len(arrays_of(made.fitted)) == 13 + len(CLASSES)
    for name, value in arrays_of(made.fitted).items():
        assert torch.as_tensor(value).is_contiguous(), name
        assert ".ensemble." not in name or aligned(torch.as_tensor(value)), name
    for way, found in loaded.items():
        assert layout(found) == expected, way
        assert found.to_bytes() == made.to_bytes()
        rows = made.features(ASKED)
        assert found.predict_features(rows, coverage=0.9) == made.predict_features(rows, coverage=0.9), way
        assert found.predict_batch(ASKED) == made.predict_batch(ASKED), way


def test_a_model_keeps_no_memory_of_others(tmp_path):
    rows = {name: unfitted().features(photos) for name, photos in support().items()}
    made = unfitted().fit_features(rows)
    made.save(tmp_path / "model.e3bm")
    loaded = FewShotClassifier.load(tmp_path / "model.e3bm", backbone=network())
    before = made.to_bytes()
    for some in rows.values():
        some[:] = 0
    with (tmp_path / "model.e3bm").open("r+b") as file:  # the same file: a mapped one would change with it
        file.write(b"\0" * len(before))
    assert made.to_bytes() == loaded.to_bytes() == before


def test_nothing_of_the_photos_is_in_the_file(pretrained_run, tmp_path):
    folder = tmp_path / "secret place"
    for name, photos in support().items():
        (folder / name).mkdir(parents=True)
        for number, pixels in enumerate(photos):
            Image.fromarray(pixels).save(folder / name / f"holiday {number}.png")
    content = FewShotClassifier(pretrained_run).fit(folder).to_bytes()
    assert b"secret place" not in content
    assert b"holiday" not in content


def test_changes_after_loading_equal_a_fit_from_scratch(pretrained_run, file):
    found = FewShotClassifier.load(file).add_class("sand", pictures("sand", 2)).forget_class("sky")
    scratch = {**support(names=("brick", "grass")), "sand": pictures("sand", 2)}
    assert same_fit(found, FewShotClassifier(pretrained_run).fit(scratch))


def test_support_features_can_be_dropped(model, tmp_path):
    path = tmp_path / "small.e3bm"
    model.save(path, keep_support=False)
    found = FewShotClassifier.load(path)
    assert found.predict(ASKED) == model.predict(ASKED)
    assert not any(name.startswith("support") for name in read_model(path)[1])
    for change in (lambda: found.add_class("sand", pictures("sand", 1)), lambda: found.forget_class("sky")):
        with pytest.raises(E3BMError, match=r"saved without the features .* cannot change its classes; fit it again"):
            change()
    with pytest.raises(E3BMError, match="cannot say which photos mattered"):
        found.influences(ASKED[0])


def test_small_pictures_are_held_only_if_asked_for_and_stay_with_their_photos(pretrained_run, tmp_path):
    assert FewShotClassifier(pretrained_run).fit(support()).fitted.pictures == ()
    large = {name: [np.asarray(Image.fromarray(one).resize((600, 300))) for one in some]
             for name, some in support(2).items()}  # fmt: skip
    made = FewShotClassifier(pretrained_run).fit(large, small_pictures=True)
    for small, pixels in zip(made.fitted.pictures, [one for some in large.values() for one in some], strict=True):
        with Image.open(io.BytesIO(small)) as image:
            assert (image.format, image.size) == ("JPEG", (192, 96))
            expected = np.asarray(Image.fromarray(pixels).resize(image.size), float)
            assert np.abs(np.asarray(image, float) - expected).mean() < 20

    # Saved, loaded and changed: nothing is lost, and what is added has one too.
    made.save(tmp_path / "m.e3bm")
    found = FewShotClassifier.load(tmp_path / "m.e3bm")
    found.save(tmp_path / "again.e3bm", small_pictures=True)
    assert (tmp_path / "again.e3bm").read_bytes() == (tmp_path / "m.e3bm").read_bytes()
    found.correct(large["sky"][0], "grass").add_class("sand", pictures("sand", 1)).add_shots("sky", picture("sky", 9))
    brick, grass, sky = (made.fitted.pictures[place : place + 2] for place in (0, 2, 4))
    held = {name: some.pictures for name, some in found.fitted.support.shots.items()}
    assert (held["brick"], held["grass"]) == (brick, (*grass, sky[0]))
    assert (held["sky"][0], len(held["sky"])) == (sky[1], 2)
    assert all(one.startswith(b"\xff\xd8") for some in held.values() for one in some)
    assert sky[1] not in found.forget_class("sky").to_bytes()

    # Left out where that is said, and with everything else of single photos.
    plain = FewShotClassifier(pretrained_run).fit(large)
    assert made.to_bytes(small_pictures=False) == plain.to_bytes()
    assert made.to_bytes(keep_support=False) == plain.to_bytes(keep_support=False)
    for refused in (
        lambda: plain.to_bytes(small_pictures=True),
        lambda: made.to_bytes(keep_support=False, small_pictures=True),
    ):
        with pytest.raises(E3BMError, match=r"no small pictures to save; .* fit\(photos, small_pictures=True\)"):
            refused()


def test_doubtful_photos_have_numbers_for_names(pretrained_run, tmp_path):
    photos = support(6)
    photos["grass"].insert(2, picture("sky", 50))
    for keep in (True, False):
        FewShotClassifier(pretrained_run).fit(photos).save(tmp_path / "model.e3bm", keep_support=keep)
        assert [one.name for one in FewShotClassifier.load(tmp_path / "model.e3bm").suspicions] == ["grass #3"]


def test_networks_of_users_come_back_with_the_same_weights_only(tmp_path):
    path = tmp_path / "own.e3bm"
    own = unfitted().fit(support())
    own.save(path)
    with pytest.raises(CheckpointError, match=r"the user's own network \(Conv4\).*load\(.*backbone=network\)"):
        FewShotClassifier.load(path)
    assert FewShotClassifier.load(path, backbone=network()).predict(ASKED) == own.predict(ASKED)
    other = network()
    with torch.no_grad():
        next(iter(other.parameters())).add_(1e-3)
    with pytest.raises(CheckpointError, match="weights are not those it was made with"):
        FewShotClassifier.load(path, backbone=other)


def test_a_prior_of_ones_own_is_asked_for_before_classes_change(pretrained_run, tmp_path):
    prior = tmp_path / "prior.safetensors"
    prior.write_bytes(SHIPPED.read_bytes())
    path = tmp_path / "model.e3bm"
    FewShotClassifier(pretrained_run, prior=prior).fit(support()).save(path)
    assert FewShotClassifier.load(path).forget_class("sky").classes == ("brick", "grass")  # the same numbers
    about, tensors = read_tensors(path)
    about["prior"]["digest"] = "another"
    rewrite(path, about, tensors)
    with pytest.raises(E3BMError, match=r"different prior; .*prior=FILE"):
        FewShotClassifier.load(path).forget_class("sky")


def read_tensors(path):
    """What a file says, and its arrays as tensors: torch has types that NumPy does not have."""
    about, arrays = read_model(path)
    return about, {name: torch.from_numpy(value) for name, value in arrays.items()}


def rewrite(path, about, tensors):
    """A file that is whole, whatever it says."""
    digest = sha256(json.dumps(about, sort_keys=True).encode())
    update_by_tensors(digest, tensors)
    text = json.dumps({**about, DIGEST: digest.hexdigest()}, sort_keys=True)
    path.write_bytes(safetensors.torch.save(tensors, {ABOUT: text}))


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("format", "else", "is not a model file; `e3bm fit` makes one"),
        ("version", 2, "version 2, this e3bm reads version 1"),
        ("classes", ["a", "b"], "cannot be used"),
        ("classes", ["a", "b", "two\nlines"], "line breaks"),
        ("classes", ["brick", "brick", "sky"], "cannot be used"),
        ("classes", 3, "cannot be used"),
        ("counts", [4, 4, 10**9], "does not fit the head"),
        ("counts", [4, 4, -1], "numbers of photos"),
        ("temperature", -1.0, "not usable number"),
        ("temperature", "hot", "cannot be used"),
        ("temperature", 1e-320, "not usable number"),
        ("temperature", 1e300, "not usable number"),
        ("backbone.settings", "conv4", "not an object"),
        ("backbone.settings", None, "not an object"),
        ("backbone.name", ["x"], "not text"),
        ("threshold", float("nan"), "not usable number"),
        ("levels", [0.0] * 3, "cannot be used"),
        ("levels", [float("nan")] * 11, "not usable number"),
        ("trust", {}, "cannot be used"),
        ("options", {"recall": 7}, "recall"),
        ("suspicions", [{"position": 99, "label": 0, "looks_like": 1, "odds": 2}], "calls a photo doubtful"),
        ("pipeline", "resize 1000000, centre_crop 16, normalise cifar", "not one for photos"),
        ("pipeline", "channels 1000000, normalise none", "not one for photos"),
        ("pipeline", "flip, normalise cifar", "not one for photos"),
        ("pipeline", ", ".join(["invert"] * 9) + ", normalise cifar", "9 steps"),
        ("pipeline", "nonsense", "ends with 'normalise NAME'"),
        ("backbone.kind", "magic", "unknown kind"),
        ("backbone.kind", "package", "cannot be used"),
        ("backbone.settings", {"name": "resnet12", "width": 1.0, "image_size": 16}, "do not fit a resnet12"),
        ("backbone.settings", {"name": "nothing", "width": 1.0, "image_size": 16}, "nothing"),
        ("backbone.settings", {"name": "conv4", "width": 1e9, "image_size": 16}, "width"),
        ("backbone.settings", {"name": "conv4", "width": 0.25, "image_size": 10**9}, "image_size"),
        ("backbone.digest", "0" * 64, "weights are not those"),
        ("backbone.channels", 10**9, "do not fit"),
        ("backbone", [], "cannot be used"),
    ],
)
def test_files_that_contradict_themselves_are_refused(file, place, value, sentence):
    about, tensors = read_tensors(file)
    *groups, last = place.split(".")
    group = about
    for name in groups:
        group = group[name]
    group[last] = value
    rewrite(file, about, tensors)
    with pytest.raises(CheckpointError, match=sentence):
        FewShotClassifier.load(file)


@pytest.mark.parametrize("name", ["head.weight", "head.centre", "head.facts", "support.features"])
def test_tensors_of_other_shapes_or_numbers_are_refused(file, name):
    about, tensors = read_tensors(file)
    for value in (tensors[name][..., :-1].contiguous(), torch.full_like(tensors[name], torch.nan)):
        rewrite(file, about, {**tensors, name: value})
        with pytest.raises(CheckpointError, match="cannot be used"):
            FewShotClassifier.load(file)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.uint8])
@pytest.mark.parametrize("part", ["head.", "backbone.", "support.", "head.weight", "misfits"])
def test_weights_of_another_type_are_refused(file, part, dtype):
    about, tensors = read_tensors(file)
    changed = {name: value.to(dtype) if name.startswith(part) else value for name, value in tensors.items()}
    rewrite(file, about, changed)
    with pytest.raises(CheckpointError, match="cannot be used"):
        FewShotClassifier.load(file)


def test_a_backbone_of_double_precision_is_refused(file):
    about, tensors = read_tensors(file)
    rewrite(file, about, {n: v.double() if n.startswith("backbone.") else v for n, v in tensors.items()})
    with pytest.raises(CheckpointError, match=r"are torch\.float64, expected torch\.float32"):
        FewShotClassifier.load(file)


def test_a_header_that_nests_is_refused(file):
    content = file.read_bytes()
    for word in (b"[" * 100_000, b'{"a":' * 100_000):
        file.write_bytes(len(word).to_bytes(8, "little") + word + content[8:])
        with pytest.raises(CheckpointError, match="or damaged"):
            FewShotClassifier.load(file)


@pytest.mark.parametrize("name", ["head.weight", "misfits", "backbone.blocks.0.conv.weight"])
def test_missing_tensors_are_refused(file, name):
    about, tensors = read_tensors(file)
    del tensors[name]
    rewrite(file, about, tensors)
    with pytest.raises(CheckpointError, match="cannot be used"):
        FewShotClassifier.load(file)


def test_what_is_no_model_file_is_refused(file, tmp_path):
    def refused(path, sentence):
        with pytest.raises(CheckpointError, match=sentence):
            FewShotClassifier.load(path)

    content = file.read_bytes()
    refused(tmp_path / "none.e3bm", r"There is no model file .* `e3bm fit PHOTOS --out .*none.e3bm` makes one")
    refused(tmp_path, "is a folder; expected a model file")
    for wrong in (b"", b"text", content[:100], content[:-10], content + b"more", b"\xff" * 100, b"\x80" + b"\0" * 400):
        file.write_bytes(wrong)
        refused(file, "is not a model file, or damaged; `e3bm fit` makes one")
    safetensors.torch.save_file({"a": torch.zeros(1)}, file)
    refused(file, "is not a model file; `e3bm fit` makes one")
    refused(SHIPPED, "is not a model file; `e3bm fit` makes one")
    middle = len(content) // 2
    file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    refused(file, "damaged: its content is not what was saved")


def test_not_even_bytes_that_mean_the_same_may_change(model, tmp_path):
    content = model.to_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    text = content[:header]
    last_digits = [place.end() - 1 for place in re.finditer(rb"\d\.\d{17,}", text)]
    others = [(place, content[place] ^ 1) for place in last_digits]
    others += [(place, ord("\n")) for place in range(header - 8, header) if content[place] == ord(" ")]
    assert len(others) > 10
    for place, byte in others:
        changed = content[:place] + bytes([byte]) + content[place + 1 :]
        (tmp_path / "changed.e3bm").write_bytes(changed)
        with pytest.raises(CheckpointError, match="damaged"):
            FewShotClassifier.from_bytes(changed)
        with pytest.raises(CheckpointError, match="damaged"):
            FewShotClassifier.load(tmp_path / "changed.e3bm")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_flipped_byte_goes_unseen(model, data):
    content = bytearray(model.to_bytes())
    place = data.draw(st.integers(0, min(len(content) - 1, 6000)))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CheckpointError):
        FewShotClassifier.from_bytes(bytes(content))


def test_files_of_others_are_not_written_over(model, tmp_path):
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"a photo")
    with pytest.raises(CheckpointError, match="exists but is not a model file; it was left unchanged"):
        model.save(photo)
    assert photo.read_bytes() == b"a photo"
    with pytest.raises(CheckpointError, match="is a folder; give the name of a model file"):
        model.save(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be written"):
        model.save(photo / "inside.e3bm")


CHAIN = """
import json, sys
import numpy as np, onnxruntime, torch
torch.set_num_threads(1)
from e3bm import FewShotClassifier
from e3bm.fewshot.onnx_export import export_onnx
photos, *paths = sys.argv[1:]
asked = np.load(photos)
for path in paths:
    model, out = FewShotClassifier.load(path), path + ".onnx"
    made = export_onnx(model, out)
    session = onnxruntime.InferenceSession(out)
    pixels = np.stack([model.extractor.pipeline.photo_steps(photo) for photo in asked])
    together, label, unknown, score, apart, sure = session.run(None, {"pixels": pixels})
    alone = session.run(None, {"pixels": pixels[:1]})[0]
    said = model.predict(list(asked))
    assert [model.classes[number] for number in label] == [one.label for one in said]
    assert unknown.tolist() == [one.unknown for one in said]
    assert np.abs(apart - [one.disagreement for one in said]).max() < 1e-5
    assert np.abs(score - [one.unknown_score for one in said]).max() < 1e-5
    assert np.abs(sure - [one.confidence for one in said]).max() < 1e-5
    about = session.get_modelmeta().custom_metadata_map
    print(json.dumps({
        "loaded": model.predict_proba(asked).tolist(), "onnx": together.tolist(), "alone": alone.tolist(),
        "difference": made.difference, "shape": made.inputs["pixels"], "classes": json.loads(about["classes"]),
        "preprocessing": about["preprocessing"], "modules": "e3bm.paper" in sys.modules,
    }))
"""


def same_in_a_new_process(models, asked, folder: Path):
    """Save, load in another process, export there, and compare all three; one process, which takes a while to start."""
    np.save(folder / "asked.npy", asked)
    paths = [folder / f"model{number}.e3bm" for number in range(len(models))]
    for model, path in zip(models, paths, strict=True):
        model.save(path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHAIN, str(folder / "asked.npy"), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()[-len(models) :]]
    for model, found in zip(models, told, strict=True):
        here = model.predict_proba(asked)
        assert np.abs(np.array(found["loaded"]) - here).max() < 1e-6
        assert np.abs(np.array(found["onnx"]) - here).max() < 1e-5
        assert np.abs(np.array(found["alone"]) - here[:1]).max() < 1e-5
        assert found["difference"] < 1e-5
        assert tuple(found["classes"]) == model.classes
        assert found["preprocessing"] == str(model.extractor.pipeline)
    return told


def test_saved_loaded_in_a_new_process_and_exported_it_says_the_same(model, tmp_path):
    """With one view of a photo and with two."""
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    made = [FewShotClassifier(model.extractor, views=views).fit(support()) for views in (1, 2)]
    found = same_in_a_new_process(made, np.stack(ASKED), tmp_path)
    assert [one["shape"] for one in found] == [[16, 16, 3]] * 2


def test_the_number_of_views_is_kept_in_the_file(model, tmp_path):
    made = FewShotClassifier(model.extractor, views=2).fit(support())
    made.save(tmp_path / "two.e3bm")
    loaded = FewShotClassifier.load(tmp_path / "two.e3bm")
    assert loaded.extractor.views == 2
    assert loaded.predict(ASKED) == made.predict(ASKED)
    assert FewShotClassifier.from_bytes(made.to_bytes(), backbone=model.extractor).extractor.views == 2
    # A file that says nothing of views, as all older ones, has one.
    assert VIEWS not in read_model(tmp_path / "one.e3bm", model.to_bytes())[0]
    assert FewShotClassifier.from_bytes(model.to_bytes(), backbone=made.extractor).extractor.views == 1


@pytest.mark.parametrize("views", [0, 3, "two", None])
def test_a_file_with_other_views_is_refused(file, tmp_path, views):
    about, tensors = read_tensors(file)
    changed = tmp_path / "changed.e3bm"
    rewrite(changed, {**about, VIEWS: views}, tensors)
    with pytest.raises(CheckpointError, match=r"changed.e3bm cannot be used: Photos have 1 view"):
        FewShotClassifier.load(changed)


@pytest.mark.slow
def test_the_same_with_real_features_of_bird_photos(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'pretrained' is not installed")
    if "E3BM_TEST_DATA" not in os.environ:
        pytest.skip("E3BM_TEST_DATA does not name the folder of real data")
    from e3bm.data.read.photos import photo_pixels, photos_by_class

    with photos_by_class(Path(os.environ["E3BM_TEST_DATA"]) / "birds_photos.zip") as found:
        some = dict(list(found.by_class.items())[:3])
        model = FewShotClassifier().fit({name: photos[:3] for name, photos in some.items()})
        asked = [photo_pixels(photos[10])[:200, :200] for photos in some.values()]
    same_in_a_new_process([model], np.stack(asked), tmp_path)
    assert (tmp_path / "model0.e3bm").stat().st_size < 2_000_000  # the name and digest of the weights, not the weights


def test_a_file_of_an_older_version_keeps_its_temperature_and_threshold(file, tmp_path):
    about, tensors = read_tensors(file)
    fresh = parse_fit(file, *read_model(file)).head
    del about["levels"]
    about["trust"] = {
        "known": about["trust"]["known"],
        "centre": [0.0] * 5,
        "spread_levels": [0.01, 0.05, 0.5],
        "spread_values": [-2.0, -1.0, 0.0],
    }
    older = tmp_path / "older.e3bm"
    rewrite(older, about, tensors)
    head = parse_fit(older, *read_model(older)).head
    assert head.temperature == fresh.temperature
    assert head.threshold == pytest.approx(fresh.threshold)
    assert head.with_recall(0.99).threshold == pytest.approx(fresh.threshold - 1)
