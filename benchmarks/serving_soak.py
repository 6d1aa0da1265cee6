"""python -m benchmarks.serving_soak [--requests 10000 --at-once 32 --out soak.txt]

Many requests at once against a server of its own on loopback: no error, and memory that stays. The backbone is as small
as can be, so that the server itself is what is measured.
"""

import argparse
import asyncio
import io
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from e3bm.data.sources.glyphs import load_glyphs

CHARACTERS = ("g", "&", "Ж", "∞", "№")
SHOTS = 5
MEMORY = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)
MOST_GROWTH = 0.05


def main(words: Sequence[str] | None = None) -> int:
    """Start the server, send the requests, write what happened; 0 when nothing failed and memory stayed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args(words)
    if options.serve:
        return be_the_server()
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.serving_soak", "--serve"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().decode().strip()
        lines, good = asyncio.run(soak(address, options.requests, options.at_once))
    finally:
        server.terminate()
        stopped = server.wait(60)
    lines.append(f"the server stopped with code {stopped}")
    print("\n".join(lines))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n")
    return 0 if good and stopped == 0 else 1


def be_the_server() -> int:
    """A server with the usual limits whose features are means of pixels."""
    from torch import nn

    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.interruption import termination_as_interrupt
    from e3bm.serving.app import create_app
    from e3bm.serving.server import serve
    from e3bm.serving.settings import ServeSettings

    network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
    classifier = FewShotClassifier(network, pipeline="resize 28, centre_crop 28, normalise none")
    settings = ServeSettings(port=0)
    with suppress(KeyboardInterrupt), termination_as_interrupt():
        serve(create_app(settings, classifier), settings, lambda address: print(address, flush=True))
    return 0


async def soak(address: str, requests: int, at_once: int) -> tuple[list[str], bool]:
    """Teach, fit, and ask again and again."""
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        await teach(client)
        photos = [photo(character, number) for character in CHARACTERS for number in range(SHOTS, SHOTS + 20)]
        told: Counter[str] = Counter()
        seconds: list[float] = []
        memory: dict[int, int] = {}
        began = time.perf_counter()
        lines = [f"{requests:,} requests, {at_once} in flight, photos of 28 x 28 pixels, POST /predict"]
        places = iter(range(requests))

        async def ask_on() -> None:
            for place in places:
                before = time.perf_counter()
                try:
                    answer = await client.post("/predict", files={"photos": ("a.png", photos[place % len(photos)])})
                    told[str(answer.status_code)] += 1
                except httpx.HTTPError as error:
                    told[type(error).__name__] += 1
                seconds.append(time.perf_counter() - before)
                if len(seconds) % 1000 == 0:
                    done = len(seconds)
                    found = MEMORY.search((await client.get("/metrics")).text)
                    memory[done] = int(float(found[1])) if found else 0
                    lines.append(
                        f"after {done:6,}: {memory[done] / 1e6:8.1f} MB resident, {time.perf_counter() - began:7.1f} s"
                    )

        await asyncio.gather(*(ask_on() for _ in range(at_once)))
        growth = memory[requests] / memory[min(1000, requests)] - 1
        quantiles = " / ".join(f"{1000 * value:.0f}" for value in np.quantile(seconds, [0.5, 0.95, 0.99]))
        lines += [
            f"answers: {', '.join(f'{count:,} x {what}' for what, count in sorted(told.items()))}",
            f"milliseconds for half / 95 % / 99 % of the requests: {quantiles} (the machine did other work as well)",
            f"resident memory after {requests:,} compared with after 1,000: {100 * growth:+.2f} %",
        ]
        return lines, told == {"200": requests} and growth <= MOST_GROWTH


async def teach(client: httpx.AsyncClient) -> None:
    """Three classes of five photos."""
    for character in CHARACTERS[:3]:
        made = (await client.post("/classes", json={"name": character})).json()
        files = [("photos", (f"{number}.png", photo(character, number))) for number in range(SHOTS)]
        (await client.post(f"/classes/{made['id']}/photos", files=files)).raise_for_status()
    (await client.post("/fit", params={"wait": 60})).raise_for_status()


def photo(character: str, number: int) -> bytes:
    """A character in one of its typefaces, as PNG."""
    glyphs = load_glyphs()
    rows = np.flatnonzero(glyphs.labels == glyphs.characters.index(character))
    written = io.BytesIO()
    Image.fromarray(255 - glyphs.images[rows[number % len(rows)], ..., 0]).save(written, "PNG")
    return written.getvalue()


if __name__ == "__main__":
    sys.exit(main())
