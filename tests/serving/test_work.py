"""Work that is refused, given up or cancelled is ended and never takes effect; fits are jobs beside the rest."""

import io
import os
import signal
import sys
import time

import httpx
import numpy as np
import pytest
from PIL import Image

from e3bm.errors import SettingsError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.app import create_app
from e3bm.serving.work.process import CONTEXT, load_before_forking
from keeping_process import serve_for_ever
from serving_networks import Killed, Stoppable

WIDTH = 1280


@pytest.fixture
def stoppable(tmp_path) -> tuple[FewShotClassifier, Stoppable]:
    """A classifier whose backbone waits until it is told to go on."""
    network = Stoppable(tmp_path)
    return FewShotClassifier(network, pipeline="resize 8, normalise none"), network


def until(condition) -> None:
    """Wait for something that happens in another process."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen within a minute")


def fill(visitor, classes: int, photos: int) -> None:
    """Classes of random features, as if photos had been looked at."""
    workspace, random = visitor.service.workspace, np.random.default_rng(0)
    for name in range(classes):
        made = workspace.create_class(f"class {name}")
        rows = (random.normal(size=(photos, WIDTH)) + 2 * random.normal(size=WIDTH)).astype(np.float32)
        workspace.add_photos(made.number, list(rows), workspace.snapshot)


def fill_for_long(visitor) -> None:
    """So many photos that their fit takes a good part of a minute."""
    fill(visitor, 16, 50)


def test_what_was_given_up_never_takes_effect(serve_with, glyph_png, stoppable) -> None:
    classifier, network = stoppable
    with serve_with(classifier, timeout=1) as visitor:
        workspace = visitor.service.workspace  # asked directly: on a busy machine any request may be given up
        number = workspace.create_class("a").number
        until(lambda: visitor.service.photo_work._process is not None)
        while not network.entered.exists():  # or it was given up before it had begun
            assert visitor.photos(f"/classes/{number}/photos", glyph_png("g", 0)).status_code == 503
        network.may.touch()
        # The next one is served by another process; had the first gone on, its photo would be there before this one.
        until(lambda: visitor.photos(f"/classes/{number}/photos", glyph_png("g", 1)).status_code == 201)
        assert len(workspace.snapshot.classes[0].photos) == 1


def test_the_process_of_work_that_was_given_up_is_gone(serve_with, glyph_png, stoppable) -> None:
    classifier, network = stoppable
    with serve_with(classifier, timeout=1) as visitor:
        number = visitor.service.workspace.create_class("a").number
        process = visitor.service.photo_work
        until(lambda: process._process is not None)
        before = process._process.pid
        assert visitor.photos(f"/classes/{number}/photos", glyph_png("g", 0)).status_code == 503
        network.may.touch()
        # On a busy machine the next one may be given up, too.
        until(lambda: visitor.photos(f"/classes/{number}/photos", glyph_png("g", 0)).status_code == 201)
        assert process._process.pid != before


def test_a_process_that_the_system_ends_is_a_sentence_and_the_next_one_works(serve_with, glyph_png) -> None:
    with serve_with(FewShotClassifier(Killed(), pipeline="resize 8, normalise none")) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        for _ in range(2):
            answer = visitor.photos(f"/classes/{number}/photos", glyph_png("g", 0))
            assert answer.status_code == 503
            assert "lack of memory" in answer.json()["error"]
            assert "defect" not in answer.text
        assert visitor.get("/health").status_code == 200


def test_a_network_that_cannot_be_sent_is_refused_at_the_start() -> None:
    from torch import nn

    class Local(nn.Module):
        pass

    with pytest.raises(SettingsError, match="define its class at the top of a module"):
        create_app(classifier=FewShotClassifier(Local(), pipeline="resize 8, normalise none"))


def test_a_fit_is_a_job_with_progress_that_can_be_cancelled(serve_with, glyph_png) -> None:
    with serve_with() as visitor:
        assert visitor.get("/fit").status_code == 404
        assert visitor.delete("/fit").status_code == 409
        visitor.teach("g", "&")
        before = visitor.fit()
        expected = visitor.photos("/predict", glyph_png("g", 7)).json()
        visitor.service.workspace.clear()
        assert visitor.photos("/predict", glyph_png("g", 7)).status_code == 409
        visitor.teach("g", "&")
        assert visitor.fit()["rates"] == before["rates"]
        known = visitor.service.workspace.snapshot
        fill_for_long(visitor)
        # The classes of another width would refuse the fit: forget the first two, but keep their fit for the test.
        visitor.service.workspace.snapshot = _with_fit_of(visitor.service.workspace.snapshot, known)
        begun = visitor.post("/fit", params={"wait": 0})
        assert begun.status_code == 202
        assert begun.json()["state"] == "running"
        assert begun.json()["model"] is None
        assert visitor.post("/fit", params={"wait": 0}).json()["id"] == begun.json()["id"]
        until(lambda: visitor.get("/fit").json()["total"] > 0)
        assert visitor.get("/fit").json()["stage"] == "leaving photos out"
        # The old model answers meanwhile.
        told = visitor.photos("/predict", glyph_png("g", 7)).json()
        assert told["predictions"][0]["probabilities"] == expected["predictions"][0]["probabilities"]
        assert visitor.get("/fit").json()["state"] == "running"
        assert visitor.delete("/fit").status_code == 204
        ended = visitor.get("/fit").json()
        assert (ended["state"], ended["model"], ended["error"]) == ("cancelled", None, None)
        assert visitor.service.workspace.snapshot.fit is known.fit
        assert visitor.delete("/fit").status_code == 409


def _with_fit_of(now, known):
    from dataclasses import replace

    ours = {one.number for one in known.classes}
    return replace(now, classes=tuple(one for one in now.classes if one.number not in ours), fit=known.fit)


def test_newer_photos_end_a_fit_of_older_ones(serve_with) -> None:
    with serve_with() as visitor:
        fill_for_long(visitor)
        first = visitor.post("/fit", params={"wait": 0}).json()
        visitor.service.workspace.clear()
        fill(visitor, 2, 2)
        second = visitor.post("/fit", params={"wait": 60}).json()
        assert (second["id"], second["state"]) == (first["id"] + 1, "done")
        assert second["model"]["classes"] == ["class 0", "class 1"]


def test_a_fit_that_takes_too_long_fails_and_changes_nothing(serve_with) -> None:
    with serve_with(fit_timeout=0.5) as visitor:
        fill_for_long(visitor)
        answer = visitor.post("/fit", params={"wait": 60})
        assert answer.status_code == 503
        assert visitor.get("/fit").json()["state"] == "failed"
        assert "longer than 0.5 seconds" in visitor.get("/fit").json()["error"]
        assert visitor.get("/workspace").json()["model"] is None


def test_stopping_does_not_wait_for_a_fit(serve_with) -> None:
    with serve_with(stop_timeout=1) as visitor:
        fill_for_long(visitor)
        assert visitor.post("/fit", params={"wait": 0}).status_code == 202
        until(lambda: visitor.get("/fit").json()["total"] > 0)
        process = visitor.service.fits._work._process.pid
        visitor.stop()
    # The server has ended, and with it the process that fitted.
    until(lambda: not _exists(process))
    assert visitor.service.workspace.snapshot.fit is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_sigterm_during_a_fit_ends_the_server() -> None:
    random = np.random.default_rng(0)
    classes = (random.normal(size=(16, 50, WIDTH)) + 2 * random.normal(size=(16, 1, WIDTH))).astype(np.float32)
    load_before_forking()
    ours, theirs = CONTEXT.Pipe()
    settings = {"classes": classes, "stop_timeout": 1}
    served = CONTEXT.Process(target=serve_for_ever, args=(None, theirs), kwargs=settings)
    served.start()
    theirs.close()
    try:
        with httpx.Client(base_url=ours.recv(), timeout=60) as client:
            assert client.post("/fit", params={"wait": 0}).status_code == 202
            until(lambda: client.get("/fit").json()["total"] > 0)
            os.kill(served.pid, signal.SIGTERM)
            served.join(60)
            assert served.exitcode is not None, "the server waited for the fit"
    finally:
        served.kill()
        served.join()
    assert served.exitcode in (0, -signal.SIGTERM)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_pixels_are_counted_over_a_whole_request(serve_with, glyph_png) -> None:
    with serve_with(most_pixels_together=28 * 28 * 2) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        place, small = f"/classes/{number}/photos", glyph_png("g", 0)
        assert visitor.photos(place, small, small).status_code == 201
        refused = visitor.photos(place, small, small, small)
        assert refused.status_code == 413
        assert "2,352 pixels together; one request may have at most 1,568" in refused.json()["error"]


def _photo(width: int, height: int, form: str, **options: object) -> bytes:
    written = io.BytesIO()
    Image.new("L", (width, height), 90).save(written, form, **options)
    return written.getvalue()


def test_a_large_jpeg_is_decoded_at_a_part_of_its_size_and_counts_by_that(serve_with) -> None:
    """9000 x 6000 are more than one image may have; a quarter of it is not, and three such are 40 megapixels."""
    large = _photo(9000, 6000, "JPEG")
    with serve_with(most_pixels_together=3 * 4500 * 3000) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        place = f"/classes/{number}/photos"
        assert visitor.photos(place, large, large, large).status_code == 201
        together = visitor.photos(place, large, large, large, large)
        assert together.status_code == 413
        assert "54,000,000 pixels together; one request may have at most 40,500,000" in together.json()["error"]
        for whole in (_photo(9000, 6000, "PNG"), _photo(9000, 6000, "JPEG", progressive=True)):
            refused = visitor.photos(place, whole)
            assert refused.status_code == 413
            assert "it claims to be 9000 x 6000, more than the limit of 50,000,000 pixels" in refused.json()["error"]
