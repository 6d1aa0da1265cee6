"""The application: routes, limits, headers and counts put together."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, FastAPI, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.errors import HEADERS, DefectsAsErrors, add_error_handlers
from e3bm.serving.gate.access import Access
from e3bm.serving.gate.limits import RequestLimits
from e3bm.serving.kept.workspace import Workspace
from e3bm.serving.metrics import MetricsMiddleware
from e3bm.serving.routes import api_routes
from e3bm.serving.service import Service
from e3bm.serving.settings import ServeSettings

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class SecurityHeaders:
    """Middleware that tells the browser, in every answer, to run our own scripts only and to keep nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await self.app(scope, receive, send_with_headers)


def create_app(
    settings: ServeSettings | None = None, classifier: FewShotClassifier | None = None, token: str | None = None
) -> FastAPI:
    """An application with one workspace; ``classifier`` gives its backbone and, when fitted, its first model.

    Where there is a ``token``, those who ask must know it.
    """
    settings = settings or ServeSettings()
    service = Service(settings, Workspace(classifier or FewShotClassifier(), settings))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.warm_up()
        yield
        await service.close()

    # The usual pages of documentation load scripts from elsewhere; /openapi.json is all there is.
    app = FastAPI(title="e3bm", version=version("e3bm"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.include_router(api_routes(service))
    app.include_router(_page_routes())
    add_error_handlers(app)
    access = Access(token, (PAGE / "sign_in.html").read_bytes())
    # The last one added is the outermost.
    app.add_middleware(DefectsAsErrors)
    app.add_middleware(RequestLimits, settings=settings, access=access)
    app.add_middleware(MetricsMiddleware, metrics=service.metrics)
    app.add_middleware(SecurityHeaders)
    return app


def _page_routes() -> APIRouter:
    """A route for every file of the page, read once: what a request asks for never becomes a path."""
    router = APIRouter(include_in_schema=False)
    for file in sorted(PAGE.iterdir()):
        if file.suffix in KINDS:
            address = "/" if file.name == "index.html" else f"/{file.name}"
            router.add_api_route(address, _sender(file.read_bytes(), KINDS[file.suffix]), methods=["GET", "HEAD"])
    return router


def _sender(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=kind)

    return send
