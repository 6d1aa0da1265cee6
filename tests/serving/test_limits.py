"""What is refused: too much, too many, too slow, from elsewhere; and what never touches the disk."""

import io
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image

from e3bm.errors import SettingsError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.errors import HEADERS
from e3bm.serving.server import listening
from e3bm.serving.settings import ServeSettings
from serving_networks import Broken, Stoppable


@pytest.fixture
def stoppable(tmp_path) -> tuple[FewShotClassifier, Stoppable]:
    """A classifier whose backbone waits where it is told to."""
    network = Stoppable(tmp_path)
    network.may.touch()
    return FewShotClassifier(network, pipeline="resize 8, normalise none"), network


def until(condition) -> None:
    """Wait for something that happens in another process."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen within a minute")


def noise(side: int, seed: int = 0) -> bytes:
    """A PNG that cannot be compressed, of about 3 x side x side bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


def test_size_count_pixels_classes_and_photos_are_limited(serve_with, glyph_png) -> None:
    with serve_with(
        most_upload_megabytes=0.1, most_images=3, most_pixels=1000, most_photos=3, most_classes=2
    ) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        place, small = f"/classes/{number}/photos", glyph_png("g", 0)
        assert visitor.photos(place, noise(200)).status_code == 413
        assert "0.1 MB" in visitor.photos(place, noise(200)).json()["error"]
        assert "784" not in visitor.photos(place, glyph_png("g", 0, 2)).json()["error"]
        assert visitor.photos(place, glyph_png("g", 0, 2)).status_code == 413
        assert visitor.photos(place, *[small] * 4).status_code == 413
        assert "3 files at most" in visitor.photos(place, *[small] * 4).json()["error"]
        assert visitor.photos(place, *[small] * 3).status_code == 201
        assert "3 photos" in visitor.photos(place, small).json()["error"]
        assert visitor.post("/classes", json={"name": "b"}).status_code == 201
        assert visitor.post("/classes", json={"name": "c"}).status_code == 409


def test_forms_that_cannot_be_read_are_refused(visitor, glyph_png) -> None:
    number = visitor.post("/classes", json={"name": "a"}).json()["id"]
    head = b'--b\r\nContent-Disposition: form-data; name="photos"; filename="a.png"\r\n\r\n'
    whole = head + glyph_png("g", 0) + b"\r\n--b--\r\n"

    def sent(body: bytes, kind: str = "multipart/form-data; boundary=b") -> tuple[int, str]:
        answer = visitor.post(f"/classes/{number}/photos", content=body, headers={"Content-Type": kind})
        return answer.status_code, "" if answer.status_code == 201 else answer.json()["error"]

    assert sent(whole) == (201, "")
    assert sent(whole[:-8]) == (400, "The form ends too early; its last boundary is missing.")
    assert sent(b"no form") == (400, "The form cannot be read; it is not well-formed multipart/form-data.")
    assert sent(whole.replace(b'name="photos"; ', b"")) == sent(b"no form")
    assert sent(whole, "multipart/form-data") == sent(whole, "image/png")
    assert sent(whole, "image/png") == (415, "Send files as multipart/form-data in the field 'photos'.")
    assert sent(whole.replace(b"photos", b"others")) == (
        422,
        "There is no field 'others' here; this form takes files in the field 'photos'.",
    )
    field = b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\n%s\r\n'
    assert sent(field % b"short" + whole) == (
        422,
        "There is no field 'note' here; this form takes files in the field 'photos'.",
    )
    assert sent(field % (b"x" * 1001) + whole) == (413, "A field that is not a file may have at most 1000 bytes.")
    assert sent(field % b"" * 9 + whole) == (413, "A form may have at most 8 fields in addition to its files.")


def test_a_body_without_a_length_is_cut_off_at_the_limit(serve_with) -> None:
    def endless():
        for _ in range(1000):
            yield b"x" * 10_000

    with serve_with(most_upload_megabytes=0.1) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        kinds = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = visitor.post(f"/classes/{number}/photos", content=endless(), headers=kinds)
        assert answer.status_code in (400, 413)
        assert visitor.post("/classes", content=endless()).status_code == 413


def test_a_request_that_never_ends_is_given_up(serve_with) -> None:
    with serve_with(timeout=0.3) as visitor:
        place = urlsplit(str(visitor.base_url))
        with socket.create_connection((place.hostname, place.port), timeout=20) as line:
            line.sendall(
                b"POST /classes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b'Content-Length: 100\r\n\r\n{"name'
            )
            assert line.recv(1000).startswith(b"HTTP/1.1 408")


def test_too_many_at_once_are_told_to_come_back(serve_with, glyph_png, stoppable) -> None:
    classifier, network = stoppable
    with serve_with(classifier, in_flight=2) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        network.may.unlink()
        sent = [
            threading.Thread(target=visitor.photos, args=(f"/classes/{number}/photos", glyph_png("g", 0)))
            for _ in range(2)
        ]
        for one in sent:
            one.start()
        try:
            until(lambda: "in_flight 3.0\n" in visitor.get("/metrics").text)
            refused = visitor.get("/workspace")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert visitor.get("/health").status_code == 200
        finally:
            network.may.touch()
            for one in sent:
                one.join(120)
        assert len(visitor.get("/workspace").json()["classes"][0]["photos"]) == 2


def test_work_that_takes_too_long_is_given_up_and_the_rest_goes_on(serve_with, glyph_png, stoppable) -> None:
    classifier, network = stoppable
    with serve_with(classifier, timeout=1) as visitor:
        workspace = visitor.service.workspace  # asked directly: on a busy machine any request may be given up
        number = workspace.create_class("a").number
        network.may.unlink()
        refused = visitor.photos(f"/classes/{number}/photos", glyph_png("g", 0))
        assert refused.status_code == 503
        assert "longer than 1 second" in refused.json()["error"]
        network.may.touch()
        until(lambda: visitor.photos(f"/classes/{number}/photos", glyph_png("g", 1)).status_code == 201)
        assert len(workspace.snapshot.classes[0].photos) == 1


def test_stopping_waits_for_the_requests_in_flight(serve_with, glyph_png, stoppable) -> None:
    classifier, network = stoppable
    answers = []
    with serve_with(classifier) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        network.may.unlink()
        network.entered.unlink(missing_ok=True)
        sent = threading.Thread(
            target=lambda: answers.append(visitor.photos(f"/classes/{number}/photos", glyph_png("g", 0)))
        )
        sent.start()
        until(network.entered.exists)
        visitor.stop()
        network.may.touch()
        sent.join(120)
    assert [answer.status_code for answer in answers] == [201]


def test_uploads_together_may_hold_so_much_memory(serve_with) -> None:
    with serve_with(memory_megabytes=0.05) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        assert visitor.photos(f"/classes/{number}/photos", noise(200)).status_code == 503
        assert visitor.photos(f"/classes/{number}/photos", noise(50)).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://[broken"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_sites_change_nothing(visitor, headers) -> None:
    for method, place in (("POST", "/classes"), ("DELETE", "/workspace"), ("POST", "/fit"), ("PUT", "/model")):
        answer = visitor.request(method, place, headers=headers)
        assert answer.status_code == 403
        assert "another site" in answer.json()["error"]


def test_our_own_page_may_change_things(visitor, address) -> None:
    headers = {"Origin": address, "Sec-Fetch-Site": "same-origin"}
    assert visitor.post("/classes", json={"name": "g"}, headers=headers).status_code == 201


@pytest.mark.parametrize("host", ["elsewhere.example", "127.0.0.1.elsewhere.example:80", "", "[", "a:b:c"])
def test_other_host_names_are_refused(visitor, host) -> None:
    answer = visitor.get("/workspace", headers={"Host": host})
    assert answer.status_code in (400, 421)


def test_further_names_are_allowed(serve_with) -> None:
    with serve_with(names=("photos.example",)) as visitor:
        for host in ("photos.example", "photos.example:8443", "localhost:80", "[::1]:80"):
            assert visitor.get("/health", headers={"Host": host}).status_code == 200


def test_every_answer_carries_the_headers(visitor) -> None:
    for answer in (
        visitor.get("/"),
        visitor.get("/nothing"),
        visitor.get("/", headers={"Host": "elsewhere.example"}),
        visitor.post("/classes", headers={"Origin": "null"}),
        visitor.post("/fit"),
    ):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_a_defect_is_a_sentence_with_the_headers(serve_with, glyph_png, caplog) -> None:
    with serve_with(FewShotClassifier(Broken(), pipeline="resize 8, normalise none")) as visitor:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        answer = visitor.photos(f"/classes/{number}/photos", glyph_png("g", 0))
        assert answer.status_code == 500
        assert answer.json() == {"error": "This is a defect of e3bm; the server's log says where."}
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "e3bm_errors_total 1.0\n" in visitor.get("/metrics").text
    assert "ZeroDivisionError" in caplog.text


def test_nothing_of_a_photo_is_written_to_disk(visitor, tmp_path, monkeypatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened: list[str] = []

    def refuse(*arguments, **options):
        opened.append("a temporary file")
        raise OSError("no temporary files here")

    for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp"):
        monkeypatch.setattr(tempfile, name, refuse)
    large = noise(800)
    assert len(large) > 1_500_000
    watched = Watch(tmp_path)
    with watched:
        number = visitor.post("/classes", json={"name": "a"}).json()["id"]
        assert visitor.photos(f"/classes/{number}/photos", large, large).status_code == 201
        other = visitor.post("/classes", json={"name": "b"}).json()["id"]
        assert visitor.photos(f"/classes/{other}/photos", noise(800, 1)).status_code == 201
        visitor.fit()
        assert visitor.photos("/predict", large).status_code == 200
    assert opened == []
    assert watched.seen == set()


class Watch:
    """Looks at a folder all the time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self._stop = folder, set(), threading.Event()

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def __exit__(self, *error) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.002):
            self.seen |= set(self.folder.iterdir())


def test_a_port_that_is_taken_is_a_sentence(address) -> None:
    port = urlsplit(address).port
    with pytest.raises(SettingsError, match=f"port {port}"):
        listening(ServeSettings(port=port))


def test_a_client_that_leaves_harms_nobody(visitor, address) -> None:
    place = urlsplit(address)
    number = visitor.post("/classes", json={"name": "a"}).json()["id"]
    with socket.create_connection((place.hostname, place.port), timeout=20) as line:
        head = f"POST /classes/{number}/photos HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n"
        line.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n".encode())
    until(lambda: "in_flight 1.0\n" in httpx.get(f"{address}/metrics", timeout=60).text)
    assert 'status="500"' not in httpx.get(f"{address}/metrics", timeout=60).text
