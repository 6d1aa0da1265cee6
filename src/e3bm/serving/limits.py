"""What is refused before any work is done: unknown hosts, other sites, too many requests, too many bytes, slow ones.

Starlette has middlewares for hosts and for the size of a body. They are not used: the first answers in plain text,
without naming the host or saying how to allow it; the second looks at an announced length only when the body is read
or the answer begins, when the work of a request that reads no body is done already. Neither bounds the time that a
body may take or the memory of all uploads together.
"""

import asyncio
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from e3bm.serving.errors import RequestError, busy_error, error_response
from e3bm.serving.settings import MEGABYTE, ServeSettings

READING = ("GET", "HEAD", "OPTIONS")
ALWAYS_ANSWERED = ("/health", "/metrics")
OWN_SITE = ("same-origin", "none")


class RequestLimits:
    """Middleware that refuses requests by their headers and bounds what the rest of the server may read."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.in_flight = 0
        self.bytes_held = 0
        """The bodies of all requests in flight together."""

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
                raise busy_error()
        except RequestError as error:
            response = error_response(error.status_code, error.detail, error.headers)
            await response(scope, receive, send)
            return
        self.in_flight += counted
        body = BoundedBody(self, receive)
        try:
            await self.app(scope, body.receive, send)
        finally:
            self.bytes_held -= body.size
            self.in_flight -= counted

    def _check_host(self, headers: Headers) -> None:
        """Refuse unknown hosts: another site can point its own name at this machine, but requests carry that name."""
        address = _split_address(f"//{headers.get('host', '')}")
        name = (address.hostname or "") if address is not None else ""
        if name not in self.settings.known_names:
            raise RequestError(
                421, f"This server does not answer for the host '{name[:100]}'; start it with --names to allow it."
            )

    def _check_origin(self, headers: Headers) -> None:
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        if site not in OWN_SITE or (origin is not None and _origin_host(origin) != headers.get("host", "").lower()):
            raise RequestError(403, "Changes may come only from this server's own page, not from another site.")

    def _check_length(self, headers: Headers) -> None:
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self.settings.most_upload:
            raise _too_large(self.settings)


class BoundedBody:
    """The body of one request as it arrives: refused where it is too large, too slow, or too much with the others."""

    def __init__(self, limits: RequestLimits, receive: Receive) -> None:
        self._limits, self._receive = limits, receive
        self._deadline: float | None = None
        self._complete = False
        self.size = 0

    async def receive(self) -> Message:
        """The next piece of the body."""
        if self._complete:
            return await self._receive()  # waits for the client to leave, however long that takes
        settings = self._limits.settings
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + settings.timeout
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(408, f"The request did not arrive within {settings.timeout:g} seconds.") from None
        size = len(message.get("body", b""))
        self.size += size
        self._limits.bytes_held += size
        self._complete = not message.get("more_body", False)
        if self.size > settings.most_upload:
            raise _too_large(settings)
        if self._limits.bytes_held > settings.memory:
            raise busy_error("The server holds as many uploads as it may; try again in a moment.")
        return message


def _too_large(settings: ServeSettings) -> RequestError:
    limit = settings.most_upload / MEGABYTE
    return RequestError(413, f"A request may have {limit:g} MB at most; send fewer or smaller photos.")


def _origin_host(origin: str) -> str:
    """Name and port of an Origin header, written as a Host header has them."""
    address = _split_address(origin)
    return address.netloc.lower() if address is not None else ""


def _split_address(address: str) -> SplitResult | None:
    """The parts of an address; None where it is not one."""
    try:
        found = urlsplit(address)
        found.port  # noqa: B018  # raises where the port is no number
    except ValueError:
        return None
    return found
