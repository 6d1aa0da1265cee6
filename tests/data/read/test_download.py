"""Fetching files, against a server on this machine only."""

import hashlib
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from e3bm.data.read import download
from e3bm.data.read.download import download_all
from e3bm.data.read.prepare import prepare
from e3bm.data.source import Download
from e3bm.errors import DataError, SettingsError
from recorded_progress import Moment, RecordedProgress

CONTENT = np.random.default_rng(0).bytes(700_000)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves one file; a test sets what goes wrong."""

    content, etag, breaks_after, ranges, status, redirect = CONTENT, '"v1"', None, True, 200, None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, str]] = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server: Server = self.server
        server.requests.append(dict(self.headers))
        if server.redirect:
            self.send_response(302)
            self.send_header("Location", server.redirect)
            self.end_headers()
            return
        if server.status != 200:
            self.send_error(server.status)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        go_on = asked and server.ranges and self.headers.get("If-Range") == server.etag
        start = int(asked.group(1)) if go_on else 0
        self.send_response(206 if go_on else 200)
        if go_on:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        if server.etag:
            self.send_header("ETag", server.etag)
        self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        body = server.content[start:]
        if server.breaks_after is not None:
            body, server.breaks_after = body[: server.breaks_after], None
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Silence."""


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(server, folder, checksum=MD5, **settings):
    return download_all([Download(server.url, "file.bin", checksum)], folder, pause=0.0, **settings)[0]


def test_a_file_arrives_whole_and_once(server, tmp_path):
    progress = RecordedProgress()
    path = fetch(server, tmp_path / "deep" / "folder", progress=progress)
    assert path.read_bytes() == CONTENT
    assert progress.moments[-1] == Moment("downloading file.bin (bytes)", len(CONTENT), len(CONTENT))
    assert fetch(server, tmp_path / "deep" / "folder") == path
    assert len(server.requests) == 1
    assert [one.name for one in path.parent.iterdir()] == ["file.bin"]


def test_a_broken_connection_is_taken_up_again(server, tmp_path):
    server.breaks_after = 300_000
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert [request.get("Range") for request in server.requests] == [None, "bytes=300000-"]


def test_a_later_run_goes_on(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.breaks_after = 200_000
    with pytest.raises(DataError, match="broke off after 200,000 of 700,000 bytes"):
        fetch(server, tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file.bin.part", "file.bin.part.tag"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == "bytes=200000-"


@pytest.mark.parametrize("change", ["content", "ranges", "etag"])
def test_going_on_is_not_trusted_blindly(server, tmp_path, monkeypatch, change):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.etag = None if change == "etag" else server.etag
    server.breaks_after = 200_000
    with pytest.raises(DataError):
        fetch(server, tmp_path, checksum="")
    if change == "content":
        server.content, server.etag = CONTENT[::-1], '"v2"'
    server.ranges = change != "ranges"
    assert fetch(server, tmp_path, checksum="").read_bytes() == server.content


def test_a_wrong_checksum_is_refused_and_removed(server, tmp_path):
    server.content = b"something else"
    with pytest.raises(DataError, match="md5 checksum"):
        fetch(server, tmp_path)
    assert not (tmp_path / "file.bin").exists()
    assert not (tmp_path / "file.bin.part").exists()
    server.content = CONTENT
    assert fetch(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_answer_that_is_no_file(server, tmp_path, status):
    server.status = status
    with pytest.raises(DataError, match=f"answered {status}"):
        fetch(server, tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_network_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x"
        with pytest.raises(DataError, match=r"cannot be reached.*no network") as error:
            download_all([Download(url, "x")], tmp_path, pause=0.0)
    assert str(error.value).count(". ") == 0


@pytest.mark.parametrize("url", ["http://example.org/x", "ftp://example.org/x", "file:///etc/passwd", "example.org/x"])
def test_only_https(tmp_path, url):
    with pytest.raises(DataError, match="not an https address"):
        download_all([Download(url, "x")], tmp_path)


@pytest.mark.parametrize("target", ["http://example.org/x", "file:///etc/passwd"])
def test_redirections_cannot_leave_https(server, tmp_path, target):
    server.redirect = target
    with pytest.raises(DataError, match=r"not an https|answered 302"):
        fetch(server, tmp_path)


def test_prepare_downloads_only_when_asked(server, tmp_path, monkeypatch):
    from e3bm.data.source import registered_sources
    from e3bm.data.sources.omniglot import Omniglot

    with pytest.raises(SettingsError, match="No source was given"):
        prepare("omniglot", folder=tmp_path)
    assert not server.requests
    with pytest.raises(SettingsError, match="no official public address"):
        prepare("miniimagenet", folder=tmp_path, download=True)
    card = Omniglot.card
    here = tuple(Download(server.url, f"{n}.zip") for n in range(1))
    monkeypatch.setattr(Omniglot, "card", type(card)(**{**vars(card), "downloads": here}))
    assert registered_sources()["omniglot"]().card.downloads == here
    with pytest.raises(DataError, match=r"0\.zip is not an archive"):
        prepare("omniglot", folder=tmp_path, download=True)
    assert (tmp_path / "downloads" / "omniglot" / "0.zip").read_bytes() == CONTENT
