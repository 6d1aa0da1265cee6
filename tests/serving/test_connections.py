"""Connections that say nothing, too little or nonsense: they are closed in time, and others are heard meanwhile."""

import asyncio
import json
import logging
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from e3bm.serving.errors import HEADERS
from e3bm.serving.gate import connections
from e3bm.serving.gate.connections import BoundedLog, Places, bounded_connections

FEW = 24


@pytest.fixture
def few_places(monkeypatch) -> None:
    """Servers that are started from here on have few places."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", FEW)


def line_to(visitor) -> socket.socket:
    place = urlsplit(str(visitor.base_url))
    return socket.create_connection((place.hostname, place.port), timeout=30)


def answer_to(visitor, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what the server says to bytes."""
    with line_to(visitor) as line:
        line.sendall(request)
        told = b""
        while piece := line.recv(10_000):
            told += piece
    head, _, body = told.partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    return int(status.split()[1]), dict(one.split(": ", 1) for one in headers), body


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.x\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_with_the_same_headers(visitor, request_bytes) -> None:
    status, headers, body = answer_to(visitor, request_bytes)
    assert status == 400
    assert set(json.loads(body)) == {"error"}
    found = {name.lower(): value for name, value in headers.items()}
    for name, value in HEADERS.items():
        assert found[name.lower()] == value


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_head_that_does_not_come_is_not_waited_for(serve_with, monkeypatch, sent) -> None:
    with serve_with() as visitor, monkeypatch.context() as hurried:
        hurried.setattr(connections, "HEAD_SECONDS", 0.2)
        with line_to(visitor) as line:
            line.sendall(sent)
            assert _is_closed(line, 30)
        hurried.undo()  # who asks now has time, on a busy machine, too
        assert visitor.get("/health").status_code == 200


def test_a_kept_connection_may_rest_but_not_dawdle(serve_with, monkeypatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)
    with serve_with() as visitor, line_to(visitor) as line:
        whole = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for pause in (0.0, 1.5):
            if pause:
                assert not _is_closed(line, pause)
            line.sendall(whole)
            told = b""
            while not told.endswith(b"}"):
                told += line.recv(10_000)
            assert told.startswith(b"HTTP/1.1 200")
        line.sendall(whole[:-10])
        assert _is_closed(line, 30)


def _is_closed(line: socket.socket, seconds: float) -> bool:
    """Whether the other side closes within so many seconds."""
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


HALF = b"POST /classes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", HALF])
def test_lines_without_a_whole_request_silence_nobody(serve_with, few_places, glyph_png, sent) -> None:
    with serve_with() as visitor, ExitStack() as lines:
        visitor.teach("g", "&")
        visitor.fit()
        for _ in range(3 * FEW):
            line = lines.enter_context(line_to(visitor))
            line.sendall(sent)
        for _ in range(5):
            assert visitor.get("/health", headers={"Connection": "close"}).status_code == 200
            assert visitor.photos("/predict", glyph_png("g", 7)).status_code == 200


def test_half_sent_bodies_take_no_place_among_the_requests_that_are_served(serve_with) -> None:
    with serve_with(in_flight=2) as visitor, ExitStack() as lines:
        for _ in range(8):
            lines.enter_context(line_to(visitor)).sendall(HALF)
        assert visitor.get("/workspace").status_code == 200


def test_an_answer_that_nobody_takes_is_given_up(serve_with, monkeypatch) -> None:
    """A line whose buffers are full holds its place for as long as the time limit, not for ever."""
    with serve_with(timeout=1, in_flight=1) as visitor:
        visitor.service.workspace.create_class("a")
        with line_to(visitor) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.sendall(b"GET /workspace HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 40_000)
            for _ in range(3000):
                if visitor.get("/workspace").status_code == 200:
                    break
            else:
                pytest.fail("the server waits for a client that does not read")


class Line:
    """A connection that remembers whether it was given up."""

    def __init__(self) -> None:
        self.gone = False

    def give_up(self) -> None:
        self.gone = True


def test_who_makes_room() -> None:
    places = Places(3)
    lines = [Line() for _ in range(7)]
    gone = lambda: [place for place, line in enumerate(lines) if line.gone]
    for line in lines[:3]:
        places.enter(line)
    places.serve(lines[0])
    places.enter(lines[3])
    assert gone() == [1]  # the first that has sent nothing whole
    places.rest(lines[0])
    places.enter(lines[4])
    assert gone() == [1, 2]  # one that rests after its request stays longer than one that never had any
    for line in (lines[3], lines[4]):
        places.serve(line)
    places.enter(lines[5])
    assert gone() == [0, 1, 2]
    places.serve(lines[5])
    places.enter(lines[6])  # all others are served: it is the new one that goes
    assert gone() == [0, 1, 2, 6]
    assert len(places) == 3


def test_there_are_fewer_places_than_descriptors(monkeypatch) -> None:
    for descriptors in (64, 256, 1024, 4096):
        monkeypatch.setattr(connections, "_raise_descriptor_limit", lambda found=descriptors: found)
        protocol, at_once = bounded_connections()
        assert at_once >= 8
        assert protocol.places.most + 2 * at_once < descriptors or protocol.places.most == 16


def test_a_log_is_bounded_and_says_what_it_leaves_out(caplog) -> None:
    logger, some = logging.getLogger("a noisy one"), BoundedLog(lines=3, seconds=1000)
    logger.addFilter(some)
    for number in range(50):
        logger.warning("line %d", number)
    assert caplog.messages == ["line 0", "line 1", "line 2"]
    some._seconds = -1  # as if the time were over
    logger.warning("line %d", 50)
    assert caplog.messages[-1] == "line 50 (and 47 lines before it that were left out)"


def test_a_request_that_is_cancelled_by_the_end_of_the_server_is_not_logged_as_a_defect(caplog) -> None:
    logger = logging.getLogger("one that stops")
    logger.addFilter(BoundedLog())
    for error in (asyncio.CancelledError("Task cancelled"), ValueError("a defect")):
        logger.error("Exception in ASGI application", exc_info=error)
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]
