"""What the page does beyond teaching and asking: renaming, moving, small pictures, files to take away, odd requests."""

import io
import struct
import zlib
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from e3bm.errors import DataError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.exchange import Upload
from e3bm.serving.kept.workspace import Workspace
from e3bm.serving.settings import ServeSettings
from e3bm.serving.work.models import open_model
from photo_models import picture, support, unfitted


def names(visitor) -> dict[str, list[int]]:
    return {one["name"]: one["photos"] for one in visitor.get("/workspace").json()["classes"]}


def with_header(width: int, height: int) -> bytes:
    """A PNG that says it has so many pixels, and holds none."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    begin = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return begin + struct.pack(">I", 100) + b"IDAT" + bytes(104)


def test_a_renamed_class_has_its_new_name_in_the_fit_which_else_stays_as_it_is(visitor, glyph_png, quick) -> None:
    numbers = visitor.teach("g", "&", "Ж")
    assert visitor.photos(f"/classes/{numbers['Ж']}/photos", glyph_png("&", 9)).status_code == 201  # a doubtful label
    before = visitor.fit()
    (asked,) = visitor.photos("/predict", glyph_png("&", 7)).json()["predictions"]
    answer = visitor.patch(f"/classes/{numbers['&']}", json={"name": " the  ampersand "})
    assert (answer.status_code, answer.json()["name"]) == (200, "the ampersand")

    now_called = lambda name: "the ampersand" if name == "&" else name
    (doubt,) = before["doubts"]
    assert visitor.get("/workspace").json()["model"] == {
        **before,
        "classes": ["g", "the ampersand", "Ж"],
        "doubts": [{**doubt, "looks_like": "the ampersand"}],
    }
    (told,) = visitor.photos("/predict", glyph_png("&", 7)).json()["predictions"]
    assert told["label"] == "the ampersand"
    assert told["probabilities"] == pytest.approx(
        {now_called(name): share for name, share in asked["probabilities"].items()}, abs=1e-6
    )
    assert [one["photo"] for one in told["influences"]] == [one["photo"] for one in asked["influences"]]
    assert [one["class_name"] for one in told["influences"]] == [
        now_called(one["class_name"]) for one in asked["influences"]
    ]
    model = FewShotClassifier.from_bytes(visitor.get("/model").content, backbone=quick().extractor)
    assert model.predict(glyph_png("&", 7)).probabilities == pytest.approx(told["probabilities"], abs=1e-6)

    assert visitor.patch(f"/classes/{numbers['g']}", json={"name": "Ж"}).status_code == 409
    assert visitor.patch(f"/classes/{numbers['g']}", json={"name": "G"}).status_code == 200
    assert visitor.patch("/classes/999", json={"name": "new"}).status_code == 404


def test_a_fit_has_the_names_that_its_classes_have_when_it_is_done(quick) -> None:
    workspace, random = Workspace(quick(), ServeSettings()), np.random.default_rng(0)
    made = {name: workspace.create_class(name).number for name in ("one", "two")}
    for number in made.values():
        workspace.add_photos(number, list(random.normal(size=(3, 49)).astype(np.float32)), workspace.snapshot)
    plan = workspace.plan_fit()
    fitted = quick().fit_features(plan.features).fitted
    workspace.rename_class(made["two"], "a second one")
    assert workspace.accept_fit(plan, fitted).classifier.classes == ("a second one", "one")
    # A class that has gone lives on in the fit until the next one, which cannot call another the same.
    for photo in workspace.snapshot.find(made["one"]).photos:
        workspace.move_photo(made["one"], photo.number, made["two"])
    workspace.forget_class(made["one"])
    with pytest.raises(DataError, match="The last fit knows another class as 'one'; fit again"):
        workspace.rename_class(made["two"], "one")


def test_a_moved_photo_is_fitted_where_it_is_now(visitor, glyph_png, quick) -> None:
    numbers = visitor.teach("g", "&")
    (wrong,) = visitor.photos(f"/classes/{numbers['g']}/photos", glyph_png("&", 9)).json()["photos"]
    visitor.fit()
    place = f"/classes/{numbers['g']}/photos/{wrong}"
    moved = visitor.patch(place, json={"to": numbers["&"]})
    assert (moved.status_code, moved.json()["photos"][-1]) == (200, wrong)
    assert wrong not in names(visitor)["g"]
    assert not visitor.get("/workspace").json()["model"]["fresh"]
    visitor.fit()
    shots = {"g": range(4), "&": [*range(4), 9]}
    expected = quick().fit({name: [glyph_png(name, one) for one in some] for name, some in shots.items()})
    (told,) = visitor.photos("/predict", glyph_png("g", 7)).json()["predictions"]
    assert told["probabilities"] == pytest.approx(expected.predict(glyph_png("g", 7)).probabilities, abs=1e-5)
    assert visitor.patch(place, json={"to": numbers["&"]}).status_code == 404
    assert visitor.patch(f"/classes/{numbers['&']}/photos/{wrong}", json={"to": 999}).status_code == 404


def test_renaming_and_moving_are_kept(serve_with, tmp_path) -> None:
    kept = {"keep": tmp_path / "state"}
    with serve_with(**kept) as visitor:
        numbers = visitor.teach("g", "&")
        visitor.fit()
        visitor.patch(f"/classes/{numbers['g']}", json={"name": "letter g"})
        visitor.patch(f"/classes/{numbers['g']}/photos/{names(visitor)['letter g'][0]}", json={"to": numbers["&"]})
        state = visitor.get("/workspace").json()
        version = visitor.fit()["version"]
    with serve_with(**kept) as visitor:
        assert names(visitor) == {one["name"]: one["photos"] for one in state["classes"]}
        assert visitor.get("/workspace").json()["model"]["version"] == version
        visitor.delete("/workspace")
        visitor.teach("g", "&")
        assert visitor.fit()["version"] > version


def test_a_bad_file_does_not_fail_the_others(visitor, glyph_png) -> None:
    visitor.teach("g", "&")
    visitor.fit()
    good = [glyph_png("g", 7), glyph_png("&", 7)]
    answer = visitor.photos("/predict", good[0], b"no image", with_header(30_000, 30_000), good[1])
    assert answer.status_code == 200
    told = answer.json()["predictions"]
    assert [one.get("label") for one in told] == ["g", None, None, "&"]
    assert [set(one) for one in told[1:3]] == [{"name", "error"}] * 2
    assert "1.png cannot be used" in told[1]["error"]
    assert "2.png" in told[2]["error"]
    alone = visitor.photos("/predict", *good).json()["predictions"]
    assert [told[0]["probabilities"], told[3]["probabilities"]] == [one["probabilities"] for one in alone]
    together = visitor.photos("/predict", good[0], b"no image", good[1], together="true").json()["predictions"]
    assert "error" in together[1]
    assert together[0]["label"] == "g"
    # Where nothing can be read, nothing is answered.
    assert visitor.photos("/predict", b"no image").status_code == 422


@pytest.mark.parametrize("size", [(9_000, 9_000), (30_000, 30_000)])
def test_too_many_pixels_are_413_however_many(visitor, size) -> None:
    number = visitor.post("/classes", json={"name": "g"}).json()["id"]
    answer = visitor.photos(f"/classes/{number}/photos", with_header(*size))
    assert (answer.status_code, "0.png" in answer.json()["error"]) == (413, True)


def test_parameters_that_are_not_known_are_refused(visitor, glyph_png) -> None:
    visitor.teach("g", "&")
    visitor.fit()
    for answer in (
        visitor.post("/fit", params={"wiat": 5}),
        visitor.get("/workspace", params={"x": 1}),
        visitor.photos("/predict", glyph_png("g", 7), togehter="true"),
        visitor.get("/model", params={"picture": "true"}),
    ):
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("There is no ")
        assert " takes " in answer.json()["error"]
    assert "takes wait" in visitor.post("/fit", params={"wiat": 5}).json()["error"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "The body is not readable JSON; check its quotes, commas and brackets."),
        (b"[]", 'The body must be a JSON object, such as {"name": "duck"}, sent as application/json.'),
        (b"{}", "'name' is missing."),
        (b'{"name": 3}', "'name' must be text."),
        (b'{"name": "a", "colour": "red"}', "'colour' is not known here."),
        (b'{"name": "%s"}' % (b"x" * 300), "'name' may have 200 characters at most."),
    ],
)
def test_wrong_json_is_told_in_words(visitor, content, sentence) -> None:
    answer = visitor.post("/classes", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (422, {"error": sentence})


@pytest.mark.parametrize(
    ("wait", "sentence"),
    [
        ("soon", "'wait' must be a number."),
        ("-1", "'wait' must be 0 or more."),
        ("1e9", "'wait' may be 60 at most."),
    ],
)
def test_wrong_numbers_are_told_in_words(visitor, wait, sentence) -> None:
    assert visitor.post("/fit", params={"wait": wait}).json() == {"error": sentence}
    assert visitor.delete("/classes/first").json() == {"error": "'number' must be a whole number."}


def test_small_pictures_are_small_and_say_nothing_of_the_camera(visitor) -> None:
    number = visitor.post("/classes", json={"name": "g"}).json()["id"]
    exif = Image.Exif()
    exif[0x0110], exif[0x0112] = "secret camera", 6  # lies on its side
    written = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (300, 600, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(written, "JPEG", exif=exif)
    (photo,) = visitor.photos(f"/classes/{number}/photos", written.getvalue()).json()["photos"]
    answer = visitor.get(f"/photos/{photo}/picture")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    with Image.open(io.BytesIO(answer.content)) as small:
        assert (small.size, dict(small.getexif())) == ((96, 192), {})
    assert b"secret camera" not in answer.content
    visitor.delete(f"/classes/{number}/photos/{photo}")
    gone = visitor.get(f"/photos/{photo}/picture")
    assert (gone.status_code, str(photo) in gone.json()["error"]) == (404, True)


def test_pictures_are_where_the_settings_say(serve_with, glyph_png, tmp_path) -> None:
    found = {}
    for where in ("tab", "memory", "file"):
        path = tmp_path / where
        with serve_with(pictures=where, keep=path) as visitor:
            visitor.teach("g", "&")
            photo = names(visitor)["g"][0]
            now = visitor.get(f"/photos/{photo}/picture")
            assert visitor.get("/workspace").json()["pictures"] == (where != "tab")
        with serve_with(pictures=where, keep=path) as visitor:
            later = visitor.get(f"/photos/{photo}/picture")
            if where == "file":
                assert later.content == now.content
                assert now.content in path.read_bytes()
                visitor.delete(f"/classes/{visitor.get('/workspace').json()['classes'][0]['id']}/photos/{photo}")
                assert now.content not in path.read_bytes()
        found[where] = (now.status_code, later.status_code)
    assert found == {"tab": (404, 404), "memory": (200, 404), "file": (200, 200)}


def test_pictures_travel_in_a_model_file_only_when_asked_for(visitor, glyph_png, quick) -> None:
    visitor.teach("g", "&")
    visitor.fit()
    pictures = {one["name"]: visitor.get(f"/photos/{one['photos'][1]}/picture").content
                for one in visitor.get("/workspace").json()["classes"]}  # fmt: skip
    without, with_them = visitor.get("/model").content, visitor.get("/model", params={"pictures": "true"}).content
    assert pictures["g"] not in without
    assert pictures["g"] in with_them
    for content, status in ((without, 404), (with_them, 200)):
        assert visitor.put("/model", files={"model": ("m.e3bm", content)}).status_code == 200
        shown = visitor.get(f"/photos/{names(visitor)['g'][1]}/picture")
        assert shown.status_code == status
    with Image.open(io.BytesIO(shown.content)) as one, Image.open(io.BytesIO(pictures["g"])) as other:
        assert np.abs(np.asarray(one, int) - np.asarray(other, int)).mean() < 5
    # Python reads such a file as any other, and keeps what it holds unless it is told not to.
    loaded = FewShotClassifier.from_bytes(with_them, backbone=quick().extractor)
    assert loaded.to_bytes() == with_them
    assert loaded.to_bytes(small_pictures=False) == without


def test_a_server_starts_with_the_small_pictures_of_its_model_and_says_where_it_holds_none(
    serve_with, glyph_png, quick
) -> None:
    photos = {name: [glyph_png(name, number) for number in range(3)] for name in ("g", "&")}
    for drawn in (True, False):
        with serve_with(quick().fit(photos, small_pictures=drawn)) as visitor:
            state = visitor.get("/workspace").json()
            shown = [visitor.get(f"/photos/{photo}/picture") for one in state["classes"] for photo in one["photos"]]
            assert [one.status_code for one in shown] == [200 if drawn else 404] * 6
            assert [one["pictures"] for one in state["classes"]] == [
                one["photos"] if drawn else [] for one in state["classes"]
            ]
            assert (state["no_pictures"] is None) == drawn
            held = FewShotClassifier.from_bytes(visitor.get("/model").content, backbone=quick().extractor)
            assert held.fitted.pictures == (), "a download has none unless it is asked for them"
            asked = visitor.get("/model", params={"pictures": "true"}).content
            held = FewShotClassifier.from_bytes(asked, backbone=quick().extractor)
            assert held.fitted.pictures == (tuple(one.content for one in shown) if drawn else ())
    assert state["no_pictures"] == (
        "This model file holds no small pictures; make it with `e3bm fit --small-pictures`."
    )
    with serve_with(quick().fit(photos, small_pictures=True), pictures="tab") as visitor:
        asked = visitor.get("/model", params={"pictures": "true"}).content
        assert FewShotClassifier.from_bytes(asked, backbone=quick().extractor).fitted.pictures == ()


def test_a_model_that_cannot_be_changed_keeps_its_small_pictures(quick, glyph_png) -> None:
    photos = {name: [glyph_png(name, number) for number in range(3)] for name in ("g", "&")}
    made = quick().fit(photos, small_pictures=True)
    with_other_prior = made.with_fit(replace(made.fitted, own_prior=True, prior_digest="of another one"))
    for where, held in (("memory", 6), ("tab", 0)):
        now = Workspace(with_other_prior, ServeSettings(pictures=where)).snapshot
        assert now.unchangeable is not None
        assert len(now.fit.classifier.fitted.pictures) == held


def test_an_answer_brings_a_small_picture_where_it_is_asked_for(serve_with, glyph_png, quick) -> None:
    model = quick().fit({name: [glyph_png(name, number) for number in range(3)] for name in ("g", "&")})
    for where in ("memory", "tab"):
        with serve_with(model, pictures=where) as visitor:
            assert visitor.photos("/predict", glyph_png("g", 7)).json()["predictions"][0]["picture"] is None
            (told,) = visitor.photos("/predict", glyph_png("g", 7), pictures="true").json()["predictions"]
            if where == "tab":
                assert told["picture"] is None
                continue
            with Image.open(io.BytesIO(b64decode(told["picture"]))) as small:
                assert (small.format, small.size) == ("JPEG", (28, 28))


def test_a_field_in_the_address_is_said_to_belong_into_the_form(visitor, glyph_png) -> None:
    answer = visitor.photos("/predict?coverage=0.9", glyph_png("g", 0))
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        "'coverage' is a field of the form, not a part of the address: send it as curl's -F coverage=0.9 does.",
    )
    assert "-F photos=@x.jpg" in visitor.post("/predict?photos=x.jpg").json()["error"]
    wrong = visitor.post("/predict?covrage=0.9").json()["error"]
    assert wrong == "There is no parameter 'covrage' here; this address takes none."


def test_a_name_that_is_taken_but_for_its_case_is_named(visitor) -> None:
    visitor.post("/classes", json={"name": "Bohemian_Waxwing"})
    assert visitor.post("/classes", json={"name": "bohemian_waxwing"}).json()["error"] == (
        "There is a class 'Bohemian_Waxwing' already, and 'bohemian_waxwing' cannot be told from it; "
        "add the photos to it or choose another name."
    )


def test_what_is_too_large_is_refused_in_the_words_of_the_command_line(visitor, glyph_png, quick, tmp_path) -> None:
    number = visitor.post("/classes", json={"name": "g"}).json()["id"]
    large, long = io.BytesIO(), io.BytesIO()
    Image.new("1", (9000, 7000)).save(large, "PNG")
    Image.new("1", (40_000, 1)).save(long, "PNG")
    for content in (large.getvalue(), long.getvalue(), b"no image", b""):
        (tmp_path / "0.png").write_bytes(content)
        (said,) = quick().extractor.features_or_errors([tmp_path / "0.png"], ["0.png"])
        answer = visitor.photos(f"/classes/{number}/photos", content)
        assert answer.json()["error"] == str(said)
        assert answer.status_code == (413 if "claims to be" in str(said) else 422)


def test_a_model_may_be_larger_than_photos_may(serve_with) -> None:
    with serve_with(most_upload_megabytes=0.01, most_model_megabytes=0.2) as visitor:
        visitor.teach("g", "&")
        visitor.fit()
        content = visitor.get("/model").content
        assert len(content) > 10_000
        assert visitor.put("/model", files={"model": ("m.e3bm", content)}).status_code == 200
        assert visitor.put("/model", files={"model": ("m.e3bm", bytes(300_000))}).status_code == 413


def test_an_onnx_file_is_given(visitor, glyph_png) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    visitor.teach("g", "&")
    visitor.fit()
    answer = visitor.get("/model.onnx", timeout=400)
    assert answer.headers["content-disposition"] == 'attachment; filename="model.onnx"'
    session = runtime.InferenceSession(answer.content, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["classes"] == '["&", "g"]'


@pytest.mark.parametrize("views", [1, 2])
def test_an_opened_model_keeps_its_views_beside_a_network_in_use(views) -> None:
    made = unfitted(views=views).fit(support())
    in_use = unfitted(views=3 - views).extractor
    opened = open_model(Upload("model.e3bm", made.to_bytes()), None, in_use).classifier(None, in_use)
    assert opened.extractor.network is in_use.network
    assert opened.predict(picture("sky", 9)) == made.predict(picture("sky", 9))
