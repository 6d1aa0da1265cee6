"""The page: a fixed list of files, read once; what is asked for never becomes a path."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter, Response

FOLDER = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_routes() -> APIRouter:
    """A route for every file; the page itself is at the root."""
    router = APIRouter(include_in_schema=False)
    for file in sorted(FOLDER.iterdir()):
        if file.suffix in KINDS:
            address = "/" if file.name == "index.html" else f"/{file.name}"
            router.add_api_route(address, _sender(file.read_bytes(), KINDS[file.suffix]), methods=["GET", "HEAD"])
    return router


def _sender(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=kind)

    return send
