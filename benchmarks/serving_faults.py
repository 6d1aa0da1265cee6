"""python -m benchmarks.serving_faults [--connections 1100 --descriptors 1024 --out results/serving/faults.txt]

What once froze the server, sent to one of its own on loopback while another client asks for /health all the time: large
JSON, forms of many or of endless parts, and more silent, half-told and half-sent connections than descriptors.
"""

import argparse
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.serving_soak import MEMORY

PART = b"--b\r\nContent-Disposition: form-data\r\n\r\n\r\n"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
HOST = b"Host: 127.0.0.1\r\n"
HALF_SENT = b"POST /classes HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"


class Watcher(threading.Thread):
    """Asks for /health on a new connection again and again, and remembers the longest wait."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address, self.worst, self.asked, self.failed = address, 0.0, 0, 0

    def run(self) -> None:
        while True:
            began = time.perf_counter()
            try:
                httpx.get(f"{self.address}/health", timeout=60).raise_for_status()
            except httpx.HTTPError:
                self.failed += 1
            self.asked, self.worst = self.asked + 1, max(self.worst, time.perf_counter() - began)
            time.sleep(0.02)


def main(words: Sequence[str] | None = None) -> int:
    """Start the server, do all of it, write what happened; 0 when nothing silenced it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1100)
    parser.add_argument("--descriptors", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(words)
    with tempfile.TemporaryFile() as log:
        # Soft and hard: the server cannot give itself more.
        limit = (options.descriptors, options.descriptors)
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving_soak", "--serve"],
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),  # noqa: PLW1509  # no thread yet
        )
        try:
            assert server.stdout is not None
            lines, good = trials(server.stdout.readline().decode().strip().rstrip("/"), options.connections)
        finally:
            server.terminate()
            stopped = server.wait(60)
        lines.append(f"the server stopped with code {stopped} and had written {log.tell():,} bytes of log")
    print("\n".join(lines))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n")
    return 0 if good else 1


def trials(address: str, connections: int) -> tuple[list[str], bool]:
    """A line for everything that is tried."""
    watcher = Watcher(address)
    number = httpx.post(f"{address}/classes", json={"name": "a"}, timeout=60).json()["id"]
    photos = f"{address}/classes/{number}/photos"
    watcher.start()
    lines = []

    def tried(name: str, work: Callable[[], str]) -> None:
        watcher.worst, began = 0.0, time.perf_counter()
        told = work()
        time.sleep(0.5)
        found = MEMORY.search(httpx.get(f"{address}/metrics", timeout=60).text)
        memory = float(found[1]) / 1e6 if found else 0.0
        seconds = time.perf_counter() - began - 0.5
        lines.append(
            f"{name}: {told}, {seconds:.1f} s; /health at most {1000 * watcher.worst:.0f} ms; {memory:.0f} MB resident"
        )

    def sent(place: str, content: bytes, headers: dict[str, str]) -> Callable[[], str]:
        return lambda: str(httpx.post(place, content=content, headers=headers, timeout=120).status_code)

    json_type = {"Content-Type": "application/json"}
    keys = b"{" + b",".join(b'"k%d":1' % place for place in range(900_000)) + b"}"
    tried(f"JSON of {len(keys) / 1e6:.0f} MB of unknown keys", sent(f"{address}/classes", keys, json_type))
    tried("30 MB of nameless parts", sent(photos, PART * (30_000_000 // len(PART)) + b"--b--\r\n", FORM))
    tried("25 MB of boundaries", sent(photos, b"--b\r\n" * 5_000_000 + b"--b--", FORM))
    tried("a part with a head of 30 MB", sent(photos, PART[:-4] + b"\r\nX: " + b"x" * 30_000_000, FORM))
    for name, content in (
        ("silent", b""),
        ("half-told", b"GET /health HTTP/1.1\r\n" + HOST + b"X: "),
        ("half-sent", HALF_SENT),
    ):
        tried(f"{connections:,} {name} connections", lambda content=content: flood(address, connections, content))
    lines.append(f"/health was asked {watcher.asked:,} times, {watcher.failed} times without an answer")
    return lines, watcher.failed == 0


def flood(address: str, connections: int, content: bytes) -> str:
    """Open so many connections that send this and no more, keep them for some seconds, and ask meanwhile."""
    place = urlsplit(address)
    with ExitStack() as lines:
        for _ in range(connections):
            line = lines.enter_context(socket.create_connection((place.hostname, place.port), timeout=60))
            line.sendall(content)
        answers = [httpx.get(f"{address}/workspace", timeout=60).status_code for _ in range(20)]
    return f"20 other requests answered with {', '.join(map(str, sorted(set(answers))))}"


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.exit(main())
