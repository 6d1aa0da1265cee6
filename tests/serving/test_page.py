"""The page in a real browser: by mouse, by keyboard alone, and on a phone."""

import csv
import io
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.read_photos import open_photos

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
PATIENCE = 120_000  # milliseconds, on a machine that may be busy
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DROP = """([place, files]) => {
  const carried = new DataTransfer();
  for (const [name, numbers] of files) carried.items.add(new File([new Uint8Array(numbers)], name));
  for (const kind of ["dragover", "drop"]) {
    place.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
  }
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    sync_api.expect.set_options(timeout=PATIENCE)
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES, timeout=PATIENCE)
        yield started
        started.close()


@pytest.fixture
def opened(browser, visitor, address):
    """Opens the page in a tab of its own; whatever it complains about or fetches from elsewhere fails the test."""
    contexts, complaints = [], []

    def open_page(**options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda told: complaints.append(told.text) if "Content Security" in told.text else None)
        page.on("request", lambda request: request.url.startswith((address, "blob:")) or complaints.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def photos(glyph_png, character: str, *numbers: int) -> list[dict]:
    return [
        {"name": f"{character}{number}.png", "mimeType": "image/png", "buffer": glyph_png(character, number)}
        for number in numbers
    ]


def card(page, name: str):
    return page.get_by_role("article", name=name)


def add_class(page, name: str, files: list[dict]) -> None:
    page.get_by_label("New class").fill(name)
    page.get_by_role("button", name="Add class").click()
    page.get_by_label(f"Add photos of {name}", exact=True).set_input_files(files)
    sync_api.expect(card(page, name).get_by_text(f"{len(files)} photos")).to_be_visible()


def drop(page, place, files: list[dict]) -> None:
    place.evaluate(
        "(place, files) => (" + DROP + ")([place, files])",
        [[one["name"], list(one["buffer"])] for one in files],
    )


def drop_paths(page, place, *paths) -> None:
    """Drop files and folders of the disk, as the desktop does."""
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    held = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    line = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        line.send("Input.dispatchDragEvent", {"type": kind, **where, "data": held})


def folder_of_classes(folder, glyph_png, characters: str, shots: int = 3):
    """A folder for each character, and what else is found beside photos."""
    for place, character in enumerate(characters):
        (folder / f"class {place + 1}").mkdir(parents=True)
        for number in range(shots):
            (folder / f"class {place + 1}" / f"{number}.png").write_bytes(glyph_png(character, number))
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "empty").mkdir()
    (folder / "class 1" / "notes.txt").write_text("no photo")
    return folder


def fit(page) -> None:
    page.get_by_role("button", name="Fit").click()
    sync_api.expect(page.locator("#fit-state")).to_contain_text("Fitted to")


def test_teach_fit_ask_change_download_and_open(opened, glyph_png, visitor, quick, tmp_path) -> None:
    page, expect = opened(viewport={"width": 1200, "height": 900}), sync_api.expect
    expect(page.get_by_role("button", name="Fit")).to_be_disabled()
    page.get_by_label("New class").fill("letter g")
    page.get_by_role("button", name="Add class").click()
    drop(page, card(page, "letter g").locator(".drop"), photos(glyph_png, "g", 0, 1, 2, 3))
    expect(card(page, "letter g").locator("img.picture")).to_have_count(4)
    add_class(page, "ampersand", photos(glyph_png, "&", 0, 1, 2, 3))
    fit(page)
    expect(page.locator("#charts svg")).to_have_count(2)
    expect(page.locator("#charts svg >> nth=0 >> rect")).to_have_count(len(visitor.fit()["rates"]))

    drop(page, page.locator("#ask-drop .drop"), photos(glyph_png, "g", 8))
    answer = page.locator("#answers > li").first
    expect(answer.locator(".verdict strong")).to_have_text("letter g")
    shares = [float(words.split()[0]) for words in answer.locator(".percent").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert answer.locator(".fill").first.evaluate("bar => bar.offsetWidth / bar.parentElement.offsetWidth") == (
        pytest.approx(shares[0] / 100, abs=0.02)
    )
    assert answer.locator(".mattered img").count() >= 4

    drop(page, page.locator("#ask-drop .drop"), photos(glyph_png, "∞", 1))
    expect(page.locator("#answers > li")).to_have_count(2)
    expect(page.locator("#answers > li").first.get_by_text("None of these")).to_be_visible()

    page.get_by_label("Use the photos together").check()
    with page.expect_request("**/predict") as request:
        drop(page, page.locator("#ask-drop .drop"), [*photos(glyph_png, "&", 6), *photos(glyph_png, "g", 9)])
    expect(page.locator("#answers > li")).to_have_count(4)
    assert request.value.response().json()["together"]
    expect(page.locator("#ask-error")).to_be_hidden()
    drop(page, page.locator("#ask-drop .drop"), photos(glyph_png, "&", 7, 8))
    expect(page.locator("#ask-error")).to_contain_text("only one or a few of the 2 classes, so they were answered")
    expect(page.locator("#answers > li")).to_have_count(6)

    add_class(page, "zhe", photos(glyph_png, "Ж", 0, 1, 2, 3))
    expect(page.locator("#fit-state")).to_contain_text("have changed")
    page.get_by_role("button", name="Fit again").click()
    expect(page.locator("#fit-state")).to_contain_text("Fitted to 3 classes")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download model").click()
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    model = FewShotClassifier.load(saved, backbone=quick().extractor)
    assert model.classes == ("ampersand", "letter g", "zhe")
    (told,) = visitor.photos("/predict", glyph_png("Ж", 9)).json()["predictions"]
    assert model.predict(glyph_png("Ж", 9)).probabilities == pytest.approx(told["probabilities"], abs=1e-5)

    card(page, "zhe").get_by_role("button", name="Forget").click()
    page.get_by_role("button", name="Keep").click()
    expect(card(page, "zhe")).to_be_visible()
    card(page, "zhe").get_by_role("button", name="Forget").click()
    page.locator("#confirm-yes").click()
    expect(card(page, "zhe")).to_have_count(0)
    expect(page.locator("#fit-state")).to_contain_text("Fitted to 2 classes")

    page.locator("#open input").set_input_files(saved)
    page.locator("#confirm-yes").click()
    expect(card(page, "zhe").locator(".photo")).to_have_count(4)
    expect(page.locator("#fit-state")).to_contain_text("Fitted to 3 classes")


def test_what_is_wrong_is_said_where_it_was_done(opened, glyph_png) -> None:
    page, expect = opened(), sync_api.expect
    bad = {"name": "bad.png", "mimeType": "image/png", "buffer": b"no image"}
    page.get_by_label("New class").fill("letter g")
    page.get_by_role("button", name="Add class").click()
    page.get_by_label("Add photos of letter g", exact=True).set_input_files([*photos(glyph_png, "g", 0), bad])
    expect(card(page, "letter g").get_by_role("alert")).to_contain_text("bad.png cannot be used")
    expect(card(page, "letter g").get_by_text("1 photo", exact=True)).to_be_visible()
    page.get_by_label("New class").fill("Letter G")
    page.get_by_role("button", name="Add class").click()
    expect(page.locator("#class-error")).to_contain_text("There is a class 'letter g' already")
    page.get_by_label("Choose photos to classify", exact=True).set_input_files(photos(glyph_png, "g", 1))
    expect(page.locator("#ask-waiting")).to_contain_text(
        "Fit the classifier first, or open a model; then it will answer"
    )
    page.get_by_role("button", name="Do not ask").click()
    expect(page.locator("#ask-waiting")).to_be_hidden()
    page.locator("#open input").set_input_files({**bad, "name": "bad.e3bm"})
    page.locator("#confirm-yes").click()
    expect(page.locator("#top-error")).to_contain_text("bad.e3bm cannot be used")


def test_a_dropped_folder_is_named_and_the_others_are_used(opened, glyph_png, visitor) -> None:
    page, expect = opened(), sync_api.expect
    # A script cannot drop a folder; what it is to a page is a file that cannot be read.
    page.evaluate(
        """() => {
          const slice = Blob.prototype.slice;
          Blob.prototype.slice = function (...places) {
            if (this.name === "holiday") return { arrayBuffer: () => Promise.reject(new Error("a folder")) };
            return slice.apply(this, places);
          };
        }"""
    )
    folder = {"name": "holiday", "mimeType": "", "buffer": b"x"}
    page.get_by_label("New class").fill("letter g")
    page.get_by_role("button", name="Add class").click()
    drop(page, card(page, "letter g").locator(".drop"), [folder, *photos(glyph_png, "g", 0, 1)])
    expect(card(page, "letter g").get_by_text("2 photos")).to_be_visible()
    expect(card(page, "letter g").get_by_role("alert").get_by_role("listitem")).to_have_text(
        "holiday cannot be used: it is a folder, or a file that this browser may not read."
    )
    add_class(page, "ampersand", photos(glyph_png, "&", 0, 1))
    fit(page)
    page.get_by_label("Use the photos together").check()
    drop(page, page.locator("#ask-drop .drop"), [*photos(glyph_png, "&", 6), folder, *photos(glyph_png, "&", 7)])
    expect(page.locator("#answers > li")).to_have_count(2)
    expect(page.locator("#ask-error")).to_contain_text("holiday cannot be used")


def test_a_folder_becomes_classes_that_are_renamed_moved_and_enlarged(opened, glyph_png, visitor, tmp_path) -> None:
    page, expect = opened(viewport={"width": 1300, "height": 900}), sync_api.expect
    folder = folder_of_classes(tmp_path / "mine", glyph_png, "g&")
    drop_paths(page, page.locator("#folder-drop"), folder)
    expect(page.locator(".class .count")).to_have_text(["3 photos"] * 2)
    expect(page.locator("#class-error li")).to_have_text(
        [
            "Not used (hidden): mine/.DS_Store.",
            "Not used (unknown format .txt): mine/class 1/notes.txt.",
            "Not used (an empty folder): mine/empty.",
        ]
    )
    expect(card(page, "class 1").get_by_role("alert")).to_be_empty()
    fit(page)
    expect(page.locator("#class-error")).to_be_empty()

    # A rename changes no answer: all of them have the new name, and nothing is to be asked again.
    version = visitor.get("/workspace").json()["model"]["version"]
    asked = [*photos(glyph_png, "g", 8), *photos(glyph_png, "&", 8)]
    page.get_by_label("Choose photos to classify", exact=True).set_input_files(asked)
    expect(page.locator("#answers .verdict strong")).to_have_text(["class 1", "class 2"])
    card(page, "class 1").get_by_role("button", name="Rename").click()
    page.locator("#confirm-words").fill("Class 2")
    page.keyboard.press("Enter")
    expect(page.locator("#confirm-error")).to_contain_text("There is a class 'class 2' already")
    expect(page.locator("#confirm-words")).to_have_value("Class 2")
    page.locator("#confirm-words").fill("letter g")
    page.keyboard.press("Enter")
    expect(page.locator("#confirm")).to_be_hidden()
    expect(card(page, "letter g").get_by_role("button", name="Rename")).to_be_focused()
    expect(page.locator("#fit-state")).to_contain_text("Fitted to 2 classes")
    assert visitor.get("/workspace").json()["model"]["version"] == version
    expect(page.locator("#answers .verdict strong")).to_have_text(["letter g", "class 2"])
    expect(page.locator("#answers-count")).to_contain_text("letter g")
    expect(page.locator("#answers")).not_to_contain_text("class 1")
    expect(page.locator("#answers .mark")).to_have_count(0)
    expect(page.locator("#ask-again")).to_be_hidden()
    page.locator("#answers > li").first.get_by_role("button", name="Correct – add it").click()
    expect(card(page, "letter g").get_by_text("4 photos")).to_be_visible()
    expect(page.locator("#answers .taught")).to_have_text("You said: letter g")
    card(page, "letter g").locator(".photo .remove").last.click(force=True)
    expect(card(page, "letter g").get_by_text("3 photos")).to_be_visible()
    expect(page.locator("#fit-state")).to_contain_text("Fitted to 2 classes")
    card(page, "letter g").locator(".photo").first.drag_to(card(page, "class 2"))
    expect(card(page, "class 2").get_by_text("4 photos")).to_be_visible()
    expect(page.locator("#fit-state")).to_contain_text("Fitted to 2 classes")
    assert visitor.get("/workspace").json()["model"]["classes"] == ["class 2", "letter g"]

    # After a reload the pictures come from the server; what is enlarged says that it is small.
    page.reload()
    small = card(page, "class 2").locator("img.picture").last
    expect(small).to_have_js_property("naturalWidth", 28)
    small.click()
    expect(page.locator("#viewer")).to_contain_text("Photo 4 of class 2")
    expect(page.locator("#viewer")).to_contain_text("Only this small picture")
    page.locator("#viewer select").select_option("letter g")
    expect(page.locator("#viewer")).to_be_hidden()
    expect(card(page, "letter g").get_by_text("3 photos")).to_be_visible()


def first_to_label(predictions: list[dict]) -> str:
    """What the page must say of the photo to label next, from the server's answers to 00.png, 01.png, ..."""
    surest = [sorted(one.get("probabilities", {}).items(), key=lambda pair: -pair[1])[:2] for one in predictions]
    for place, (one, pairs) in enumerate(zip(predictions, surest, strict=True)):
        if one.get("unknown"):
            return f"{place:02}.png looks like none of the classes; the nearest is {pairs[0][0]}."
    answered = [(place, *pairs) for place, pairs in enumerate(surest) if pairs]
    place, (first, most), (second, next_) = min(answered, key=lambda one: one[1][1] - one[2][1])
    return f"{place:02}.png could be {first} ({100 * most:.1f} %) or {second} ({100 * next_:.1f} %)."


def test_forty_photos_are_answered_marked_corrected_and_saved(opened, glyph_png, visitor, tmp_path) -> None:
    page, expect = opened(viewport={"width": 1300, "height": 900}), sync_api.expect
    drop_paths(page, page.locator("#folder-drop"), folder_of_classes(tmp_path / "mine", glyph_png, "g&Ж", shots=2))
    expect(page.locator(".class .count")).to_have_text(["2 photos"] * 3)
    expect(page.locator("#folder-drop .waiting")).to_be_hidden()
    fit(page)
    asked = tmp_path / "asked"
    asked.mkdir()
    for place in range(40):
        (asked / f"{place:02}.png").write_bytes(glyph_png("g&Ж∞"[place % 4], 2 + place // 4))
    (asked / "broken.png").write_bytes(b"no image")
    answered: list[sync_api.Response] = []
    page.on("response", lambda one: answered.append(one) if one.ok and one.url.endswith("/predict") else None)
    drop_paths(page, page.locator("#ask-drop .drop"), asked)
    expect(page.locator("#answers > li")).to_have_count(40)
    expect(page.locator("#ask-error")).to_contain_text("broken.png cannot be used")
    expect(page.locator("#asking")).to_be_hidden()
    portions = [one.json()["predictions"] for one in answered]
    predictions = [one for some in portions for one in some]
    assert len(portions) > 1, "answers appear portion by portion"
    expect(page.locator("#answers-count")).to_contain_text("40 answers")
    assert page.locator("#answers .file").all_inner_texts() == [f"{place:02}.png" for place in range(40)]
    expect(page.locator("#next-list li").first).to_contain_text(first_to_label(predictions))

    # A fit to other photos: what stands here is not what it would say.
    page.get_by_label("Add photos of class 1", exact=True).set_input_files(photos(glyph_png, "g", 15))
    page.get_by_role("button", name="Fit again").click()
    expect(page.locator("#answers .mark")).to_have_count(40)
    page.get_by_role("button", name="Ask again about 40 photos").click()
    expect(page.locator("#answers .mark")).to_have_count(0)

    # What cannot be learned is said beside the answer, which waits for another try.
    held = []

    def hold(route) -> None:
        held.append(route)

    page.route("**/classes/*/photos", hold)
    first = page.locator("#answers > li").first
    first.get_by_role("button", name="Correct – add it").click()
    expect(first.get_by_text("Learning: ")).to_be_visible()
    expect(first.get_by_role("button", name="Correct – add it")).to_have_count(0)
    while not held:
        page.wait_for_timeout(20)
    held.pop().abort()
    expect(first.get_by_role("alert")).to_have_text("The server does not answer; is it still running?")
    expect(first.get_by_role("button", name="Correct – add it")).to_be_visible()
    page.unroute("**/classes/*/photos")

    # "No, it is a new class": the photo joins it, and all answers know it.
    infinity = page.locator("#answers > li").nth(3)
    infinity.get_by_label("No, it is …").select_option("a new class …")
    page.locator("#confirm-words").fill("infinity")
    page.locator("#confirm-yes").click()
    expect(infinity.get_by_text("You said: infinity")).to_be_visible()
    expect(page.locator("#fit-state")).to_contain_text("Fitted to 4 classes")
    expect(page.locator("#answers .mark")).to_have_count(0)
    expect(infinity.locator(".verdict strong")).to_have_text("infinity")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert [row["path"] for row in rows] == [f"asked/{place:02}.png" for place in range(40)]
    assert all(0 < float(row["unknown_score"]) < 1 for row in rows)
    assert (rows[3]["label"], rows[3]["corrected"]) == ("infinity", "infinity")
    assert sum(float(rows[0][f"p({name})"]) for name in ("class 1", "class 2", "class 3", "infinity")) == (
        pytest.approx(1, abs=1e-4)
    )
    expect(page.locator("#charts")).to_be_hidden()
    page.get_by_label("for researchers").check()
    expect(page.locator("#charts")).to_be_visible()


def test_what_a_folder_brought_is_all_said_where_it_was_dropped(opened, glyph_png, tmp_path) -> None:
    page, expect = opened(viewport={"width": 1300, "height": 900}), sync_api.expect
    for name, numbers in (("Owl", (0, 1)), ("owl", (2, 3)), ("zhe", (0,))):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for number in numbers:
            (tmp_path / "mine" / name / f"{number}.png").write_bytes(glyph_png("Ж" if name == "zhe" else "g", number))
    (tmp_path / "mine" / "zhe" / "bad.jpg").write_bytes(b"no image")
    drop_paths(page, page.locator("#folder-drop"), tmp_path / "mine")
    expect(page.locator("#class-error")).to_contain_text("zhe: bad.jpg cannot be used: it is not a picture")
    said = page.locator("#class-error")
    expect(said).to_contain_text(re.compile("were added to the class “([Oo])wl”: the two names differ only in upper"))
    expect(said).to_be_in_viewport()
    expect(card(page, "zhe").get_by_role("alert")).to_be_empty()
    expect(page.locator(".class .count")).to_have_text(["4 photos", "1 photo"])
    expect(page.locator("#class-count")).to_have_text("2 classes")
    expect(page.locator("#said")).to_have_text("2 classes from folders.")


def test_a_folder_gives_the_classes_that_fit_finds_in_it(opened, glyph_png, tmp_path) -> None:
    """Folders below a class belong to it, photos beside the class folders to none, and splits are no classes."""
    page, expect = opened(viewport={"width": 1300, "height": 900}), sync_api.expect
    mine = tmp_path / "mine"
    for path, character, number in [
        ("gee/0.png", "g", 0), ("gee/more/1.png", "g", 1), ("gee/more/deep/2.png", "g", 2), ("zhe/0.png", "Ж", 0),
        ("loose.png", "&", 0),
    ]:  # fmt: skip
        (mine / path).parent.mkdir(parents=True, exist_ok=True)
        (mine / path).write_bytes(glyph_png(character, number))
    (mine / "gee" / "notes.txt").write_text("no photo")
    with open_photos(mine, None) as found:
        counts = {name: len(some) for name, some in found.by_class.items()}
    assert counts == {"gee": 3, "zhe": 1}
    drop_paths(page, page.locator("#folder-drop"), mine)
    expect(page.locator(".class h3")).to_have_text(list(counts))
    expect(page.locator(".class .count")).to_have_text(["3 photos", "1 photo"])
    expect(page.locator("#class-error")).to_contain_text("Not used (not in a class folder): mine/loose.png.")

    # Class folders that are dropped one by one are classes, too.
    drop_paths(page, page.locator("#folder-drop"), mine / "zhe", mine / "gee" / "more" / "deep")
    expect(page.locator(".class h3")).to_have_text([*counts, "deep"])
    expect(page.locator(".class .count")).to_have_text(["3 photos", "2 photos", "1 photo"])

    for name in ("train", "test"):
        (tmp_path / "split" / name / "gee").mkdir(parents=True)
        (tmp_path / "split" / name / "gee" / "0.png").write_bytes(glyph_png("g", 0))
    drop_paths(page, page.locator("#folder-drop"), tmp_path / "split")
    expect(page.locator("#class-error")).to_contain_text("which are splits of a data set, not classes")
    expect(page.locator(".class")).to_have_count(3)


def test_answers_come_into_view_and_corrections_leave_the_page_where_it_is(opened, glyph_png, tmp_path) -> None:
    page, expect = opened(viewport={"width": 1280, "height": 500}), sync_api.expect
    drop_paths(page, page.locator("#folder-drop"), folder_of_classes(tmp_path / "mine", glyph_png, "g&"))
    expect(page.locator(".class .count")).to_have_text(["3 photos"] * 2)
    fit(page)
    page.evaluate("scrollTo(0, 0)")
    asked = [*photos(glyph_png, "g", 8, 9, 10), *photos(glyph_png, "&", 8, 9, 10)]
    page.get_by_label("Choose photos to classify", exact=True).set_input_files(asked)
    expect(page.locator("#answers > li")).to_have_count(6)
    expect(page.locator("#answers-count")).to_be_in_viewport()
    last = page.locator("#answers > li").last
    last.get_by_role("button", name="Correct – add it").click()
    expect(last.locator(".taught")).to_contain_text("You said")
    expect(page.locator("#said")).to_have_text("The answers are those of the last fit.")
    expect(last).to_be_in_viewport()


def test_many_notes_are_shown_short_closed_and_gone_with_the_next_drop(opened, glyph_png, tmp_path) -> None:
    page, expect = opened(viewport={"width": 1280, "height": 900}), sync_api.expect
    folder, said = folder_of_classes(tmp_path / "mine", glyph_png, "g&"), page.locator("#class-error")
    for number in range(30):
        (folder / "class 2" / f"bad{number}.jpg").write_bytes(b"no image")
    drop_paths(page, page.locator("#folder-drop"), folder)
    # Three that are no photos, then these.
    expect(said.locator("li")).to_have_count(33)
    expect(said.locator("li:visible")).to_have_count(3)
    expect(card(page, "class 2")).to_be_in_viewport(ratio=1)
    said.get_by_text("30 more").click()
    expect(said.locator("li").last).to_be_visible()
    expect(said.locator("li").last).to_have_text(re.compile("^class 2: bad29.jpg cannot be used"))
    said.get_by_role("button", name="Close").click()
    expect(said).to_be_empty()

    # A note of one class goes with a drop on another one; a fit and a new beginning take the others away.
    bad = {"name": "bad.png", "mimeType": "image/png", "buffer": b"no image"}
    for name in ("class 1", "class 2"):
        page.get_by_label(f"Add photos of {name}", exact=True).set_input_files([bad])
        expect(card(page, name).get_by_role("alert")).to_contain_text("bad.png cannot be used")
    expect(card(page, "class 1").get_by_role("alert")).to_be_empty()
    fit(page)
    expect(card(page, "class 2").get_by_role("alert")).to_be_empty()
    page.get_by_label("Choose photos to classify", exact=True).set_input_files([bad])
    expect(page.locator("#ask-error")).to_contain_text("bad.png cannot be used")
    page.get_by_label("Choose photos to classify", exact=True).set_input_files(photos(glyph_png, "g", 8))
    expect(page.locator("#answers > li")).to_have_count(1)
    expect(page.locator("#ask-error")).to_be_empty()
    drop_paths(page, page.locator("#folder-drop"), folder)
    expect(said).to_contain_text("30 more")
    page.get_by_role("button", name="Start over").click()
    page.locator("#confirm-yes").click()
    expect(said).to_be_empty()


def test_a_photo_that_the_browser_cannot_show_is_drawn_by_the_server(browser, serve_with, glyph_png, quick) -> None:
    written = io.BytesIO()
    Image.open(io.BytesIO(glyph_png("g", 8))).save(written, "TIFF")
    asked = {"name": "g8.tiff", "mimeType": "image/tiff", "buffer": written.getvalue()}
    model = quick().fit({name: [glyph_png(name, number) for number in range(3)] for name in ("g", "&")})
    for where in ("memory", "tab"):
        with serve_with(model, pictures=where) as visitor:
            page, expect = browser.new_page(), sync_api.expect
            page.goto(str(visitor.base_url))
            page.get_by_label("Choose photos to classify", exact=True).set_input_files([asked])
            shown = page.locator("#answers > li .look").first
            expect(shown).to_be_visible()
            if where == "memory":
                expect(shown.locator("img")).to_have_js_property("naturalWidth", 28)
                shown.click()
                expect(page.locator("#viewer")).to_contain_text("This browser cannot show the whole photo.")
            else:
                expect(shown).to_have_text("TIFF")
            page.close()


def test_a_model_shows_its_small_pictures_or_says_how_to_have_them(browser, serve_with, glyph_png, quick) -> None:
    photos_of = {name: [glyph_png(name, number) for number in range(4)] for name in ("g", "&", "Ж")}
    photos_of["Ж"].append(glyph_png("&", 9))  # which is to be looked at again
    for drawn in (True, False):
        with serve_with(quick().fit(photos_of, small_pictures=drawn)) as visitor:
            page, expect, asked = browser.new_page(), sync_api.expect, []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(str(visitor.base_url))
            expect(page.locator(".class .photo")).to_have_count(13)
            pictures = page.locator(".class .photo img")
            page.get_by_label("Choose photos to classify", exact=True).set_input_files(photos(glyph_png, "g", 8))
            expect(page.locator("#answers .mattered .picture").first).to_be_visible()
            if drawn:
                expect(pictures).to_have_count(13)
                expect(page.locator("#no-pictures")).to_be_hidden()
                expect(page.locator("#doubts img")).to_have_count(1)
            else:
                expect(pictures).to_have_count(0)
                expect(page.locator("#no-pictures")).to_have_text(
                    "This model file holds no small pictures; make it with e3bm fit --small-pictures."
                )
                # A number, which is the one in the words beside it.
                expect(page.locator("#doubts .picture")).to_have_text("5")
                expect(page.locator("#answers .mattered img")).to_have_count(0)
                assert [url for url in asked if url.endswith("/picture")] == []
                numbers = page.locator("#answers .mattered .picture").all_inner_texts()
                words = page.locator("#answers .mattered figcaption").all_inner_texts()
                assert [f"photo {number} of" for number in numbers] == [one.rsplit(" ", 1)[0] for one in words]
            page.close()


def test_everything_by_keyboard(opened, glyph_png) -> None:
    page, expect = opened(), sync_api.expect
    focused = "document.activeElement"

    def tab_to(words: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            told = page.evaluate(f"{focused}.getAttribute('aria-label') || {focused}.innerText || {focused}.id")
            if words in told:
                ring = page.evaluate(f"getComputedStyle({focused}.closest('label') ?? {focused}).outlineStyle")
                assert ring != "none", f"nothing shows that '{words}' has the keyboard"
                return
        pytest.fail(f"Tab does not lead to '{words}'")

    # Listened to from the beginning: the browser must have been told before a dialogue opens.
    dialogues: list[sync_api.FileChooser] = []
    page.on("filechooser", lambda dialogue: dialogues.append(dialogue))  # noqa: PLW0108  # playwright wants a function

    def choose(files: list[dict]) -> None:
        page.keyboard.press("Space")
        for _ in range(600):
            if dialogues:
                break
            page.wait_for_timeout(100)
        dialogues.pop().set_files(files)

    for name, character in (("letter g", "g"), ("ampersand", "&")):
        if name == "letter g":
            tab_to("class-name")
        else:
            page.get_by_label("New class").focus()
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        # The new class's own control has the keyboard next.
        expect(page.get_by_label(f"Add photos of {name}", exact=True)).to_be_focused()
        choose(photos(glyph_png, character, 0, 1, 2))
        expect(card(page, name).get_by_text("3 photos")).to_be_visible()
    tab_to("Fit")
    page.keyboard.press("Enter")
    expect(page.locator("#fit-state")).to_contain_text("Fitted to 2 classes")
    tab_to("Choose photos to classify")
    choose(photos(glyph_png, "&", 7))
    expect(page.locator("#answers > li")).to_have_count(1)
    expect(page.get_by_role("status")).to_contain_text("ampersand")
    page.get_by_role("button", name="Forget class ampersand").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(card(page, "ampersand")).to_be_visible()


def test_a_fit_shows_how_far_it_is_and_is_cancelled(browser, serve_with, glyph_png) -> None:
    with serve_with() as visitor:
        workspace, random = visitor.service.workspace, np.random.default_rng(0)
        for name in range(40):  # enough to last until it is cancelled, however slow the browser is
            made = workspace.create_class(f"class {name}")
            rows = (random.normal(size=(50, 1280)) + 2 * random.normal(size=1280)).astype(np.float32)
            workspace.add_photos(made.number, list(rows), workspace.snapshot)
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        page, expect = context.new_page(), sync_api.expect
        page.set_default_timeout(PATIENCE)
        page.goto(str(visitor.base_url))
        page.get_by_role("button", name="Fit").click()
        expect(page.locator("#fit-state")).to_contain_text("leaving photos out")
        expect(page.get_by_role("progressbar")).to_be_visible()
        expect(page.get_by_role("button", name="Fit")).to_be_hidden()
        # Another tab, or the same one after a reload, shows it too.
        page.reload()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#fit-state")).to_contain_text("Cancelled; nothing has changed")
        expect(page.get_by_role("progressbar")).to_be_hidden()
        expect(page.get_by_role("button", name="Fit")).to_be_enabled()
        assert visitor.get("/fit").json()["state"] == "cancelled"
        context.close()


def test_photos_that_are_dropped_before_the_fit_is_done_are_answered_by_it(opened, glyph_png, visitor) -> None:
    page, expect = opened(), sync_api.expect
    visitor.teach("g", "&")
    page.reload()
    held = []

    def hold(route) -> None:
        held.append(route)

    # As long as nobody says that the fit is done, it goes on for the page.
    page.route("**/fit*", hold)
    page.get_by_role("button", name="Fit").click()
    while not held:
        page.wait_for_timeout(20)
    running = {"id": 1, "state": "running", "stage": "", "done": 0, "total": 0, "error": None, "model": None}
    held.pop().fulfill(status=202, json=running)
    expect(page.locator("#fit-state")).to_have_text("Fitting …")
    page.get_by_label("Choose photos to classify", exact=True).set_input_files(photos(glyph_png, "g", 8, 9))
    expect(page.locator("#ask-waiting")).to_contain_text(
        "The classifier is being fitted; then it will answer about 2 photos."
    )
    expect(page.locator("#ask-error")).to_be_empty()
    visitor.fit()
    while not held:
        page.wait_for_timeout(20)
    held.pop().continue_()
    expect(page.locator("#answers .file")).to_have_text(["g8.png", "g9.png"])
    expect(page.locator("#ask-waiting")).to_be_hidden()


def test_the_page_asks_for_the_token_once(browser, serve_with) -> None:
    with serve_with(token="a-token-of-some-length") as visitor:
        context = browser.new_context()
        page, expect = context.new_page(), sync_api.expect
        page.set_default_timeout(PATIENCE)
        address = str(visitor.base_url).rstrip("/")
        page.goto(f"{address}/")
        page.get_by_label("The token").fill("another token")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("alert")).to_contain_text("not the token")
        assert page.url == f"{address}/"
        page.get_by_label("The token").fill("a-token-of-some-length")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_label("New class")).to_be_visible()
        assert "token" not in page.url
        page.get_by_label("New class").fill("letter g")
        page.get_by_role("button", name="Add class").click()
        expect(card(page, "letter g")).to_be_visible()
        page.reload()
        expect(card(page, "letter g")).to_be_visible()
        context.close()


@pytest.mark.parametrize("width", [390, 1000, 1300])
def test_no_table_of_an_evaluation_is_cut(browser, quick, glyph_png, tmp_path, width) -> None:
    model = quick().fit({name: [glyph_png(name, number) for number in range(3)] for name in ("g", "&", "Ж")})
    found = model.evaluate({name: [glyph_png(name, number) for number in range(5, 9)] for name in ("g", "&", "Ж")})
    found.save(tmp_path / "e.html")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "e.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    places = page.locator(".withtable").all()
    assert len(places) == 2
    for place in places:
        figure, table = place.locator("figure").bounding_box(), place.locator("table").bounding_box()
        if width <= 1100:
            assert table["y"] >= figure["y"] + figure["height"]
        if width >= 1000:
            assert place.locator(".scroll").evaluate("one => one.scrollWidth <= one.clientWidth")
    page.close()


def test_a_phone_shows_everything_without_scrolling_sideways(opened, glyph_png) -> None:
    page = opened(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    add_class(page, "a class with quite a long name that has to be broken somewhere", photos(glyph_png, "g", 0, 1, 2))
    add_class(page, "ampersand", photos(glyph_png, "&", *range(7)))
    fit(page)
    page.get_by_label("Choose photos to classify", exact=True).set_input_files(photos(glyph_png, "g", 8))
    sync_api.expect(page.locator("#answers > li")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.get_by_text("use the camera").first.is_visible()
    card(page, "ampersand").locator(".look").first.tap()
    inside = [page.locator(place).bounding_box() for place in ("#viewer", "#viewer select")]
    assert inside[0]["x"] < inside[1]["x"], "the choice of a class is not cut off"
    page.locator("#viewer-close").tap()
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, label.button, label.choose")]
          .filter((one) => one.offsetParent !== null)
          .filter((one) => one.offsetHeight < 24 || one.offsetWidth < 24).map((one) => one.textContent)"""
    )
    assert small == []


def test_twelve_classes_leave_every_step_in_reach(opened, glyph_png, tmp_path) -> None:
    folder, expect = folder_of_classes(tmp_path / "mine", glyph_png, "abcdefghijkm", shots=5), sync_api.expect
    page = opened(viewport={"width": 1300, "height": 900})
    page.get_by_label("Choose a folder").set_input_files(folder)
    expect(page.locator(".class .count")).to_have_text(["5 photos"] * 12)
    expect(page.locator("#folder-drop .waiting")).to_be_hidden()
    fit(page)
    # On a desk the classes scroll by themselves, beside the other steps; that there are more is said at the edge.
    assert page.evaluate("document.documentElement.scrollHeight") < 1300
    expect(page.locator("#class-count")).to_have_text("12 classes")
    further = page.locator("#further button")
    expect(further).to_be_in_viewport(ratio=1)
    expect(further).to_have_text(re.compile(r"↓ \d+ classes below"))
    for _ in range(20):
        if further.is_hidden():
            break
        with suppress(sync_api.TimeoutError):  # the list was still moving, and then there were no more below
            further.click(timeout=5000)
        page.wait_for_timeout(500)
    expect(card(page, "class 12")).to_be_in_viewport(ratio=1)
    phone = opened(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    expect(card(phone, "class 12")).to_be_visible()
    expect(phone.locator("#further")).to_be_hidden()
    assert phone.evaluate("document.documentElement.scrollHeight") > 1600
    phone.get_by_role("link", name="Ask").tap()
    expect(phone.locator("#ask-drop .drop")).to_be_in_viewport(ratio=1)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
