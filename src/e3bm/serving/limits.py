"""Who is let in: known host names, no writes from other sites, so many requests, so many bytes, so much time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from e3bm.serving.refusals import Refusal, busy, refusal_response
from e3bm.serving.settings import MEGABYTE, ServeSettings

READING = ("GET", "HEAD", "OPTIONS")
ALWAYS_ANSWERED = ("/health", "/metrics")
OWN_SITE = ("same-origin", "none")


class Gate:
    """Refuses before any work is done and bounds what the rest of the server may read."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.in_flight = 0
        self.bytes_held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        counted = scope["path"] not in ALWAYS_ANSWERED
        try:
            self._check_host(headers)
            if scope["method"] not in READING:
                self._check_origin(headers)
            self._check_length(headers)
            if counted and self.in_flight >= self.settings.in_flight:
                raise busy()
        except Refusal as refusal:
            response = refusal_response(refusal.status_code, refusal.detail, refusal.headers)
            await response(scope, receive, send)
            return
        self.in_flight += counted
        body = BoundedBody(self, receive)
        try:
            await self.app(scope, body.receive, send)
        finally:
            self.bytes_held -= body.read
            self.in_flight -= counted

    def _check_host(self, headers: Headers) -> None:
        """A page of elsewhere can point its own name at this machine; its requests still carry that name."""
        name = host_name(headers.get("host", ""))
        if name not in self.settings.known_names:
            raise Refusal(
                421, f"This server does not answer for the host '{name[:100]}'; start it with --names to allow it."
            )

    def _check_origin(self, headers: Headers) -> None:
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        if site not in OWN_SITE or (origin is not None and netloc(origin) != headers.get("host", "").lower()):
            raise Refusal(403, "Changes may come only from this server's own page, not from another site.")

    def _check_length(self, headers: Headers) -> None:
        told = headers.get("content-length", "0")
        if told.isdecimal() and int(told) > self.settings.most_upload:
            raise too_large(self.settings)


class BoundedBody:
    """The body of one request as it arrives."""

    def __init__(self, gate: Gate, receive: Receive) -> None:
        self._gate, self._receive = gate, receive
        self._deadline: float | None = None
        self._whole = False
        self.read = 0

    async def receive(self) -> Message:
        """The next piece, unless there is too much of it or it takes too long."""
        if self._whole:
            return await self._receive()  # waits for the client to leave, however long that takes
        settings = self._gate.settings
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + settings.timeout
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(408, f"The request did not arrive within {settings.timeout:g} seconds.") from None
        size = len(message.get("body", b""))
        self.read += size
        self._gate.bytes_held += size
        self._whole = not message.get("more_body", False)
        if self.read > settings.most_upload:
            raise too_large(settings)
        if self._gate.bytes_held > settings.memory:
            raise busy("The server holds as many uploads as it may; try again in a moment.")
        return message


def too_large(settings: ServeSettings) -> Refusal:
    """For a body beyond the limit."""
    limit = settings.most_upload / MEGABYTE
    return Refusal(413, f"A request may have {limit:g} MB at most; send fewer or smaller photos.")


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    return (urlsplit(f"//{host}").hostname or "") if _plain(host) else ""


def netloc(origin: str) -> str:
    """Name and port of an origin, as a Host header has them."""
    return urlsplit(origin).netloc.lower() if _plain(origin) else ""


def _plain(address: str) -> bool:
    """Whether urlsplit will take it without complaint."""
    try:
        urlsplit(address if "//" in address else f"//{address}").port  # noqa: B018
    except ValueError:
        return False
    return True


# Where the work is done: a thread beside the one that talks to clients, and a limit to waiting for them.


Result = TypeVar("Result")


class Lane:
    """Runs one kind of work, a piece at a time; how many wait for it is bounded by the gate."""

    def __init__(self, name: str, timeout: float) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"e3bm-{name}")
        self._timeout = timeout

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result, or a refusal when it takes too long; work that has not begun by then never begins."""
        future = self._threads.submit(work)
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise busy(f"The work took longer than {self._timeout:g} seconds; try again with fewer photos.") from None

    def close(self) -> None:
        """Work that has begun is finished, the rest dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)
