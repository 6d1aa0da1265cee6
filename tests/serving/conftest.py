"""A real server on a free loopback port, a network that is quick, and glyphs as photos."""

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from PIL import Image
from torch import nn

from e3bm.data.sources.glyphs import load_glyphs
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.app import create_app
from e3bm.serving.server import listening, server
from e3bm.serving.service import Service
from e3bm.serving.settings import ServeSettings

PIPELINE = "resize 28, centre_crop 28, normalise none"


def quick_classifier() -> FewShotClassifier:
    """The mean of every 4 x 4 pixels as features."""
    return FewShotClassifier(nn.Sequential(nn.AvgPool2d(4), nn.Flatten()), pipeline=PIPELINE)


def glyph(character: str, number: int, scale: int = 1) -> bytes:
    """A PNG of a character in one of its typefaces."""
    glyphs = load_glyphs()
    rows = (glyphs.labels == glyphs.characters.index(character)).nonzero()[0]
    image = Image.fromarray(255 - glyphs.images[rows[number], ..., 0])
    written = io.BytesIO()
    image.resize((28 * scale, 28 * scale)).save(written, "PNG")
    return written.getvalue()


class Visitor(httpx.Client):
    """A client with the words of the API, which can tell its server to stop."""

    stop: Callable[[], None]
    service: Service

    def photos(self, address: str, *contents: bytes, **fields: str) -> httpx.Response:
        """Send photos in a form."""
        files = [("photos", (f"{number}.png", content, "image/png")) for number, content in enumerate(contents)]
        return self.post(address, files=files, data=fields)

    def fit(self) -> dict:
        """Fit, and wait until that is done."""
        answer = self.post("/fit", params={"wait": 60})
        assert answer.status_code == 200, answer.text
        return answer.json()["model"]

    def teach(self, *characters: str, shots: int = 4) -> dict[str, int]:
        """A class for every character; gives their numbers."""
        numbers = {}
        for character in characters:
            numbers[character] = self.post("/classes", json={"name": character}).json()["id"]
            contents = [glyph(character, number) for number in range(shots)]
            assert self.photos(f"/classes/{numbers[character]}/photos", *contents).status_code == 201
        return numbers


@contextmanager
def running(
    settings: ServeSettings, classifier: FewShotClassifier, token: str | None = None
) -> Iterator[tuple[str, Callable[[], None], Service]]:
    """The address of a server in a thread of its own, what tells it to stop, and what its routes work with."""
    app = create_app(settings, classifier, token)
    with listening(settings) as place:
        served = server(app, settings)
        thread = threading.Thread(target=served.run, kwargs={"sockets": [place]})
        thread.start()

        def stop() -> None:
            served.should_exit = True

        try:
            for _ in range(6000):
                if served.started:
                    break
                time.sleep(0.01)
            assert served.started, "the server did not start within a minute"
            yield f"http://127.0.0.1:{place.getsockname()[1]}", stop, app.state.service
        finally:
            stop()
            thread.join(120)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with the usual limits, one for all tests of a file."""
    with running(ServeSettings(port=0), quick_classifier()) as (found, _, _):
        yield found


@pytest.fixture
def visitor(address: str) -> Iterator[Visitor]:
    """A client of that server, which finds the workspace empty."""
    with Visitor(base_url=address, timeout=60) as client:
        assert client.delete("/workspace").status_code == 204
        yield client


@pytest.fixture(scope="session")
def serve_with() -> Callable[..., object]:
    """A server with other limits: ``with serve_with(in_flight=2) as visitor``."""

    @contextmanager
    def started(
        classifier: FewShotClassifier | None = None, *, token: str | None = None, **settings: object
    ) -> Iterator[Visitor]:
        chosen = ServeSettings(port=0, **settings)
        with (
            running(chosen, classifier or quick_classifier(), token) as (found, stop, service),
            Visitor(base_url=found, timeout=60) as client,
        ):
            client.stop, client.service = stop, service
            yield client

    return started


@pytest.fixture(scope="session")
def glyph_png() -> Callable[..., bytes]:
    """Photos: characters in different typefaces."""
    return glyph


@pytest.fixture(scope="session")
def quick() -> Callable[[], FewShotClassifier]:
    """Makes classifiers with the server's backbone."""
    return quick_classifier
