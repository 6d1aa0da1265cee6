"""Requests, errors, latency, requests in flight and memory, in the text format that Prometheus reads."""

import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class Measures:
    """Counts since the start; labels are routes and methods of ours, so that their number is bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self.in_flight = 0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request that was answered."""
        with self._lock:
            self._requests[method if method in METHODS else "other", route, status] += 1
            self._buckets[bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def text(self) -> str:
        """All of it, a line each."""
        with self._lock:
            requests, buckets, seconds = dict(self._requests), list(self._buckets), self._seconds
        lines = ["# HELP e3bm_requests_total Requests answered.", "# TYPE e3bm_requests_total counter"]
        for (method, route, status), count in sorted(requests.items()):
            lines.append(f'e3bm_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        errors = sum(count for (_, _, status), count in requests.items() if status >= 500)
        lines += _single("e3bm_errors_total", "counter", "Requests answered with a status of 500 or more.", errors)
        lines += [
            "# HELP e3bm_request_seconds Time from the first byte to the last.",
            "# TYPE e3bm_request_seconds histogram",
        ]
        below = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), buckets, strict=True):
            below += count
            lines.append(f'e3bm_request_seconds_bucket{{le="{bound}"}} {below}')
        lines += [f"e3bm_request_seconds_sum {seconds:.6f}", f"e3bm_request_seconds_count {below}"]
        lines += _single("e3bm_requests_in_flight", "gauge", "Requests being served now.", self.in_flight)
        lines += _single("process_resident_memory_bytes", "gauge", "Resident memory.", resident_memory())
        return "\n".join(lines) + "\n"


class Measuring:
    """Watches every request go by."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self.app, self.measures = app, measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.perf_counter()
        self.measures.in_flight += 1
        try:
            await self.app(scope, receive, send_and_see)
        finally:
            self.measures.in_flight -= 1
            # The router leaves the route's own pattern in the scope; nothing of the address itself becomes a label.
            route = getattr(scope.get("route"), "path", "other")
            self.measures.record(scope["method"], route, status, time.perf_counter() - began)


def resident_memory() -> int:
    """Bytes of this process in memory; where the system does not say, the most there ever were."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def _single(name: str, kind: str, about: str, value: int) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value}"]
