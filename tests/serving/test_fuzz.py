"""Whatever is sent, the answer is a sentence or a result: never a defect of ours, never silence.

E3BM_FUZZ_CASES asks for more cases than the suite runs, E3BM_FUZZ_LOG for a file that tells what came back.
"""

import io
import json
import os
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from PIL import Image

CASES = int(os.environ.get("E3BM_FUZZ_CASES", "100"))
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "TGA", "PCX", "DDS", "JPEG2000", "MPO", "SGI")
PLACES = (("POST", "/classes/{}/photos"), ("POST", "/predict"), ("PUT", "/model"), ("POST", "/classes"))
MODES = ("L", "RGB", "RGBA", "P", "1", "CMYK")
KINDS = ("multipart/form-data", "multipart/form-data; boundary=", "application/json", "image/png")
SLOWEST = 30  # seconds until silence is called a hang


@cache
def encoded(kind: str, mode: str) -> bytes:
    """A small picture in a format, or as PNG where the format does not take it."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    written = io.BytesIO()
    try:
        Image.fromarray(pixels).convert(mode).save(written, kind)
    except (OSError, ValueError, KeyError):
        return encoded("PNG", "RGB")
    return written.getvalue()


@some.composite
def damaged(draw, whole=None) -> bytes:
    """An image or model with pieces cut out, doubled or changed; now and then none of it."""
    content = bytearray(
        draw(
            some.builds(encoded, some.sampled_from(FORMATS), some.sampled_from(("L", "RGB", "RGBA", "P", "1", "CMYK")))
        )
        if whole is None
        else whole
    )
    for _ in range(draw(some.integers(0, 3))):
        place = draw(some.integers(0, len(content)))
        match draw(some.integers(0, 3)):
            case 0:
                content[place : place + 4] = draw(some.binary(max_size=8))
            case 1:
                del content[place:]
            case 2:
                del content[place : place + draw(some.integers(1, 64))]
            case _:
                content[place:place] = content[: draw(some.integers(1, 64))]
    return bytes(content)


NAMES = some.text(max_size=40) | some.sampled_from(["../../etc/passwd", "a\x00b.png", "C:\\x.png", "", "x" * 5000])
FIELDS = some.sampled_from(["photos", "model", "together", "name", "photos[]", ""])
WORDS = some.text(some.characters(min_codepoint=32, max_codepoint=126), max_size=40)


@some.composite
def form_bodies(draw, field, contents) -> tuple[str, bytes]:
    """A multipart form, mostly well made, with one to four parts."""
    boundary = draw(some.sampled_from(["b", "----x", "a" * 70]))
    pieces = []
    for _ in range(draw(some.integers(1, 4))):
        odd = draw(some.integers(0, 3)) == 3
        name = draw(NAMES | some.none()) if odd else draw(some.sampled_from(["a.png", "b.jpeg", "m.e3bm"]))
        file = "" if name is None else f'; filename="{name}"'
        kind = draw(some.sampled_from(["", "\r\nContent-Type: image/png", "\r\nContent-Type: text/html; charset=x"]))
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{draw(FIELDS) if odd else field}"{file}{kind}'
        pieces.append(f"{head}\r\n\r\n".encode("utf-8", "surrogatepass") + draw(contents) + b"\r\n")
    end = draw(some.sampled_from([f"--{boundary}--\r\n"] * 4 + [f"--{boundary}--", "", f"--{boundary}\r\n"]))
    return f"multipart/form-data; boundary={boundary}", b"".join(pieces) + end.encode()


def plain_bodies() -> some.SearchStrategy[tuple[str, bytes]]:
    """Anything that calls itself anything."""
    documents = some.recursive(
        some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
        lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    )
    written = documents.map(lambda value: json.dumps(value).encode()) | WORDS.map(
        lambda word: json.dumps({"name": word}).encode()
    )
    return some.tuples(some.sampled_from(KINDS) | WORDS, some.binary(max_size=300) | written)


@pytest.fixture(scope="module")
def taught(serve_with):
    """A server with two classes that nobody else uses, its model, and a count of what came back."""
    with serve_with(most_classes=50, timeout=SLOWEST) as visitor:
        visitor.teach("g", "&")
        visitor.post("/fit")
        told: Counter[str] = Counter()
        yield visitor, visitor.get("/model").content, told
        assert visitor.get("/health").json()["status"] == "ok"
        if log := os.environ.get("E3BM_FUZZ_LOG"):
            lines = [f"{count:6d}  {what}" for what, count in sorted(told.items())]
            Path(log).write_text(f"{CASES} cases of the upload endpoints\n" + "\n".join(lines) + "\n")


@given(data=some.data())
@settings(
    max_examples=CASES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_sent_is_answered(taught, data) -> None:
    visitor, model, told = taught
    number = visitor.get("/workspace").json()["classes"][0]["id"]
    method, place = data.draw(some.sampled_from(PLACES))
    forms = form_bodies("model", damaged(model)) if place == "/model" else form_bodies("photos", damaged())
    kind, body = data.draw(plain_bodies() if place == "/classes" else some.one_of(forms, forms, forms, plain_bodies()))
    answer = visitor.request(
        method, place.format(number), content=body, headers={"Content-Type": kind}, timeout=SLOWEST
    )
    told[f"{method} {place} {answer.status_code}"] += 1
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert set(answer.json()) == {"error"}
        assert answer.json()["error"].endswith(".")
