"""What is refused before any work is done: unknown hosts, other sites, too many requests, too many bytes, slow ones.

Starlette has middlewares for hosts and for the size of a body. They are not used: the first answers in plain text,
without naming the host or saying how to allow it; the second looks at an announced length only when the body is read
or the answer begins, when the work of a request that reads no body is done already. Neither bounds the time that a
body may take, the memory of all uploads together, or the time for which an answer waits to be taken.
"""

import asyncio
import ipaddress
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from e3bm.serving.errors import error_response
from e3bm.serving.exchange import RequestError, busy_error
from e3bm.serving.gate.access import Access
from e3bm.serving.gate.forms import FORM
from e3bm.serving.settings import MEGABYTE, ServeSettings

READING = ("GET", "HEAD", "OPTIONS")
ALWAYS_ANSWERED = ("/health", "/metrics")
OWN_SITE = ("same-origin", "none")
LARGEST_WITHOUT_FILES = 4_096
"""Bytes of a request that is no form: the longest name of a class, written as JSON, has half of that."""


class RequestLimits:
    """Middleware that refuses requests by their headers and bounds what the rest of the server may read."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, access: Access) -> None:
        self.app, self.settings, self.access = app, settings, access
        self.in_flight = 0
        """Requests that have arrived whole and are being served."""
        self.bytes_held = 0
        """The bodies of all requests in flight together."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        passing = Passing(
            self, _largest_body(scope, headers, self.settings), scope["path"] not in ALWAYS_ANSWERED, receive
        )
        try:
            self._check_host(scope, headers)
            if scope["method"] not in READING:
                self._check_origin(headers)
            passing.check_length(headers)
            answer = self.access.check(scope, headers)
            if answer is None and not _has_body(headers):
                passing.arrive()
        except RequestError as error:
            answer = error_response(error.status_code, error.detail, error.headers)
        try:
            await (answer or self.app)(scope, passing.receive, passing.bounded(send))
        finally:
            passing.leave()

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        """Refuse unknown hosts: another site can point its own name at this machine, but requests carry that name."""
        address = _split_address(f"//{headers.get('host', '')}")
        name = (address.hostname or "") if address is not None else ""
        # The number of the address that was reached is no name, and nobody can point it elsewhere.
        if name not in self.settings.known_names and not is_same_number(name, scope.get("server")):
            raise RequestError(
                421, f"This server does not answer for the host '{name[:100]}'; start it with --names to allow it."
            )

    def _check_origin(self, headers: Headers) -> None:
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        if site not in OWN_SITE or (origin is not None and _origin_host(origin) != headers.get("host", "").lower()):
            raise RequestError(403, "Changes may come only from this server's own page, not from another site.")


class Passing:
    """One request on its way: what it may send, whether it has arrived, and how long its answer may wait."""

    def __init__(self, limits: RequestLimits, most: int, counted: bool, receive: Receive) -> None:
        self._limits, self._most, self._counted, self._receive = limits, most, counted, receive
        self._deadline: float | None = None
        self._complete = self._arrived = False
        self._size = 0

    def check_length(self, headers: Headers) -> None:
        """Refuse a body that announces itself as too large."""
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._most:
            raise _too_large(self._most)

    def arrive(self) -> None:
        """The request is whole, and counts among those that are served; those that are still sent hold up nobody."""
        if not self._counted or self._arrived:
            return
        if self._limits.in_flight >= self._limits.settings.in_flight:
            raise busy_error()
        self._limits.in_flight += 1
        self._arrived = True

    def leave(self) -> None:
        """The request is answered or given up."""
        self._limits.bytes_held -= self._size
        self._limits.in_flight -= self._arrived

    async def receive(self) -> Message:
        """The next piece of the body: refused where it is too large, too slow, or too much with the others."""
        if self._complete:
            return await self._receive()  # waits for the client to leave, however long that takes
        settings = self._limits.settings
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + settings.timeout
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(
                408, f"The request did not arrive within {settings.timeout:g} seconds.", {"Connection": "close"}
            ) from None
        size = len(message.get("body", b""))
        self._size += size
        self._limits.bytes_held += size
        self._complete = not message.get("more_body", False)
        if self._size > self._most:
            raise _too_large(self._most)
        if self._limits.bytes_held > settings.memory:
            raise busy_error("The server holds as many uploads as it may; try again in a moment.")
        if self._complete and message["type"] == "http.request":
            self.arrive()
        return message

    def bounded(self, send: Send) -> Send:
        """Sending, given up where the client does not take its answer."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._limits.settings.timeout):
                await send(message)

        return send_in_time


def _largest_body(scope: Scope, headers: Headers, settings: ServeSettings) -> int:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == FORM and (scope["method"], scope["path"]) == ("PUT", "/model"):
        return settings.most_model
    return settings.most_upload if kind == FORM else min(LARGEST_WITHOUT_FILES, settings.most_upload)


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def is_same_number(name: str, server: tuple[str, int | None] | None) -> bool:
    """Whether a host is written as the number of the address that the connection came to."""
    try:
        return server is not None and ipaddress.ip_address(name) == ipaddress.ip_address(server[0])
    except ValueError:
        return False


def _too_large(most: int) -> RequestError:
    if most <= LARGEST_WITHOUT_FILES:
        return RequestError(413, f"A request without files may have {most} bytes at most.")
    return RequestError(413, f"A request may have {most / MEGABYTE:g} MB at most; send fewer or smaller files.")


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
