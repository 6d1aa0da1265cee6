"""`e3bm serve` as it is started and stopped."""

import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import pytest

from e3bm.cli.main import main
from e3bm.fewshot.few_shot_classifier import FewShotClassifier


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere.e3bm"], "There is no model file nowhere.e3bm"),
        (["--port", "99999"], "65535"),
        (["--most-pixels", "0"], "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_served_is_a_sentence(words, told, capsys) -> None:
    assert main(["serve", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_taken_port_is_a_sentence(capsys) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra `pretrained` is not installed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_it_serves_real_features_and_stops_politely(glyph_png, tmp_path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra `pretrained` is not installed")
    command = [sys.executable, "-m", "e3bm", "serve", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes) as server:
        try:
            address = server.stdout.readline().split()[2]
            with httpx.Client(base_url=address, timeout=300) as client:
                assert client.get("/workspace").json()["backbone"] == "efficientnet-lite0"
                for character in ("g", "&"):
                    number = client.post("/classes", json={"name": character}).json()["id"]
                    files = [("photos", ("a.png", glyph_png(character, place))) for place in range(2)]
                    assert client.post(f"/classes/{number}/photos", files=files).status_code == 201
                assert client.post("/fit", params={"wait": 60}).status_code == 200
                asked = glyph_png("g", 5)
                (told,) = client.post("/predict", files={"photos": asked}).json()["predictions"]
                (tmp_path / "m.e3bm").write_bytes(client.get("/model").content)
                assert client.get("/model.onnx").status_code == 200  # its process has semaphores to give back
            server.send_signal(signal.SIGTERM)
            _, complaints = server.communicate(timeout=120)
        finally:
            server.kill()
    assert server.returncode == 0
    assert complaints == "e3bm: the server has stopped.\n"
    loaded = FewShotClassifier.load(tmp_path / "m.e3bm")
    assert told["probabilities"] == pytest.approx(loaded.predict(asked).probabilities, abs=1e-5)


def test_beyond_loopback_a_token_is_printed_and_a_warning_without_one(monkeypatch, capsys) -> None:
    """Nothing listens: that would be beyond loopback."""
    from e3bm.serving import app, server

    monkeypatch.delenv("E3BM_TOKEN", raising=False)
    given, made = [], SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(workspace=Mock())))
    monkeypatch.setattr(app, "create_app", lambda settings, classifier, token: given.append(token) or made)
    monkeypatch.setattr(server, "serve", lambda made, settings, tell: tell(f"http://{settings.host}:8000/"))
    monkeypatch.setattr("e3bm.fewshot.few_shot_classifier.FewShotClassifier.__init__", lambda self, views: None)
    for words, told, warned in (
        ([], False, False),
        (["--host", "0.0.0.0"], True, False),
        (["--host", "0.0.0.0", "--no-token"], False, True),
    ):
        assert main(["serve", *words]) == 0
        out, err = capsys.readouterr()
        token = given.pop()
        assert ("The token is" in out) == told == (token is not None)
        assert ("anyone who can reach this address" in err) == warned
        if token is not None:
            assert f"http://0.0.0.0:8000/?token={token}" in out
