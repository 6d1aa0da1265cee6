"""Who may ask: on loopback everybody, elsewhere whoever knows the token."""

import pytest

from e3bm.errors import SettingsError
from e3bm.serving.errors import HEADERS
from e3bm.serving.gate.access import choose_token, is_loopback
from e3bm.serving.gate.limits import is_same_number
from e3bm.serving.settings import ServeSettings

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "localhost", "LOCALHOST", "::1"])
def test_on_loopback_there_is_no_token(host) -> None:
    assert is_loopback(host)
    assert choose_token(ServeSettings(host=host)) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "photos.example", "10.0.0.1"])
def test_elsewhere_there_is_one_unless_it_is_switched_off(host, monkeypatch) -> None:
    monkeypatch.delenv("E3BM_TOKEN", raising=False)
    first, second = (choose_token(ServeSettings(host=host)) for _ in range(2))
    assert first is not None
    assert len(first) >= 32
    assert first != second
    assert choose_token(ServeSettings(host=host, no_token=True)) is None
    monkeypatch.setenv("E3BM_TOKEN", TOKEN)
    assert choose_token(ServeSettings(host=host)) == TOKEN
    for bad in ("short", "with some spaces in it", "nicht-ganz-so-schön"):
        monkeypatch.setenv("E3BM_TOKEN", bad)
        with pytest.raises(SettingsError, match="E3BM_TOKEN"):
            choose_token(ServeSettings(host=host))


@pytest.fixture(scope="module")
def guarded(serve_with):
    with serve_with(token=TOKEN) as visitor:
        yield visitor


def test_without_the_token_nothing_is_told(guarded) -> None:
    for method, place in (
        ("GET", "/"), ("GET", "/workspace"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/nothing"),
        ("POST", "/classes"), ("DELETE", "/workspace"), ("POST", "/fit"), ("GET", "/model"), ("POST", "/predict"),
    ):  # fmt: skip
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}, {"Cookie": "a=b; ;;="}):
            answer = guarded.request(method, place, headers=headers)
            assert answer.status_code == 401, (method, place, headers)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-frame-options"] == HEADERS["X-Frame-Options"]
            assert TOKEN not in answer.text
    assert guarded.get("/", params={"token": f"{TOKEN}x"}).status_code == 401
    assert guarded.get("/workspace", params={"token": TOKEN}).status_code == 401


def test_health_and_the_look_of_the_sign_in_page_are_for_everybody(guarded) -> None:
    for place in ("/health", "/style.css", "/icon.svg", "/sign_in.js"):
        assert guarded.get(place).status_code == 200


def test_a_browser_is_asked_for_the_token_on_a_page(guarded) -> None:
    answer = guarded.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert "token" in answer.text
    assert TOKEN not in answer.text


def test_a_program_sends_the_token(guarded) -> None:
    for word in ("Bearer", "bearer"):
        assert guarded.get("/workspace", headers={"Authorization": f"{word} {TOKEN}"}).status_code == 200


def test_a_browser_gets_a_cookie_once(guarded) -> None:
    answer = guarded.get("/", params={"token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    name, value = cookie.split(";")[0].split("=")
    assert guarded.get("/", headers={"Cookie": f"{name}={value}"}).status_code == 200
    assert guarded.get("/", headers={"Cookie": f"{name}={value}x"}).status_code == 401
    guarded.cookies.clear()


def test_another_site_with_the_cookie_still_changes_nothing(guarded) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://elsewhere.example"}
    assert guarded.post("/classes", json={"name": "a"}, headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("host", "reached", "same"),
    [
        ("192.168.1.5", "192.168.1.5", True), ("192.168.1.5", "192.168.1.6", False), ("::1", "0:0:0:0:0:0:0:1", True),
        ("photos.example", "192.168.1.5", False), ("", "192.168.1.5", False), ("192.168.1.5", "socket", False),
    ],
)  # fmt: skip
def test_the_number_of_the_address_that_was_reached_is_a_known_host(host, reached, same) -> None:
    assert is_same_number(host, (reached, 80)) == same
    assert not is_same_number(host, None)
