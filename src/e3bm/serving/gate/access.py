"""The token: whoever can reach a server that listens beyond this machine must know it.

A program sends it as `Authorization: Bearer TOKEN`. A browser opens the address that was printed once, `/?token=TOKEN`,
and is given a cookie that scripts cannot read and other sites cannot use.
"""

import ipaddress
import os
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from e3bm.errors import SettingsError
from e3bm.serving.exchange import RequestError
from e3bm.serving.settings import ServeSettings

VARIABLE = "E3BM_TOKEN"
SHORTEST = 16
OPEN_PATHS = ("/health", "/style.css", "/icon.svg", "/sign_in.js")
"""What anybody may see: whether the server works, and what the page that asks for the token is made of."""


def choose_token(settings: ServeSettings) -> str | None:
    """The token of a server; None where its address is reached from this machine only, or it shall have none."""
    if settings.no_token or is_loopback(settings.host):
        return None
    given = os.environ.get(VARIABLE, "")
    if given and (len(given) < SHORTEST or not given.isascii() or not given.isprintable() or " " in given):
        raise SettingsError(
            f"The environment variable {VARIABLE} has {len(given)} characters; a token has {SHORTEST} or more "
            "letters and digits, and no spaces. Leave it unset to have one made."
        )
    return given or secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Decides who may ask."""

    def __init__(self, token: str | None, sign_in_page: bytes = b"") -> None:
        self._token, self._sign_in_page = token, sign_in_page

    def check(self, scope: Scope, headers: Headers) -> Response | None:
        """Nothing for those who may; for a browser a cookie or the page that asks for the token; else an error."""
        if self._token is None or scope["path"] in OPEN_PATHS:
            return None
        brought = _brought_in_address(scope)
        if brought is not None and self._is_right(brought):
            return self._redirect_with_cookie(scope)
        kind, _, word = headers.get("authorization", "").partition(" ")
        if (kind.lower() == "bearer" and self._is_right(word.strip())) or self._has_cookie(scope, headers):
            return None
        asking = {"WWW-Authenticate": "Bearer"}
        if scope["path"] == "/" and "text/html" in headers.get("accept", ""):
            return Response(self._sign_in_page, 401, asking, "text/html")
        raise RequestError(
            401,
            "This server asks for its token: open the address that it printed when it was started, or send the header "
            "'Authorization: Bearer TOKEN'.",
            asking,
        )

    def _is_right(self, word: str) -> bool:
        return secrets.compare_digest(word.encode("utf-8", "replace"), (self._token or "").encode())

    def _has_cookie(self, scope: Scope, headers: Headers) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(_cookie_name(scope))
        except CookieError:
            return False
        return found is not None and self._is_right(found.value)

    def _redirect_with_cookie(self, scope: Scope) -> Response:
        # Not in the address any more: that is shown, kept in the history, and sent round.
        response = Response(status_code=303, headers={"Location": scope["path"]})
        response.set_cookie(_cookie_name(scope), self._token or "", httponly=True, samesite="strict", path="/")
        return response


def _cookie_name(scope: Scope) -> str:
    """Browsers share cookies between the ports of a machine: two servers have different names."""
    server = scope.get("server")
    return f"e3bm_token_{server[1] if server else 0}"


def _brought_in_address(scope: Scope) -> str | None:
    if scope["method"] not in ("GET", "HEAD") or scope["path"] != "/":
        return None
    try:
        found = parse_qs(scope.get("query_string", b"")[:500].decode("ascii"), max_num_fields=4)
    except ValueError:
        return None
    words: list[str] = found.get("token", [])
    return words[0] if words else None
