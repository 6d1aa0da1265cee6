"""Requests, errors, latency, requests in flight and memory, for Prometheus."""

import os
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class Metrics:
    """Counts since the start of one application; labels are its own routes and methods, so their number is bounded."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "e3bm_requests", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._errors = Counter(
            "e3bm_errors", "Requests answered with a status of 500 or more.", registry=self._registry
        )
        self._seconds = Histogram(
            "e3bm_request_seconds", "Time from the first byte to the last.", buckets=SECONDS, registry=self._registry
        )
        self.in_flight = Gauge("e3bm_requests_in_flight", "Requests being served now.", registry=self._registry)
        memory = Gauge("process_resident_memory_bytes", "Resident memory.", registry=self._registry)
        memory.set_function(resident_memory)

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request that was answered."""
        self._requests.labels(method if method in METHODS else "other", route, status).inc()
        self._seconds.observe(seconds)
        if status >= 500:
            self._errors.inc()

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Everything in the format that an Accept header asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class MetricsMiddleware:
    """Counts and times every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.perf_counter()
        with self.metrics.in_flight.track_inprogress():
            try:
                await self.app(scope, receive, note_status)
            finally:
                # The router leaves the route's own pattern in the scope; the address itself never becomes a label.
                route = getattr(scope.get("route"), "path", "other")
                self.metrics.record(scope["method"], route, status, time.perf_counter() - began)


def resident_memory() -> int:
    """Bytes of this process in memory; where the system does not say, the most there ever were."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
