"""The API as a program uses it: classes in, predictions out."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families as parsed

CHARACTERS = ("g", "&", "Ж")


def test_health_tells_whether_there_is_a_classifier(visitor) -> None:
    assert visitor.get("/health").json() == {"status": "ok", "fitted": False}
    visitor.teach("g", "&")
    visitor.fit()
    assert visitor.get("/health").json() == {"status": "ok", "fitted": True}


def test_openapi_describes_every_route_and_the_forms(visitor) -> None:
    document = visitor.get("/openapi.json").json()
    assert document["info"]["version"] == version("e3bm")
    assert set(document["paths"]) == {
        "/health", "/metrics", "/workspace", "/classes", "/classes/{number}", "/classes/{number}/photos",
        "/classes/{number}/photos/{photo}", "/photos/{photo}/picture", "/fit", "/predict", "/model", "/model.onnx",
    }  # fmt: skip
    form = document["paths"]["/predict"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(form["properties"]) == {"photos", "together", "coverage", "recall", "pictures"}


def test_the_probabilities_are_those_of_python(visitor, glyph_png, quick) -> None:
    visitor.teach(*CHARACTERS)
    visitor.fit()
    asked = [glyph_png(character, number) for character in CHARACTERS for number in (7, 8)]
    told = visitor.photos("/predict", *asked).json()["predictions"]
    in_python = quick().fit({name: [glyph_png(name, number) for number in range(4)] for name in CHARACTERS})
    for one, expected in zip(told, in_python.predict(asked), strict=True):
        assert one["label"] == expected.label
        assert one["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
        assert (one["unknown"], one["disagreement"]) == (expected.unknown, pytest.approx(expected.disagreement))
        assert one["confidence"] == one["probabilities"][one["label"]]


def test_sets_and_the_threshold_of_unknown_photos_can_be_asked_for(visitor, glyph_png) -> None:
    visitor.teach(*CHARACTERS)
    visitor.fit()
    photo = glyph_png(CHARACTERS[0], 7)
    plain = visitor.photos("/predict", photo).json()
    assert plain["note"] is None
    assert plain["predictions"][0]["prediction_set"] is None
    asked = visitor.photos("/predict", photo, coverage="0.99", recall="0.5").json()
    (found,) = asked["predictions"]
    assert set(found["prediction_set"]) == set(CHARACTERS)
    assert "contains every class" in asked["note"]
    assert found["unknown"] == (found["unknown_score"] > 0.5)
    for words in ({"coverage": "2"}, {"recall": "much"}, {"recall": "0.1"}, {"coverage": "0.9", "together": "true"}):
        assert visitor.photos("/predict", photo, **words).status_code == 422
    assert visitor.photos("/predict", photo, note="x").json()["error"] == (
        "There is no field 'note' here; this form takes files in the field 'photos', and the fields 'together', "
        "'coverage', 'recall', 'pictures'."
    )


def test_photos_are_used_together_only_when_asked(visitor, glyph_png, quick) -> None:
    visitor.teach(*CHARACTERS, shots=1)
    visitor.fit()
    assert visitor.get("/workspace").json()["together"]
    asked = [glyph_png(character, number) for character in CHARACTERS for number in range(2, 9)]
    apart, used = (visitor.photos("/predict", *asked, together=word).json() for word in ("false", "true"))
    assert (apart["together"], used["together"], used["note"]) == (False, True, None)
    alone, together = apart["predictions"], used["predictions"]
    model = quick().fit({name: [glyph_png(name, 0)] for name in CHARACTERS})
    for one, expected in zip(together, model.predict_batch(asked), strict=True):
        assert one["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
    assert visitor.photos("/predict", asked[0]).json()["predictions"][0] == alone[0]
    assert visitor.photos("/predict", asked[0], together="perhaps").status_code == 422


def test_photos_of_one_class_are_not_used_together_and_the_answer_says_so(visitor, glyph_png) -> None:
    visitor.teach(*CHARACTERS)
    visitor.fit()
    asked = [glyph_png(CHARACTERS[0], number) for number in range(4, 9)]
    apart, asked_together = (visitor.photos("/predict", *asked, together=word).json() for word in ("false", "true"))
    assert not asked_together["together"]
    assert "only one or a few of the 3 classes, so they were answered separately" in asked_together["note"]
    for one, expected in zip(asked_together["predictions"], apart["predictions"], strict=True):
        assert one["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_the_photos_that_mattered_are_named(visitor, glyph_png) -> None:
    visitor.teach("g", "&")
    visitor.fit()
    held = {(number, one["name"]) for one in visitor.get("/workspace").json()["classes"] for number in one["photos"]}
    (told,) = visitor.photos("/predict", glyph_png("g", 7)).json()["predictions"]
    assert {(one["photo"], one["class_name"]) for one in told["influences"]} == held
    sizes = [abs(one["weight"]) for one in told["influences"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(one["weight"] for one in told["influences"]) > 0


def test_the_workspace_shows_rates_votes_and_whether_the_fit_is_fresh(visitor, glyph_png) -> None:
    numbers = visitor.teach("g", "&")
    fitted = visitor.fit()
    assert fitted["fresh"]
    assert fitted["classes"] == ["&", "g"]
    assert len(fitted["rates"]) == len(fitted["votes"]) > 1
    visitor.photos(f"/classes/{numbers['g']}/photos", glyph_png("g", 9))
    assert not visitor.get("/workspace").json()["model"]["fresh"]
    assert visitor.fit()["fresh"]


def test_a_class_is_added_later_and_forgotten(visitor, glyph_png) -> None:
    numbers = visitor.teach("g", "&")
    visitor.fit()
    numbers |= visitor.teach("Ж")
    visitor.fit()
    (told,) = visitor.photos("/predict", glyph_png("Ж", 8)).json()["predictions"]
    assert told["label"] == "Ж"
    assert visitor.delete(f"/classes/{numbers['Ж']}").status_code == 204
    # What was learned from a forgotten class is gone at once.
    assert visitor.photos("/predict", glyph_png("Ж", 8)).status_code == 409
    assert visitor.fit()["classes"] == ["&", "g"]


def test_a_photo_is_removed_and_the_fit_equals_one_without_it(visitor, glyph_png) -> None:
    numbers = visitor.teach("g", "&")
    without = visitor.fit()
    (extra,) = visitor.photos(f"/classes/{numbers['g']}/photos", glyph_png("Ж", 1)).json()["photos"]
    assert visitor.fit()["rates"] != without["rates"]
    assert visitor.delete(f"/classes/{numbers['g']}/photos/{extra}").status_code == 204
    assert visitor.get("/workspace").json()["model"] is None
    assert visitor.fit()["rates"] == without["rates"]


def test_a_wrong_label_is_pointed_out(visitor) -> None:
    dark, light = (visitor.post("/classes", json={"name": name}).json()["id"] for name in ("dark", "light"))
    visitor.photos(f"/classes/{dark}/photos", *[speckled(50, seed) for seed in range(8)])
    visitor.photos(f"/classes/{light}/photos", *[speckled(200, seed) for seed in range(8)])
    (wrong,) = visitor.photos(f"/classes/{dark}/photos", speckled(200, 9)).json()["photos"]
    doubts = visitor.fit()["doubts"]
    assert [(doubt["photo"], doubt["looks_like"]) for doubt in doubts] == [(wrong, "light")]


def speckled(level: int, seed: int) -> bytes:
    """A PNG that is dark on the left and of this level on the right, with some noise."""
    pixels = np.full((28, 28), 50.0)
    pixels[:, 14:] = level
    pixels += np.random.default_rng(seed).normal(0, 8, pixels.shape)
    written = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(written, "PNG")
    return written.getvalue()


def test_empty_classes_wait_until_they_have_photos(visitor) -> None:
    visitor.teach("g", "&")
    visitor.post("/classes", json={"name": "later"})
    assert visitor.fit()["classes"] == ["&", "g"]


@pytest.mark.parametrize(
    ("ask", "status", "words"),
    [
        (lambda visitor: visitor.post("/fit", params={"wait": 0}), 422, "two or more classes"),
        (lambda visitor: visitor.photos("/predict", b"x"), 409, "fit it first"),
        (lambda visitor: visitor.get("/model"), 409, "fit it first"),
        (lambda visitor: visitor.photos("/classes/999/photos", b"x"), 404, "999"),
        (lambda visitor: visitor.delete("/classes/999"), 404, "999"),
        (lambda visitor: visitor.post("/classes", json={"name": " "}), 422, "visible"),
        (lambda visitor: visitor.post("/classes", json={"name": "two\nlines"}), 422, "line breaks"),
        (lambda visitor: visitor.post("/classes", json={"name": "x" * 999}), 422, "name"),
        (lambda visitor: visitor.post("/classes", json={"nom": "x"}), 422, "name"),
        (lambda visitor: visitor.post("/classes", content=b'{"\\ud800": 1}'), 422, ""),
        (lambda visitor: visitor.post("/predict"), 409, "fit it first"),
        (lambda visitor: visitor.get("/nothing/../../etc/passwd"), 404, "nothing at this address"),
        (lambda visitor: visitor.put("/health"), 405, "does not take PUT; /openapi.json lists what it takes"),
    ],
)
def test_what_is_wrong_is_one_sentence(visitor, ask: Callable, status: int, words: str) -> None:
    answer = ask(visitor)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    told = answer.json()["error"]
    assert words in told
    assert told.endswith(".")
    assert "\n" not in told


def test_names_that_look_the_same_are_one_class(visitor) -> None:
    assert visitor.post("/classes", json={"name": "Caf\u00e9"}).status_code == 201
    for same in ("Cafe\u0301", " Café ", "CAFÉ"):
        assert visitor.post("/classes", json={"name": same}).status_code == 409


def test_a_bad_photo_is_named_and_nothing_is_kept_of_its_request(visitor, glyph_png) -> None:
    number = visitor.post("/classes", json={"name": "g"}).json()["id"]
    answer = visitor.photos(f"/classes/{number}/photos", glyph_png("g", 1), b"no image at all")
    assert answer.status_code == 422
    assert "1.png" in answer.json()["error"]
    assert visitor.get("/workspace").json()["classes"][0]["photos"] == []


def test_a_photo_of_a_phone_is_read(visitor) -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="the extra `pretrained` is not installed")
    number = visitor.post("/classes", json={"name": "g"}).json()["id"]
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    written = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(written)
    assert visitor.photos(f"/classes/{number}/photos", written.getvalue()).status_code == 201
    damaged = written.getvalue()[: len(written.getvalue()) // 2]
    assert "cannot be used" in visitor.photos(f"/classes/{number}/photos", damaged).json()["error"]


def test_a_decoder_that_gives_up_in_its_own_way_is_a_sentence(visitor) -> None:
    number = visitor.post("/classes", json={"name": "g"}).json()["id"]
    unknown_format = b"DDS " + (124).to_bytes(4, "little") + bytes(120)  # Pillow raises NotImplementedError
    answer = visitor.photos(f"/classes/{number}/photos", unknown_format)
    assert answer.status_code == 422
    assert "0.png cannot be used" in answer.json()["error"]


def test_predictions_go_on_while_fits_are_made(visitor, glyph_png) -> None:
    visitor.teach(*CHARACTERS, shots=8)
    first = visitor.fit()
    asked = glyph_png("Ж", 9)
    expected = visitor.photos("/predict", asked).json()
    done = threading.Event()

    def fit_again() -> list[dict]:
        found = [visitor.fit() for _ in range(6)]
        done.set()
        return found

    with ThreadPoolExecutor(5) as threads:
        fits = threads.submit(fit_again)
        answers = [threads.submit(visitor.photos, "/predict", asked) for _ in range(24)]
        assert all(answer.result().json() == expected for answer in answers)
        assert all(fit == first for fit in fits.result())
    assert done.is_set()


def test_metrics_count_requests_errors_and_memory(visitor) -> None:
    visitor.get("/nothing")
    answer = visitor.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [sample for family in parsed(answer.text) for sample in family.samples]
    values = {sample.name: sample.value for sample in samples if not sample.labels}
    requests = [sample for sample in samples if sample.name == "e3bm_requests_total"]
    labels = {"method": "GET", "route": "other", "status": "404"}
    assert [sample.value >= 1 for sample in requests if sample.labels == labels] == [True]
    assert values["e3bm_errors_total"] == 0
    assert values["e3bm_requests_in_flight"] == 1
    assert values["process_resident_memory_bytes"] > 10_000_000
    total = sum(sample.value for sample in requests)
    assert values["e3bm_request_seconds_count"] == total
    (everything,) = (sample for sample in samples if sample.labels == {"le": "+Inf"})
    assert (everything.name, everything.value) == ("e3bm_request_seconds_bucket", total)


def test_metrics_come_as_openmetrics_where_that_is_asked_for(visitor) -> None:
    answer = visitor.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
