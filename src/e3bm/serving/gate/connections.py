"""Connections: how many there may be, which one has to go for a new one, and how long one may send nothing whole.

uvicorn bounds neither the time of a request's head nor the number of connections that say nothing; a few hundred of
these would use up its descriptors and silence it. Here a request's head has a deadline, and where all places are taken
the connection that has been waiting longest for its first request makes room, so that whoever sends a request is heard.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from e3bm.serving.errors import HEADERS, error_response

HEAD_SECONDS = 10.0
"""For the head of a request, from its first byte or from the beginning of the connection."""
LINGER_SECONDS = 5.0
"""For the rest of a body that was refused: closing at once could cost the client its answer."""
MOST_CONNECTIONS = 1024
MOST_ACCEPTED_AT_ONCE = 128
FILES_OF_OUR_OWN = 96
DESCRIPTORS = 4096
LINES, SECONDS = 20, 10.0


class Places:
    """The connections of a server and how many it may have: new ones, those that rest after a request, busy ones."""

    def __init__(self, most: int) -> None:
        self.most = most
        # Dictionaries, because these keep the order in which connections came.
        self._new: dict[BoundedConnection, None] = {}
        self._resting: dict[BoundedConnection, None] = {}
        self._busy: set[BoundedConnection] = set()

    def __len__(self) -> int:
        return len(self._new) + len(self._resting) + len(self._busy)

    def enter(self, one: "BoundedConnection") -> None:
        """A new connection; where there is no room another one leaves, or it leaves itself.

        First go those that have never sent a whole request, then those that rest, the longest there first.
        """
        if len(self) >= self.most:
            leaving = next(iter([*self._new, *self._resting]), one)
            self.leave(leaving)
            leaving.give_up()
            if leaving is one:
                return
        self._new[one] = None

    def serve(self, one: "BoundedConnection") -> None:
        """Its request has arrived whole: it does not have to make room."""
        if one in self._new or one in self._resting:
            self.leave(one)
            self._busy.add(one)

    def rest(self, one: "BoundedConnection") -> None:
        """Its request is answered; it waits again, behind all others."""
        if one in self._busy:
            self._busy.remove(one)
            self._resting[one] = None

    def leave(self, one: "BoundedConnection") -> None:
        """It is closed."""
        self._new.pop(one, None)
        self._resting.pop(one, None)
        self._busy.discard(one)


class BoundedConnection(H11Protocol):
    """uvicorn's protocol with a deadline for heads, a place among its like, and our headers on every answer."""

    places: Places

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.places.enter(self)
        if not transport.is_closing():
            self._limit(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit(None)
        self.places.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._being_served() and self._deadline is None:
            self._limit(HEAD_SECONDS)  # a connection that was kept: its next request has begun
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._being_served():
            self._limit(None)
            if not self.cycle.more_body:
                self.places.serve(self)

    def on_response_complete(self) -> None:
        self.places.rest(self)
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self._being_served() and not self.transport.is_closing():
            self._limit(LINGER_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """The same headers and form as everywhere, for what is no HTTP at all."""
        answer = error_response(400, "This is not a well-formed HTTP request.", HEADERS)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # an answer has begun already
        self.transport.close()

    def give_up(self) -> None:
        """Close without a word: there is no request to answer."""
        self.transport.abort()

    def _being_served(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _limit(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.give_up)


def bounded_connections() -> tuple[type[BoundedConnection], int]:
    """The protocol of one server, and how many connections it should accept at a time."""
    descriptors = _raise_descriptor_limit()
    at_once = max(8, min(MOST_ACCEPTED_AT_ONCE, descriptors // 8))
    # Those just accepted and those being closed have descriptors, too.
    most = max(16, min(MOST_CONNECTIONS, descriptors - 2 * at_once - FILES_OF_OUR_OWN))
    return type("Connection", (BoundedConnection,), {"places": Places(most)}), at_once


def _raise_descriptor_limit() -> int:
    if sys.platform == "win32":  # where a connection is no descriptor
        return DESCRIPTORS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


class BoundedLog(logging.Filter):
    """Lets so many lines of a logger through in so many seconds, and then says how many there were more."""

    def __init__(self, lines: int = LINES, seconds: float = SECONDS) -> None:
        super().__init__()
        self._lines, self._seconds = lines, seconds
        self._began, self._count = time.monotonic(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False  # a request that was given up because the server stops is no defect
        now = time.monotonic()
        if now - self._began > self._seconds:
            left_out = self._count - self._lines
            self._began, self._count = now, 0
            if left_out > 0:
                record.msg = f"{record.msg} (and {left_out} lines before it that were left out)"
        self._count += 1
        return self._count <= self._lines


@contextmanager
def bounded_logs(*names: str) -> Iterator[None]:
    """Bound what these loggers write, whoever makes them speak."""
    filters = [(logging.getLogger(name), BoundedLog()) for name in names]
    for logger, some in filters:
        logger.addFilter(some)
    try:
        yield
    finally:
        for logger, some in filters:
            logger.removeFilter(some)
