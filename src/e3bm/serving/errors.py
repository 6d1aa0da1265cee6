"""What a client is told when something is wrong: one sentence as JSON, never a trace."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from e3bm.errors import E3BMError
from e3bm.serving.exchange import RequestError

LOG = logging.getLogger("e3bm.serving")
DEFECT = "This is a defect of e3bm; the server's log says where."
SENTENCES = {
    404: "There is nothing at this address.",
    405: "This address does not take {method}; /openapi.json lists what it takes.",
}

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def error_response(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The body that every error has."""
    # What a client sent may be quoted, and need not be text that can be written.
    text = sentence.encode("utf-8", "replace").decode()
    return JSONResponse({"error": text}, status, headers=dict(headers or {}))


def add_error_handlers(app: FastAPI) -> None:
    """Turn every way in which a request can fail into a sentence."""

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        sentence = error.detail if isinstance(error, RequestError) else SENTENCES.get(error.status_code, "")
        sentence = sentence.replace("{method}", request.method)
        return error_response(error.status_code, sentence or _as_sentence(error.detail), error.headers)

    async def wrong_input(request: Request, error: Exception) -> JSONResponse:
        return error_response(422, _as_sentence(str(error)))

    async def wrong_shape(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(422, _wrong_shape(error.errors()[0]))

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(E3BMError, wrong_input)
    app.add_exception_handler(RequestValidationError, wrong_shape)


class DefectsAsErrors:
    """Middleware that logs a defect of ours and answers it like any other error, with all headers and counted."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def note_begin(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, note_begin)
        except Exception:
            LOG.exception("a request failed")
            if begun or scope["type"] != "http":
                raise
            response = error_response(500, DEFECT)
            await response(scope, receive, send)


def _wrong_shape(problem: Mapping[str, Any]) -> str:
    """What is wrong with a body or a parameter, in the words of somebody who does not know what checked it."""
    kind, limits = problem["type"], problem.get("ctx", {})
    names = [str(part) for part in problem["loc"] if part not in ("body", "query", "path")]
    if kind == "json_invalid":
        return "The body is not readable JSON; check its quotes, commas and brackets."
    if not names:
        return 'The body must be a JSON object, such as {"name": "duck"}, sent as application/json.'
    name = "".join(letter for letter in names[-1] if letter.isprintable())[:40]
    words = {
        "missing": "is missing",
        "extra_forbidden": "is not known here",
        "string_type": "must be text",
        "string_too_long": f"may have {limits.get('max_length')} characters at most",
        "greater_than_equal": f"must be {limits.get('ge', 0):g} or more",
        "literal_error": f"must be {limits.get('expected')}",
        "less_than_equal": f"may be {limits.get('le', 0):g} at most",
    }
    for wanted, sentence in (("int", "a whole number"), ("float", "a number"), ("bool", "true or false")):
        words |= {f"{wanted}_{ending}": f"must be {sentence}" for ending in ("type", "parsing", "parsing_size")}
    return _as_sentence(f"'{name}' {words.get(kind, 'cannot be used')}")


def _as_sentence(words: str) -> str:
    """On one line, with a full stop."""
    return " ".join(words.split()).rstrip(".") + "."
