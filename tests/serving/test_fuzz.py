"""Whatever is sent, the answer is a sentence or a result: never a defect of ours, never silence.

E3BM_FUZZ_CASES asks for more cases than the suite runs, E3BM_FUZZ_LOG for a file that tells what came back.
"""

import io
import json
import os
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as some
from PIL import Image

CASES = int(os.environ.get("E3BM_FUZZ_CASES", "100"))
FORMATS = (
    "PNG",
    "JPEG",
    "GIF",
    "BMP",
    "TIFF",
    "WEBP",
    "PPM",
    "ICO",
    "TGA",
    "PCX",
    "DDS",
    "JPEG2000",
    "MPO",
    "SGI",
    "AVIF",
    "HEIF",
)
MODES = ("L", "RGB", "RGBA", "P", "1", "CMYK")
PLACES = (("POST", "/classes/{}/photos"), ("POST", "/predict"), ("PUT", "/model"), ("POST", "/classes"))
KINDS = ("multipart/form-data", "multipart/form-data; boundary=", "application/json", "image/png")
NAMES = ("../../etc/passwd", "a\x00b.png", "C:\\x.png", "", "x" * 5000, 'quo"te.png')
FIELDS = ("photos", "model", "together", "name", "photos[]", "")
SLOWEST = 120  # seconds until silence is called a hang, on a machine that may be busy


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


def damaged(random: Random, content: bytes) -> bytes:
    """The content with pieces cut out, doubled or changed; now and then as it is."""
    pieces = bytearray(content)
    for _ in range(random.randint(0, 3)):
        place = random.randint(0, len(pieces))
        match random.randint(0, 3):
            case 0:
                pieces[place : place + 4] = random.randbytes(random.randint(0, 8))
            case 1:
                del pieces[place:]
            case 2:
                del pieces[place : place + random.randint(1, 64)]
            case _:
                pieces[place:place] = pieces[: random.randint(1, 64)]
    return bytes(pieces)


def text(random: Random, most: int = 40) -> str:
    """Letters of everywhere, controls and halves of pairs among them."""
    ranges = ((0, 127), (32, 126), (0, 0x2FF), (0x300, 0x36F), (0xD800, 0xDFFF), (0x1F300, 0x1FAFF))
    return "".join(chr(random.randint(*random.choice(ranges))) for _ in range(random.randint(0, most)))


def form_body(random: Random, field: str, model: bytes) -> tuple[str, bytes]:
    """A multipart form, mostly well made, with one to four parts."""
    boundary = random.choice(["b", "----x", "a" * 70, "a" * 300])
    pieces = []
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        odd = random.random() < 0.25
        name = random.choice([*NAMES, text(random), None]) if odd else random.choice(["a.png", "b.jpeg", "m.e3bm"])
        file = "" if name is None else f'; filename="{name}"'
        kind = random.choice(["", "\r\nContent-Type: image/png", "\r\nContent-Type: text/html; charset=x"])
        part = random.choice(FIELDS) if odd else field
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part}"{file}{kind}\r\n\r\n'
        whole = model if field == "model" else encoded(random.choice(FORMATS), random.choice(MODES))
        pieces.append(head.encode("utf-8", "surrogatepass") + damaged(random, whole) + b"\r\n")
    end = random.choice([f"--{boundary}--\r\n"] * 6 + [f"--{boundary}--", "", f"--{boundary}\r\n"])
    return f"multipart/form-data; boundary={boundary}", b"".join(pieces) + end.encode()


def plain_body(random: Random) -> tuple[str, bytes]:
    """Anything that calls itself anything; often JSON, sometimes of the right shape."""
    values = [None, True, -1, 10**40, 1e400, text(random), [], {}, {"name": text(random)}, {"name": text(random, 400)}]
    value = random.choice([*values, {text(random): random.choice(values)}, [random.choice(values)] * 3])
    body = random.choice([random.randbytes(random.randint(0, 300)), json.dumps(value).encode(), b"[" * 5_000])
    odd = "".join(letter for letter in text(random) if letter.isascii() and letter.isprintable()).strip()
    return random.choice([*KINDS, "application/json", odd]), body


class Taught:
    """A server with two classes that nobody else uses, its model, and a count of what came back."""

    def __init__(self, visitor: Any, model: bytes) -> None:
        self.visitor, self.model = visitor, model
        self.told: Counter[str] = Counter()


@pytest.fixture(scope="module")
def taught(serve_with):
    """Starts it, and writes the log where one was asked for."""
    with serve_with(most_classes=50, timeout=SLOWEST) as visitor:
        visitor.teach("g", "&")
        visitor.fit()
        found = Taught(visitor, visitor.get("/model").content)
        yield found
        assert visitor.get("/health").json()["status"] == "ok"
        if log := os.environ.get("E3BM_FUZZ_LOG"):
            lines = [f"{count:6d}  {what}" for what, count in sorted(found.told.items())]
            head = f"{sum(found.told.values())} cases, asked for {CASES}; method, address, status of the answer"
            Path(log).write_text("\n".join([head, *lines]) + "\n")


# Only a seed is drawn: what hypothesis draws piece by piece depends on the modules that are loaded meanwhile.
@given(seed=some.integers(0, 2**64 - 1))
@settings(max_examples=CASES, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
def test_whatever_is_sent_is_answered(taught, seed: int) -> None:
    random = Random(seed)
    visitor, model, told = taught.visitor, taught.model, taught.told
    number = visitor.get("/workspace").json()["classes"][0]["id"]
    method, place = random.choice(PLACES)
    formed = place != "/classes" and random.random() < 0.85
    field = "model" if place == "/model" else "photos"
    kind, body = form_body(random, field, model) if formed else plain_body(random)
    headers = {"Content-Type": kind}
    answer = visitor.request(method, place.format(number), content=body, headers=headers, timeout=SLOWEST)
    told[f"{method} {place} {answer.status_code}"] += 1
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert set(answer.json()) == {"error"}
        assert answer.json()["error"].endswith(".")
